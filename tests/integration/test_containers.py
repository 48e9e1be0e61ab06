"""Cells in real images, through the workflow, as an ordinary user."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from conftest import Project, copy_project, find_images
from evidence import read_table
from rankbench.own_files import hash_file

pytestmark = pytest.mark.integration

# Each backend runs in its image, and gloo also in the image of mpi, so that like is
# compared with like.
EXPERIMENT = """
name: inside
model: ./net.py
data: ./corpus.py
batch_size: 16
topology: 1x2
launches: 1
steps: 4
warmup: 1
time_limit: 120
gate: false
blocks:
  - strategy: [ddp, horovod]
    backend: [gloo, mpi]
  - strategy: ddp
    image: mpi
    launcher: spawn
  - strategy: [deepspeed, rpc_pmp]
  - samples_per_step: 32
    script: ./data_parallel.py
  - samples_per_step: 32
    script: ./horovod_loop.py
    launcher: horovodrun
    backend: mpi
"""

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
PAGE = (SCRIPTS.parents[1] / "docs/experiments.md").read_text()

SITE = """
software: container
image_dir: {images}
exclusive: true
"""

ONE = """
name: one
strategy: ddp
gate: false
model: lenet
data: synthetic
batch_size: 16
topology: 1x2
launches: 1
steps: 4
warmup: 1
time_limit: 120
"""


def make_project(root: Path, digits: Path, user: list[str], images: Path) -> Project:
    """A copy of the project that the ordinary user owns, with these images."""
    root.mkdir()
    project = copy_project(root)
    project.user = user
    (root / "data").mkdir()
    shutil.copy(digits, root / "data/digits.npz")
    (root / "local_profile/site.yaml").write_text(SITE.format(images=images))
    for path in (root, *root.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    return project


def read_records(root: Path, name: str) -> dict[str, dict]:
    found = (root / f"results/{name}/records").glob("*/1/1/record.json")
    records = [json.loads(path.read_text()) for path in found]
    return {record["cell_id"]: record for record in records}


@pytest.fixture(scope="module")
def images() -> Path:
    """Folder of the built images."""
    return find_images("gloo-cpu", "mpi-cpu")


@pytest.fixture(scope="module")
def inside(
    open_tmp: Path, digits_file: Path, ordinary_user: list[str], images: Path
) -> Path:
    """The experiment, measured once."""
    project = make_project(open_tmp / "inside", digits_file, ordinary_user, images)
    project.add_own_files()
    for name in ("data_parallel", "horovod_loop"):
        shutil.copy(SCRIPTS / f"{name}.py", project.root)
    project.measure(EXPERIMENT)
    return project.root


def test_every_backend_trains_in_its_image(inside):
    rows = read_table(inside, "inside")
    states = {
        (row["strategy"], row["backend"], row["launcher"]): row["status"]
        for row in rows.values()
    }
    assert states == {
        ("ddp", "gloo", "torchrun"): "ok",
        ("ddp", "gloo", "spawn"): "ok",  # This cell runs in the image of mpi.
        ("ddp", "mpi", "mpirun"): "ok",
        ("horovod", "gloo", "horovodrun"): "ok",
        ("horovod", "mpi", "horovodrun"): "ok",
        ("deepspeed", "gloo", "deepspeed"): "ok",
        ("rpc_pmp", "tensorpipe", "torchrun"): "ok",
        ("data_parallel", "gloo", "torchrun"): "ok",
        ("horovod_loop", "mpi", "horovodrun"): "ok",
    }
    text = (inside / "results/inside/table.md").read_text()
    # Rows ran different builds, so the table has a column for it.
    assert "| 2.13.0+cpu |" in text
    assert "| 2.6.0" in text


def test_records_name_the_image_that_they_ran_in(inside, images):
    ran_in = {}
    for cell_id, record in read_records(inside, "inside").items():
        image = record["image"]
        sidecar = json.loads((images / f"{image['name']}.json").read_text())
        assert image == {key: sidecar[key] for key in ("name", "recipe", "sha256")}
        torch = record["software"]["torch"].partition("+")[0]
        assert sidecar["facts"]["torch"].startswith(torch)
        ran_in[cell_id] = image["name"]
    in_mpi = [cell_id for cell_id, name in ran_in.items() if name == "mpi-cpu"]
    assert {cell_id.split(".")[1] for cell_id in in_mpi} == {"mpi", "gloo"}


def test_nothing_of_the_host_comes_in_but_what_is_named(inside):
    for record in read_records(inside, "inside").values():
        launcher = record["launcher"]
        assert launcher["argv"][:3] == ["apptainer", "--quiet", "exec"]
        assert not {"HOME", "PATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH"} & set(
            launcher["env"]
        )
        assert launcher["env"]["PYTHONNOUSERSITE"] == "1"
        source = launcher["env"]["PYTHONPATH"]
        # The frozen copy of the code is read-only.
        assert source.startswith(str(inside / "results/inside/work/code"))
        assert f"--bind={source}:{source}:ro" in launcher["argv"]
        assert "--nv" not in launcher["argv"]


def test_another_image_makes_rows_stale_and_a_changed_file_runs_nothing(
    open_tmp, digits_file, ordinary_user, images
):
    own = open_tmp / "own-images"
    own.mkdir()
    own.chmod(0o777)
    sif = own / "gloo-cpu.sif"
    try:
        os.link(images / sif.name, sif)
    except OSError:
        shutil.copy(images / sif.name, sif)
    sidecar = json.loads((images / "gloo-cpu.json").read_text())
    (own / "gloo-cpu.json").write_text(json.dumps(sidecar))
    # Another user owns the images, so nothing may be written where nothing is built.
    own.chmod(0o555)
    project = make_project(open_tmp / "stale", digits_file, ordinary_user, own)
    project.measure(ONE)
    (row,) = read_table(project.root, "one").values()
    assert row["status"] == "ok"

    # A later build of the same definition has other packages, so other bytes.
    own.chmod(0o777)
    sif.unlink()
    shutil.copy(images / sif.name, sif)
    with open(sif, "ab") as file:
        file.write(bytes(4096))
    (own / "gloo-cpu.json").write_text(
        json.dumps({**sidecar, "sha256": hash_file(sif)})
    )
    before = set((project.root / "results/one/records").rglob("record.json"))
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    (row,) = read_table(project.root, "one").values()
    # The row is stale, so it is measured as a new attempt; the other one stays.
    assert (row["status"], row["attempt"]) == ("ok", "2")
    assert before < set((project.root / "results/one/records").rglob("record.json"))

    # A different file with the same name and sidecar must not run.
    with open(sif, "ab") as file:
        file.write(bytes(4096))
    tampered = project.snakemake("experiment=experiment.yaml", "rerun=" + row["cell"])
    assert "is not the file that was verified" in tampered.stdout
    assert "restore the right file" in tampered.stdout


def test_native_rows_and_those_of_images_never_stand_in_one_table(
    open_tmp, digits_file, ordinary_user, images
):
    project = make_project(open_tmp / "native", digits_file, ordinary_user, images)
    site = project.root / "local_profile/site.yaml"
    site.write_text("software: native\n")
    project.measure(ONE)
    (row,) = read_table(project.root, "one").values()
    assert row["status"] == "ok"
    site.write_text(SITE.format(images=images))
    cells = project.rankbench("run", "-n", "experiment.yaml").stdout
    assert row["cell"] in cells  # The cell is the same.
    status = project.rankbench("status", "experiment.yaml").stdout
    assert status.startswith("stale")


def test_the_images_that_the_documents_compare_are_probed_once(
    open_tmp, digits_file, ordinary_user, images
):
    """Images that are there already, named as those of somebody else would be."""
    own = open_tmp / "named-images"
    own.mkdir()
    own.chmod(0o777)
    project = make_project(open_tmp / "named", digits_file, ordinary_user, own)
    (text,) = re.findall(r"^```yaml\n(name: builds\n.*?)^```$", PAGE, re.M | re.S)
    for old, new in (
        ("images/", f"{images}/"),
        ("launches: 12", "launches: 1\ngate: false"),
        ("launcher: spawn", "launcher: [spawn, mpirun]"),
    ):
        assert old in text
        text = text.replace(old, new)
    project.experiment(text)
    cells = project.rankbench("run", "-n", "experiment.yaml").stdout
    assert "debian was not probed yet" in cells
    assert not any(own.iterdir())

    project.measure(text)
    sidecars = [own / f"{name}.given.json" for name in ("debian", "wheels")]
    before = [path.read_bytes() for path in sidecars]
    rows = {
        (row["launcher"], row["image"]): row
        for row in read_table(project.root, "builds").values()
    }
    assert {key: (row["status"], row["torch"]) for key, row in rows.items()} == {
        ("spawn", "debian"): ("ok", "2.6.0+debian"),
        ("spawn", "wheels"): ("ok", "2.13.0+cpu"),
        ("mpirun", "debian"): ("ok", "2.6.0+debian"),
        ("mpirun", "wheels"): ("unsupported", ""),
    }
    assert rows["mpirun", "wheels"]["reason"] == "the image wheels has no mpirun"
    between = ("--between", "image=wheels,debian")
    said = project.rankbench("compare", "results/builds", *between)
    assert "image=debian" in said.stdout

    # Nothing is probed again, and no rows become stale.
    project.measure(text)
    assert [path.read_bytes() for path in sidecars] == before
    attempts = {row["attempt"] for row in read_table(project.root, "builds").values()}
    assert attempts <= {"1", ""}
