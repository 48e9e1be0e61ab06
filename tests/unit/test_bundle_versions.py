"""Bundles of other versions of rankbench: what is checked, and what is reported."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from rankbench import __version__
from rankbench.results.bundle import verify_bundle, write_bundle
from rankbench.results.sections import METHOD
from unit.synthetic import edited
from unit.test_bundle import seal, write_results

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("versions")
    write_bundle(write_results(place / "results"), place / "bundle", anonymise=False)
    return place / "bundle"


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy of a bundle, which a test may damage."""
    return shutil.copytree(made, tmp_path / "bundle")


def set_maker(bundle: Path, **maker: Any) -> None:
    path = bundle / "about.json"
    with edited(path) as about:
        about["made_with"] |= maker
    seal(bundle)


def edit(bundle: Path, name: str) -> None:
    """Change the last row, and make the manifest agree."""
    path = bundle / name
    path.write_text(path.read_text().rstrip() + "9\n")
    seal(bundle)


def test_a_bundle_names_and_contains_what_made_it(made, tmp_path):
    about = json.loads((made / "about.json").read_text())["made_with"]
    assert (about["rankbench"], about["method"]) == (__version__, METHOD)
    packed = (made / "code/rankbench.tar.zst").read_bytes()
    (tmp_path / "code.tar").write_bytes(zstandard.decompress(packed))
    with tarfile.open(tmp_path / "code.tar") as archive:
        names = archive.getnames()
    assert {"rankbench/cli.py", "rankbench/results/sections/table.py"} <= {*names}
    assert "rankbench/assets/workflow/schemas/record.schema.yaml" in names
    assert not [one for one in names if one.endswith(".pyc") or "profile/" in one]


def test_numbers_of_another_method_are_not_compared(bundle, cli):
    set_maker(bundle, rankbench="0.0.7", method=METHOD + 1)
    edit(bundle, "table.csv")
    (bundle / "sections/gravity.csv").write_text("cell,newtons\n")
    seal(bundle)
    said = cli("verify", bundle).out
    assert "install rankbench 0.0.7" in said
    assert "its numbers were not derived again" in said
    told = json.loads(cli("verify", bundle, "--strict", "--json", status=1).out)
    assert (told["verified"], told["rederived"]) == (False, False)


@pytest.mark.parametrize("method", [METHOD, METHOD + 1])
@pytest.mark.parametrize("name", ["evil.js", "a/table.csv", "plots/a/b.csv"])
def test_a_file_that_no_version_makes_is_refused(bundle, method, name):
    (bundle / name).parent.mkdir(parents=True, exist_ok=True)
    (bundle / name).write_text("")
    set_maker(bundle, rankbench="0.0.7", method=method)
    assert [one.file for one in verify_bundle(bundle).findings] == [name]


def test_another_presentation_is_said_and_its_numbers_are_compared(bundle):
    (bundle / "answer.md").write_text("as an older rankbench shows it")
    set_maker(bundle, rankbench="0.0.7")
    found = verify_bundle(bundle)
    assert (found.rederived, found.findings) == (True, [])
    assert ["0.0.7" in note for note in found.notes] == [True]
    edit(bundle, "sections/loading.csv")
    (finding,) = verify_bundle(bundle).findings
    assert finding.file == "sections/loading.csv"


def test_records_of_another_method_are_checked(bundle):
    set_maker(bundle, method=METHOD + 1)
    record = next(bundle.rglob("record.json"))
    record.write_text("{}")
    seal(bundle)
    (finding,) = verify_bundle(bundle).findings
    assert finding.file == record.relative_to(bundle).as_posix()


@pytest.mark.parametrize("maker", [{"method": "1"}, {"rankbench": None}])
def test_a_damaged_maker_is_named(bundle, maker):
    set_maker(bundle, **maker)
    (finding,) = verify_bundle(bundle).findings
    assert finding.file == "about.json"
    assert "made_with.method" in finding.what


@pytest.mark.parametrize(
    "name", ["table.csv", "sections/losses.csv", "plots/scaling.csv"]
)
def test_numbers_that_are_missing_or_changed_are_named(bundle, name):
    edit(bundle, name)
    assert {one.file for one in verify_bundle(bundle).findings} == {name}
    (bundle / name).unlink()
    seal(bundle)
    (finding,) = verify_bundle(bundle).findings
    assert str(finding) == f"{name}: is missing: it follows from the records"
