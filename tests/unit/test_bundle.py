"""Bundles: the same results give the same bytes, and every change is found."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from rankbench.cli import main
from rankbench.record import GATE, Layout
from rankbench.results.bundle import unpack, verify_bundle, write_bundle
from rankbench.results.read.archive import open_results
from unit.synthetic import edited, write_example, write_profile

pytestmark = pytest.mark.unit

TABLES = ("table.csv", "table.md", "table.html", "report.html", "sections/loading.csv")
RECORD = "records/ddp.gloo.1x2.convnet.digits/1/3/record.json"
STEPS, LOG = (RECORD.replace("record.json", n) for n in ("steps.npz", "rank0.log"))


def write_results(root: Path) -> Layout:
    """A result directory with gates, logs, a profile, frozen code."""
    layout = write_example(root)
    cells = json.loads(layout.plan.read_text())["cells"]
    write_profile(layout, cells[1])
    for place in layout.records.glob("*/1/[1-6]"):
        (place / "rank0.log").write_text("it went well\n")
        (place / "claim.json").write_text("{}")
    for cell in cells[:4]:
        gate = layout.attempt(cell["id"], 1) / GATE / "1"
        gate.mkdir(parents=True)
        (gate / "record.json").write_text(
            '{"schema": 1, "status": "ok", "reason": null, "gate": {}}'
        )
        layout.log(cell["id"]).parent.mkdir(exist_ok=True)
        layout.log(cell["id"]).write_text("launch 1 ok\n")
    containers = root / "work/code" / ("a" * 16) / "containers"
    containers.mkdir(parents=True)
    (containers / "gloo.def").write_text("Bootstrap: docker\n")
    rank = json.loads(layout.plan.read_text())["code"]["rank"]
    (containers.parent / "code.json").write_text(json.dumps({"rank": rank}))
    return layout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return write_results(tmp_path_factory.mktemp("results") / "quickstart")


@pytest.fixture(scope="module")
def made(results: Layout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle as a folder, and beside it as an archive."""
    place = tmp_path_factory.mktemp("bundles")
    write_bundle(results, place / "bundle", anonymise=False)
    write_bundle(results, place / "results.tar.zst", anonymise=False)
    return place


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy of the bundle, which a test may damage."""
    return shutil.copytree(made / "bundle", tmp_path / "bundle")


def seal(bundle: Path) -> None:
    """Make the manifest agree with whatever was changed."""
    files = {}
    for path in sorted(p for p in bundle.rglob("*") if p.is_file()):
        name = path.relative_to(bundle).as_posix()
        if name != "manifest.json":
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            files[name] = {"sha256": digest, "bytes": len(data)}
    ordered = dict(sorted(files.items()))
    text = json.dumps({"schema": 1, "files": ordered}, indent=1)
    (bundle / "manifest.json").write_text(text + "\n")


def said(bundle: Path) -> str:
    return "\n".join(map(str, verify_bundle(bundle).findings))


def files_of(bundle: Path) -> dict[str, bytes]:
    return {
        path.relative_to(bundle).as_posix(): path.read_bytes()
        for path in bundle.rglob("*")
        if path.is_file()
    }


def test_a_bundle_has_what_was_measured_and_what_follows(made):
    names = files_of(made / "bundle").keys()
    whole = {"plan.json", "experiment.yaml", "about.json", "CITATION.cff"}
    plots = {f"plots/{n}.{s}" for n in ("scaling", "curves") for s in ("csv", "svg")}
    assert {RECORD, STEPS, LOG, *whole, *plots, *TABLES} < names
    assert f"work/code/{'a' * 16}/containers/gloo.def" in names
    assert "plots/profile-ddp.gloo.1x1.convnet.digits.csv" in names
    assert not [name for name in names if "claim" in name]


def test_a_bundle_verifies_as_a_folder_and_as_an_archive(made):
    assert verify_bundle(made / "bundle").findings == []
    assert verify_bundle(made / "results.tar.zst").findings == []


def test_the_archive_unpacks_to_the_folder(made, tmp_path):
    (tmp_path / "into").mkdir()
    unpack(made / "results.tar.zst", tmp_path / "into")
    assert files_of(tmp_path / "into") == files_of(made / "bundle")


def test_the_same_results_give_the_same_bytes(results, made, tmp_path):
    copy = shutil.copytree(results.root, tmp_path / "elsewhere" / "other")
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    write_bundle(Layout(copy), tmp_path / "again.tar.zst", anonymise=False)
    first, second = made / "results.tar.zst", tmp_path / "again.tar.zst"
    assert first.read_bytes() == second.read_bytes()


def test_tables_are_those_of_the_result_directory(results, made, tmp_path):
    copy = shutil.copytree(results.root, tmp_path / "copy")
    assert main(["table", str(copy)]) == 0
    for name in TABLES:
        assert (made / "bundle" / name).read_bytes() == (copy / name).read_bytes()


# --- edits of which the manifest knows nothing --------------------------------------


def test_a_digit_anywhere_is_found(bundle):
    """One byte at a time, at random places of random files."""
    random_ = random.Random(6)
    names = sorted(files_of(bundle))
    chosen = [*random_.sample(names, 12), "manifest.json", "about.json", "table.csv"]
    for name in chosen:
        path = bundle / name
        data = path.read_bytes()
        digits = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
        if not digits:
            continue
        place = random_.choice(digits)
        changed = bytearray(data)
        changed[place] = 48 + (data[place] - 48 + random_.randint(1, 9)) % 10
        path.write_bytes(changed)
        findings = verify_bundle(bundle).findings
        path.write_bytes(data)
        assert findings, (name, place)
        if name != "manifest.json":
            assert name in [finding.file for finding in findings], (name, findings)
    assert verify_bundle(bundle).findings == []


def test_every_digit_of_the_manifest_counts(bundle):
    from rankbench.results.bundle.manifest import check_manifest

    path = bundle / "manifest.json"
    text = path.read_text()
    places = [match.start() for match in re.finditer(r"\d", text)]
    for place in random.Random(6).sample(places, 200):
        digit = str((int(text[place]) + 1) % 10)
        path.write_text(text[:place] + digit + text[place + 1 :])
        assert check_manifest(bundle), (place, text[place - 20 : place + 20])


def test_a_byte_of_the_archive_is_found(made, tmp_path):
    data = (made / "results.tar.zst").read_bytes()
    path = tmp_path / "results.tar.zst"
    random_ = random.Random(6)
    digits = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    for place in random_.sample(digits, 25):
        changed = bytearray(data)
        changed[place] = 48 + (data[place] - 48 + random_.randint(1, 9)) % 10
        path.write_bytes(changed)
        assert "results.tar.zst" in said(path), place


@pytest.mark.parametrize("size", [20, 1000, -1])
def test_a_truncated_archive_is_damaged(made, tmp_path, size):
    path = tmp_path / "results.tar.zst"
    path.write_bytes((made / "results.tar.zst").read_bytes()[:size])
    assert "is damaged" in said(path)


def test_a_published_number_is_found_with_its_place(bundle):
    path = bundle / "table.csv"
    rows = path.read_text().splitlines()
    number = rows[0].split(",").index("throughput")
    cells = rows[3].split(",")
    was, cells[number] = cells[number], "9999"
    rows[3] = ",".join(cells)
    path.write_text("\n".join(rows) + "\n")
    seal(bundle)
    (finding,) = verify_bundle(bundle).findings
    assert finding.file == "table.csv"
    assert finding.where == f"row 4 of {cells[1]}, column throughput"
    assert finding.what == f"published '9999', made anew '{was}'"


# --- edits that somebody has put into the manifest, too -----------------------------


def edit_record(bundle: Path) -> None:
    path = bundle / RECORD
    with edited(path) as record:
        for rank in record["ranks"]:
            rank["window_s"] /= 3


def edit_steps(bundle: Path) -> None:
    shutil.copy(bundle / STEPS.replace("/3/", "/4/"), bundle / STEPS)


def remove_launch(bundle: Path) -> None:
    shutil.rmtree((bundle / RECORD).parent)


def remove_cell_from_the_plan(bundle: Path) -> None:
    with edited(bundle / "plan.json") as plan:
        del plan["cells"][2]


def edit_page(bundle: Path) -> None:
    path = bundle / "table.html"
    path.write_text(path.read_text().replace("SIGSEGV", "SIGKILL"))


def edit_plot_data(bundle: Path) -> None:
    path = bundle / "plots/curves.csv"
    path.write_text(path.read_text().replace("2.3", "2.4", 1))


def remove_plot(bundle: Path) -> None:
    (bundle / "plots/scaling.svg").unlink()


def damage_record(bundle: Path) -> None:
    (bundle / RECORD).write_text('{"schema": 1, "status": NaN}')


def pickle_steps(bundle: Path) -> None:
    np.savez(bundle / STEPS, **{"rank0/seconds": np.array([print], dtype=object)})


def link_log(bundle: Path) -> None:
    log = bundle / LOG
    log.unlink()
    log.symlink_to(bundle / "plan.json")


def add_file(bundle: Path) -> None:
    (bundle / "evil.html").write_text("<script>alert(1)</script>")


def edit_experiment(bundle: Path) -> None:
    (bundle / "experiment.yaml").write_text("name: another\n")


def edit_about(bundle: Path) -> None:
    path = bundle / "about.json"
    path.write_text(path.read_text().replace("Example CPU", "Faster CPU"))


@pytest.mark.parametrize(
    ("edit", "file", "where"),
    [
        (edit_record, "table.csv", "ddp.gloo.1x2.convnet.digits, column throughput"),
        (edit_steps, "plots/phases.csv", "column ms"),
        (remove_launch, "table.csv", "column status"),
        (remove_cell_from_the_plan, "table.csv", "row 4"),
        (edit_page, "table.html", "line"),
        (edit_plot_data, "plots/curves.csv", "row 2"),
        (remove_plot, "plots/scaling.svg", ""),
        (add_file, "evil.html", ""),
        (damage_record, RECORD, ""),
        (pickle_steps, STEPS, ""),
        (link_log, LOG, ""),
        (edit_experiment, "experiment.yaml", ""),
        (edit_about, "about.json", "hosts"),
    ],
)
def test_a_sealed_edit_is_found(bundle, edit, file, where):
    edit(bundle)
    seal(bundle)
    findings = [one for one in verify_bundle(bundle).findings if one.file == file]
    assert findings
    assert any(where in finding.where for finding in findings), findings


# --- as results ----------------------------------------------------------------------


def test_a_bundle_is_opened_as_results(made):
    with open_results(made / "results.tar.zst") as root:
        assert (root / "plan.json").exists()
        assert (root / RECORD).exists()
    assert not root.exists()
    with open_results(made / "bundle") as root:
        assert root == made / "bundle"


# --- the command --------------------------------------------------------------------


def test_the_command_tells_by_its_status(bundle, cli):
    assert "verified" in cli("verify", bundle).out
    (bundle / "table.md").write_text("no table")
    told = json.loads(cli("verify", bundle, "--json", status=1).out)
    assert told["verified"] is False
    assert told["findings"][0]["file"] == "table.md"
    for other in (bundle / "nothing", bundle / "records", bundle / "table.md"):
        assert cli("verify", other, status=2).err.startswith("rankbench: ")


# --- where it is written ------------------------------------------------------------


def test_a_folder_is_not_replaced(results, tmp_path):
    (tmp_path / "thesis.txt").write_text("five years of work")
    with pytest.raises(FileExistsError):
        write_bundle(results, tmp_path, anonymise=False)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_results_without_their_experiment_file_are_not_published(tmp_path):
    layout = write_example(tmp_path / "results")
    layout.experiment.write_text("name: another\n")
    with pytest.raises(ValueError, match=r"config\.yaml is not the file that .* was"):
        write_bundle(layout, tmp_path / "bundle", anonymise=False)
    assert not (tmp_path / "bundle").exists()
