"""Bundles of other versions of rankbench: what is checked, and what is reported."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest

from rankbench.cli import main
from rankbench.record import Layout
from rankbench.results.bundle import unpack, verify_bundle, write_bundle
from rankbench.results.bundle.finding import Checked
from rankbench.results.bundle.listing import _UNLISTED as UNLISTED
from rankbench.results.bundle.listing import assign, list_ours
from rankbench.results.elements.section import Content, Versions
from rankbench.results.numbers.found import Found
from rankbench.results.sections import list_versions, load_sections
from unit.test_bundle import seal, write_results

pytestmark = pytest.mark.unit

OLD = Path(__file__).resolve().parents[1] / "bundles/quickstart-2026-11.tar.zst"


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle that lists no sections, as a folder."""
    folder = tmp_path_factory.mktemp("frozen")
    unpack(OLD, folder)
    return folder


@pytest.fixture
def bundle(frozen: Path, tmp_path: Path) -> Path:
    """A copy of an old bundle, which a test may damage."""
    return shutil.copytree(frozen, tmp_path / "bundle")


@pytest.fixture(scope="module")
def republished(frozen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same records, as this rankbench publishes them."""
    folder = tmp_path_factory.mktemp("republished") / "bundle"
    write_bundle(Layout(frozen), folder, anonymise=True)
    return folder


@pytest.fixture
def current(republished: Path, tmp_path: Path) -> Path:
    """A copy of a bundle of this version, which a test may damage."""
    return shutil.copytree(republished, tmp_path / "current")


@pytest.fixture
def results(tmp_path: Path) -> Layout:
    return write_results(tmp_path / "results")


def section(bundle: Path, name: str) -> Checked:
    (found,) = (one for one in verify_bundle(bundle).sections if one.name == name)
    return found


def change_digit(path: Path) -> None:
    """Change the last digit of the first row."""
    lines = path.read_text().splitlines(keepends=True)
    place = [match.start() for match in re.finditer(r"\d", lines[1])][-1]
    digit = str((int(lines[1][place]) + 1) % 10)
    lines[1] = lines[1][:place] + digit + lines[1][place + 1 :]
    path.write_text("".join(lines))


def change(monkeypatch: pytest.MonkeyPatch, name: str, **fields: Any) -> None:
    """Replace the declaration of a section."""
    sections = load_sections()
    new = dataclasses.replace(sections[name], **fields)
    monkeypatch.setitem(sections, name, new)


def plant(
    monkeypatch: pytest.MonkeyPatch, name: str = "losses", **versions: Any
) -> None:
    """Replace the method of a section: other numbers, another column, another text."""
    old = load_sections()[name]

    def make(found: Found) -> Content | None:
        content = old.make(found)
        assert content
        rows = [
            {
                name: 2 * one if isinstance(one, float) else one
                for name, one in row.items()
            }
            | {"new": "new"}
            for row in content.rows
        ]
        return dataclasses.replace(content, rows=rows)

    change(
        monkeypatch,
        name,
        make=make,
        reading="by another method",
        columns={**old.columns, "new": str},
        versions=Versions(**versions),
    )


# --- the registry ---------------------------------------------------------------------


def test_every_file_that_follows_belongs_to_a_section(
    results: Layout, tmp_path: Path
) -> None:
    write_bundle(results, tmp_path / "bundle", anonymise=False)
    names = [
        path.relative_to(tmp_path / "bundle").as_posix()
        for path in (tmp_path / "bundle").glob("plots/*")
    ]
    names += [path.name for path in (tmp_path / "bundle").glob("*.csv")]
    names += ["README.md", "ro-crate-metadata.json"]
    found, rest = assign(names, list_ours())
    assert rest == set()
    assert len(found["plots/profile"]) == 3
    listed = json.loads((tmp_path / "bundle/sections.json").read_text())["sections"]
    assert listed["table"] == {
        "numbers": list_versions()["table"].numbers,
        "presentation": list_versions()["table"].presentation,
    }
    assert listed.keys() == list_ours().keys()


@pytest.mark.parametrize("name", ["plots/profilex.csv", "evil.html", "a/table.csv"])
def test_other_files_belong_to_none(name: str) -> None:
    assert assign([name], list_versions())[1] == {name}


CHANGED = {"bounds", "table", "reports", "plots/efficiency"}

# --- an older bundle, which lists nothing ---------------------------------------------


def test_an_older_bundle_is_version_1_of_all(frozen: Path) -> None:
    found = verify_bundle(frozen)
    assert found.findings == []
    assert len(found.sections) == 18
    # Their method has changed since, or they are no more.
    assert {one.name for one in found.sections if not one.rederived} == CHANGED
    said = "presentation not compared: version 1, this is 2"
    notes = [one.notes for one in found.sections if one.rederived]
    assert notes == [[said]] * (18 - len(CHANGED))
    assert set(found.unlisted) == set(list_ours()) - set(UNLISTED)


def test_a_bundle_of_today_has_nothing_to_explain(current: Path) -> None:
    found = verify_bundle(current)
    assert found.findings == []
    assert found.rederived == len(found.sections) == 23
    assert [one.notes for one in found.sections if one.notes] == []
    assert found.unlisted == []


def test_a_digit_in_every_csv_is_found_and_named(bundle: Path) -> None:
    names = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*.csv")}
    assert len(names) == 18
    # Of these sections only some columns are compared, or none.
    names -= {"bounds.csv", "reports.csv", "plots/efficiency.csv"}
    for name in names:
        change_digit(bundle / name)
    seal(bundle)
    found = {one.file: one.where for one in verify_bundle(bundle).findings}
    assert found.keys() == names
    assert [where for where in found.values() if "row 2 of" not in where] == []


# --- a section of another method ------------------------------------------------------


def test_another_method_is_named_and_not_compared(
    current: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, numbers=2)
    found = verify_bundle(current)
    assert found.findings == []
    assert (found.rederived, len(found.sections)) == (22, 23)
    notes = {one.name: one.notes for one in found.sections if one.notes}
    assert notes == {
        "losses": [
            "not re-derived: method 1, this is 2",
            "presentation not compared",
        ],
        "table": [
            "table.html not compared: it may show losses",
            "table.md not compared: it may show losses",
        ],
    }


def test_without_a_new_version_it_is_a_difference(
    current: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    files = {finding.file for finding in verify_bundle(current).findings}
    assert files == {f"losses.{s}" for s in ("csv", "md", "tex")} | {
        "table.md",
        "table.html",
    }


def test_columns_that_kept_their_meaning_are_compared(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {1: ("cell", "operation")}
    plant(monkeypatch, "collectives", numbers=2, kept=kept)
    # A column whose meaning has changed since is not compared.
    change_digit(bundle / "collectives.csv")
    checked = section(bundle, "collectives")
    assert (checked.rederived, checked.findings) == (False, [])
    assert checked.notes[0] == (
        "not re-derived: method 1, this is 2; compared in the columns cell, operation"
    )
    path = bundle / "collectives.csv"
    path.write_text(path.read_text().replace(",all_reduce,", ",all_gather,", 1))
    (finding,) = section(bundle, "collectives").findings
    assert str(finding) == (
        "collectives.csv, row 2 of ddp.gloo.1x2.convnet.digits, column operation: "
        "published 'all_gather', made anew 'all_reduce'"
    )


def test_an_appended_column_leaves_the_others_rederived(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = (bundle / "variance.csv").read_text().splitlines()[0].split(",")
    change(
        monkeypatch,
        "variance",
        columns={**load_sections()["variance"].columns, "new": str},
        versions=Versions(numbers=2, kept={1: tuple(header)}),
    )
    checked = section(bundle, "variance")
    assert (checked.rederived, checked.findings) == (True, [])
    assert checked.notes[0] == "method 1, this is 2: compared in all its columns"
    change_digit(bundle / "variance.csv")
    assert section(bundle, "variance").findings


def test_a_kept_column_that_was_cut_out_is_found(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Versions(numbers=2, kept={1: ("cell",)})
    change(monkeypatch, "epochs", versions=kept)
    path = bundle / "epochs.csv"
    pd.read_csv(path).drop(columns="cell").to_csv(path, index=False)
    (finding,) = section(bundle, "epochs").findings
    assert "lacks columns of its method: cell" in str(finding)


def test_another_presentation_is_said_and_its_numbers_are_compared(
    bundle: Path,
) -> None:
    (bundle / "epochs.md").write_text("as an older rankbench shows it")
    checked = section(bundle, "epochs")
    assert (checked.rederived, checked.findings) == (True, [])
    assert checked.notes == ["presentation not compared: version 1, this is 2"]
    change_digit(bundle / "epochs.csv")
    assert {one.file for one in section(bundle, "epochs").findings} == {"epochs.csv"}


def test_a_method_that_can_still_be_followed_is(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, "epochs", versions=Versions(numbers=3, still=(1, 2)))
    checked = section(bundle, "epochs")
    assert (checked.rederived, checked.findings) == (True, [])


# --- sections of one side alone -------------------------------------------------------


def write_listing(bundle: Path, spoil: Callable[[dict[str, Any]], Any]) -> None:
    value = {
        "schema": 1,
        "sections": {name: {"numbers": 1, "presentation": 1} for name in UNLISTED},
    }
    spoil(value)
    (bundle / "sections.json").write_text(json.dumps(value))
    seal(bundle)


def test_a_section_that_this_rankbench_does_not_know(bundle: Path) -> None:
    (bundle / "gravity.csv").write_text("cell,newtons\n")
    (bundle / "plots/gravity.svg").write_text("<svg/>")
    new = {"numbers": 1, "presentation": 1}
    write_listing(
        bundle,
        lambda v: v["sections"].update(
            {"gravity": new, "plots/gravity": new, "e": new}
        ),
    )
    found = verify_bundle(bundle)
    assert found.findings == []
    assert (found.rederived, len(found.sections)) == (18 - len(CHANGED), 20)
    assert section(bundle, "gravity").notes == [
        "not re-derived: this rankbench has no such section"
    ]
    # A file that belongs to no section is still refused.
    (bundle / "gravity.js").write_text("")
    seal(bundle)
    assert [one.file for one in verify_bundle(bundle).findings] == ["gravity.js"]


def test_a_section_that_the_bundle_does_not_list_is_not_missing(
    results: Layout, tmp_path: Path
) -> None:
    # patch.dict puts the section back in its place; monkeypatch would put it last.
    with patch.dict(load_sections()):
        del load_sections()["variance"]
        write_bundle(results, tmp_path / "older", anonymise=False)
    found = verify_bundle(tmp_path / "older")
    assert not (tmp_path / "older/variance.csv").exists()
    assert found.findings == []
    assert found.rederived == len(found.sections)
    assert found.unlisted == ["variance"]


def test_a_section_that_the_bundle_lists_must_be_there(
    results: Layout, tmp_path: Path
) -> None:
    write_bundle(results, tmp_path / "bundle", anonymise=False)
    (tmp_path / "bundle/variance.csv").unlink()
    seal(tmp_path / "bundle")
    (finding,) = verify_bundle(tmp_path / "bundle").findings
    assert str(finding) == "variance.csv: is missing: it follows from the records"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda v: v.update(schema=2), "has sections schema 2, this rankbench reads 1"),
        (lambda v: v.update(extra=1), "expected the keys schema and sections"),
        (lambda v: v["sections"].update({"../x": {}}), "is no name of a section"),
        (lambda v: v["sections"].update(table={}), "table: expected the keys numbers"),
        (
            lambda v: v["sections"]["table"].update(numbers=True),
            "table: numbers: expected a version such as 1, found True",
        ),
        (
            lambda v: v["sections"]["table"].update(presentation=0),
            "table: presentation: expected a version such as 1, found 0",
        ),
    ],
)
def test_a_damaged_list_is_named(
    bundle: Path, spoil: Callable[[dict[str, Any]], Any], said: str
) -> None:
    write_listing(bundle, spoil)
    (finding,) = verify_bundle(bundle).findings
    assert finding.file == "sections.json"
    assert said in finding.what


# --- the command ----------------------------------------------------------------------


def test_the_verdict_counts_what_was_rederived(
    current: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(current), "--strict"]) == 0
    assert capsys.readouterr().out.endswith(
        ": verified: 23 of 23 sections re-derived\n"
    )
    plant(monkeypatch, numbers=2)
    assert main(["verify", str(current)]) == 0
    said = capsys.readouterr().out
    assert "losses: not re-derived: method 1, this is 2\n" in said
    assert said.endswith(": verified: 22 of 23 sections re-derived\n")
    assert main(["verify", str(current), "--strict"]) == 1
    said = capsys.readouterr().out
    assert said.endswith(": not verified (--strict): 22 of 23 sections re-derived\n")
    assert main(["verify", str(current), "--strict", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verified"], told["sections_rederived"]) == (False, 22)
    assert len(told["sections"]) == 23
    (lacking,) = (one for one in told["sections"] if not one["rederived"])
    assert lacking["name"] == "losses"
    assert lacking["notes"][0] == "not re-derived: method 1, this is 2"
