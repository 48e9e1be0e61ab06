"""Bundles: the same results give the same bytes, and say how they are checked."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path

import matplotlib
import pytest

from rankbench import __version__
from rankbench.cli import main
from rankbench.record import BILL, GATE, Layout
from rankbench.results.bundle.verify import find_differences, verify_bundle
from rankbench.results.bundle.write import write_bundle
from rankbench.results.read import archive
from rankbench.results.read.archive import unpack
from rankbench.results.sections import METHOD
from unit.synthetic import (
    plan_one,
    write_example,
    write_launch,
    write_own_model,
    write_profile,
)

pytestmark = pytest.mark.unit

TABLES = ("table.csv", "table.md", "table.html", "report.html", "sections/phases.csv")
WHEEL = f"work/code/rankbench-{__version__}-py3-none-any.whl"
RECORD = "records/ddp.gloo.1x2.convnet.digits/1/3/record.json"
STEPS, LOG = (RECORD.replace("record.json", n) for n in ("steps.npz", "rank0.log"))


def write_results(root: Path) -> Layout:
    """A result directory with gates, logs, a profile, frozen code."""
    layout = write_example(root)
    plan = json.loads(layout.plan.read_text())
    cells = plan["cells"]
    write_profile(layout, cells[1])
    sidecar = root.parent / "images/gloo-cpu.json"
    sidecar.parent.mkdir()
    for path in (sidecar, sidecar.with_suffix(BILL)):
        path.write_text(json.dumps({"sha256": "0" * 64}))
    image = {"sidecar": str(sidecar), "sha256": "0" * 64, "recipe": "r"}
    layout.plan.write_text(json.dumps({**plan, "images": {"gloo-cpu": image}}))
    for place in layout.records.glob("*/1/[1-6]"):
        (place / "rank0.log").write_text("it went well\n")
        (place / "claim.json").write_text("{}")
    passed = '{"schema": 1, "status": "ok", "reason": null, "gate": {}}'
    copy = root / "work/code" / ("a" * 16)
    files = {
        **{
            layout.attempt(c["id"], 1) / GATE / "1/record.json": passed
            for c in cells[:4]
        },
        **{layout.log(cell["id"]): "launch 1 ok\n" for cell in cells[:4]},
        copy / "containers/gloo.def": "Bootstrap: docker\n",
        copy / "code.json": json.dumps({"rank": plan["code"]["rank"]}),
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # As rankbench makes it: such a link is neither published nor refused.
    assets = copy / "src/rankbench/assets"
    assets.mkdir(parents=True)
    (assets / "containers").symlink_to("../../../containers")
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


def files_of(bundle: Path) -> dict[str, bytes]:
    return {
        path.relative_to(bundle).as_posix(): path.read_bytes()
        for path in bundle.rglob("*")
        if path.is_file()
    }


def test_a_bundle_has_what_was_measured_and_what_follows(made, tmp_path):
    files = files_of(made / "bundle")
    whole = {"plan.json", "work/experiment.yaml", "about.json", "CITATION.cff"}
    plots = {f"plots/{n}.{s}" for n in ("scaling", "curves") for s in ("png", "svg")}
    assert {RECORD, STEPS, LOG, "SHA256SUMS", *whole, *plots, *TABLES} < files.keys()
    assert {"images/gloo-cpu.json", "images/gloo-cpu.cdx.json"} < files.keys()
    assert f"work/code/{'a' * 16}/containers/gloo.def" in files
    assert "plots/profile-ddp.gloo.1x1.convnet.digits.svg" in files
    assert not [name for name in files if "claim" in name or "assets" in name]
    about = json.loads(files["about.json"])["made_with"]
    assert (about["rankbench"], about["method"]) == (__version__, METHOD)
    with zipfile.ZipFile(made / "bundle" / WHEEL) as wheel:
        names = wheel.namelist()
    assert {"rankbench/cli.py", "rankbench/results/sections/table.py"} <= {*names}
    assert "rankbench/assets/workflow/schemas/record.schema.yaml" in names
    assert not [one for one in names if one.endswith(".pyc") or "profile/" in one]


def test_both_forms_verify_and_say_what_was_not_checked(made, cli, tmp_path):
    for form in ("bundle", "results.tar.zst"):
        first, *lines = cli("verify", "--strict", made / form).out.splitlines()
        assert first == f"{made / form}: verified: its numbers were derived again"
        assert lines[0] == "the bundle is not signed"
        (unchecked,) = lines[1:]
        for kind in ("work/code/* (", "plots/*.svg", "records/*.log"):
            assert kind in unchecked
    told = json.loads(cli("verify", made / "bundle", "--json").out)
    assert (told["verified"], told["rederived"], told["why"]) == (True, True, "")
    (tmp_path / "into").mkdir()
    unpack(made / "results.tar.zst", tmp_path / "into")
    assert files_of(tmp_path / "into") == files_of(made / "bundle")
    for other in (made / "nothing", made / "bundle/records", made / "bundle/table.md"):
        assert cli("verify", other, status=2).err.startswith("rankbench: ")
    for form, is_copy in (("bundle", False), ("results.tar.zst", True)):
        with archive.open_results(made / form) as root:
            assert (root / RECORD).exists()
            assert (root != made / form) == is_copy
        assert root.exists() != is_copy


def test_the_same_results_give_the_same_bytes(results, made, tmp_path):
    copy = shutil.copytree(results.root, tmp_path / "elsewhere/other", symlinks=True)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    with matplotlib.rc_context({"savefig.facecolor": "red", "font.size": 30}):
        write_bundle(Layout(copy), tmp_path / "again.tar.zst", anonymise=False)
    first, second = made / "results.tar.zst", tmp_path / "again.tar.zst"
    assert first.read_bytes() == second.read_bytes()
    assert main(["table", str(copy)]) == 0
    for name in (*TABLES, "answer.json", "plots/scaling.svg", "plots/scaling.png"):
        assert (made / "bundle" / name).read_bytes() == (copy / name).read_bytes()


def test_a_published_number_is_found_with_its_place(made, tmp_path):
    bundle = shutil.copytree(made / "bundle", tmp_path / "bundle")
    path = bundle / "table.csv"
    header, *rows = path.read_text().splitlines()
    number, cells = header.split(",").index("throughput"), rows[2].split(",")
    was, cells[number] = cells[number], "9999"
    rows[2] = ",".join(cells)
    path.write_text("\n".join([header, *rows]) + "\n")
    _, finding = verify_bundle(bundle).findings
    assert finding.where == f"row 4 of {cells[1]}, column throughput"
    assert finding.what == f"published '9999', made anew '{was}'"


def test_a_row_may_only_have_another_number_of_columns():
    (finding,) = find_differences("a.csv", b"a,b\n1\n", b"a,b\n1,\n")
    assert finding.where == "row 2, column b"


def test_their_own_files_are_neither_executed_nor_compiled(tmp_path):
    layout = write_own_model(tmp_path)
    (net,) = layout.root.rglob("net.py")
    (net.parent / "__pycache__").mkdir()
    (net.parent / "__pycache__/net.pyc").write_text("compiled")
    write_bundle(layout, tmp_path / "bundle", anonymise=True)
    assert not verify_bundle(tmp_path / "bundle").findings
    assert not (tmp_path / "executed").exists()
    assert len(list(tmp_path.glob("bundle/**/net.py*"))) == 1


def test_what_is_packed_is_unpacked(tmp_path, monkeypatch):
    """A long name and one of other letters have headers of their own."""
    names = ["a.json", "long/" * 60 + "b.json", "sub/ü.json"]
    for name in names:
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(name * 100)
    archive.pack(tmp_path / "root", names, tmp_path / "x.tar.zst")
    (tmp_path / "into").mkdir()
    archive.unpack(tmp_path / "x.tar.zst", tmp_path / "into")
    assert all((tmp_path / "into" / name).read_text() == name * 100 for name in names)
    monkeypatch.setattr(archive, "MAX_FILES", 2)
    (tmp_path / "again").mkdir()
    with pytest.raises(archive.DamagedFileError, match="more than 2 files"):
        archive.unpack(tmp_path / "x.tar.zst", tmp_path / "again")


def test_nothing_is_replaced_or_written_by_halves(tmp_path):
    layout, planned = plan_one(tmp_path / "results", "single")
    write_launch(layout, planned, wanted=1)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/thesis.txt").write_text("five years of work")
    with pytest.raises(FileExistsError):
        write_bundle(layout, tmp_path / "thesis", anonymise=False)
    assert os.listdir(tmp_path / "thesis") == ["thesis.txt"]
    layout.experiment.write_text("name: another\n")
    with pytest.raises(ValueError, match=r"config\.yaml is not the file that .* was"):
        write_bundle(layout, tmp_path / "bundle", anonymise=False)
    assert not (tmp_path / "bundle").exists()


def test_publish_says_first_whom_the_bundle_names(tmp_path, cli):
    layout, planned = plan_one(tmp_path / "results", "single")
    own = {"HF_TOKEN": "hf_abcdefgh", "USER": "jdoe"}
    launcher = {"name": "spawn", "argv": [], "env": own}
    write_launch(layout, planned, wanted=1, launcher=launcher)
    said = cli("publish", layout.root).err
    assert "the bundle: it names hosts: node1 (--anonymise replaces them)" in said
    assert "it names users: " in said
    assert "HF_TOKEN in records/" in said
    assert cli("publish", "--anonymise", layout.root).err == ""
