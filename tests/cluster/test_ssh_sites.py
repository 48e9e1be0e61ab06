"""Sites of hosts that ssh reaches: copies, images, studies, bundles, bad input."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from desks import Desk
from pretend_host import INTERFACE
from pretend_sshd import command_on, home_of, home_there
from test_ssh_site_check import host

from conftest import MACHINE_LOCK, find_images
from rankbench.results.bundle.verify import verify_bundle
from rankbench.results.read.archive import unpack

pytestmark = pytest.mark.cluster

SHORT = """
model: lenet
topology: 2x1
launches: 1
repeat_disturbed: false
steps: 3
gate: false
time_limit: 120
"""
DDP = "ddp.gloo.2x1.lenet.digits"


@pytest.fixture
def desk(apart_desk: Desk) -> Iterator[Desk]:
    yield apart_desk
    apart_desk.write_site()


@pytest.mark.long
def test_a_host_without_packages_gets_a_copy(desk):
    bare = desk.cluster.hosts["node3"]
    bare.do("mount", "-t", "tmpfs", "tmpfs", sys.prefix)
    desk.write_site([host("node1"), host("node3")])
    try:
        first = desk.measure(f"name: copied\nstrategy: ddp{SHORT}", "copied")
        second = desk.measure(f"name: again\nstrategy: deepspeed{SHORT}", "again")
    finally:
        bare.do("umount", sys.prefix)
    assert "copying Python's packages (" in first
    assert "copying" not in second
    for name in ("copied", "again"):
        ((record,),) = desk.records(name).values()
        assert record["status"] == "ok"
        assert [rank["host"] for rank in record["ranks"]] == ["node1", "node3"]


@pytest.fixture(scope="module")
def images(apart_desk: Desk) -> Path:
    """Images in a folder that hosts of the cluster see; the desk's user owns it."""
    folder = find_images("gloo-cpu", "mpi-cpu")
    place = apart_desk.cluster.state.parent / "images"
    place.mkdir()
    for name in ("gloo-cpu", "mpi-cpu"):
        for suffix in ("sif", "json"):
            shutil.copy(folder / f"{name}.{suffix}", place)
    for path in (place, *place.iterdir()):
        shutil.chown(path, apart_desk.cluster.user)
    return place


def test_images_are_copied_once_and_compared(desk, images):
    desk.write_site(facts=f"image_dir: {images}\n")
    site = desk.project.root / "ssh_profile/site.yaml"
    site.write_text(site.read_text().replace("native", "container"))
    cells = "strategy: ddp\nbackend: [gloo, mpi]"
    said = desk.measure(f"name: images\n{cells}{SHORT}", "images")
    assert said.count("copying gloo-cpu.sif") == 2, said
    records = [record for found in desk.records("images").values() for record in found]
    assert {record["status"] for record in records} == {"ok"}, said
    assert {record["cell"]["backend"] for record in records} == {"gloo", "mpi"}
    assert "copying" not in desk.measure(f"name: twice\n{cells}{SHORT}", "twice")

    folder = home_of(desk.cluster, desk.cluster.hosts["node2"]) / ".cache/rankbench"
    (copy, *_) = sorted((folder / "images").glob("*.sif"))
    with open(copy, "r+b") as file:
        file.seek(4096)
        file.write(b"changed")
    said = desk.rankbench("check", *desk.experiment("images"), status=1)
    assert "FAULT node2: " in said
    assert f"{copy.name} is another image (sha256 " in said
    copy.unlink()


def test_a_bundle_without_names(desk, tmp_path):
    desk.project.add_own_files()
    own = SHORT.replace("model: lenet", "model: ./net.py\ndata: ./corpus.py")
    text = f"name: bundle\nhosts: [node3, node1]\nstrategy: ddp{own}"
    desk.write_site([host("node1"), host("node3")])
    desk.measure(text, "bundle")
    ((record,),) = desk.records("bundle").values()
    assert record["status"] == "ok"
    assert record["cell_id"] == "ddp.gloo.2x1.net.corpus"
    # The experiment chooses the hosts and their order.
    assert [rank["host"] for rank in record["ranks"]] == ["node3", "node1"]
    desk.rankbench("publish", *desk.experiment("bundle"), "--anonymise")
    published = desk.project.root / "results/bundle/results.tar.zst"
    assert not verify_bundle(published).findings
    texts = tmp_path / "texts"
    texts.mkdir()
    unpack(published, texts)
    home = str(home_there(desk.cluster))
    assert list(texts.rglob("record.json"))
    for path in texts.rglob("*"):
        if path.is_file() and path.suffix not in (".npz", ".png"):
            content = path.read_text(errors="replace")
            for name in ("node1", "node3", home):
                assert name not in content, path


def test_what_cannot_be_reached_is_refused_with_a_remedy(desk):
    home = home_of(desk.cluster, desk.host)
    known, config = home / ".ssh/known_hosts", home / ".ssh/config"
    right = known.read_text()
    lines = right.splitlines()
    wrong = lines[0].split()[-1]
    changed = [
        " ".join([*line.split()[:-1], wrong]) if line.startswith("node2 ") else line
        for line in lines
    ]
    known.write_text("\n".join(changed) + "\n")
    config.write_text("Host twin\n  HostName node1\n  HostKeyAlias node1\n")
    shutil.chown(config, desk.cluster.user)
    names = ("node1", "twin", "node2", "nowhere")
    desk.write_site([host(name) for name in names])
    text = f"name: refused\nstrategy: ddp{SHORT}".replace("2x1", "4x1")
    try:
        said = desk.measure(text, "refused", status=1)
    finally:
        known.write_text(right)
        config.unlink()
    assert "ssh-keygen -R node2" in said
    assert "known_hosts has no key of it, or another one" in said
    assert "nowhere: ssh: Could not resolve hostname nowhere" in said
    assert "twin: is the same machine as node1: list it once" in said
    assert not desk.records("refused")


def test_files_that_are_not_shared_are_noticed(desk):
    desk.write_site(shared=True)
    said = desk.measure(f"name: alone\nstrategy: ddp{SHORT}", "alone", status=1)
    assert "node1: does not see " in said
    assert "node2: does not see " in said
    assert "say shared: false, and rankbench copies" in said
    assert INTERFACE in (desk.project.root / "ssh_profile/site.yaml").read_text()
    assert not desk.records("alone")


HOLD = f"""
import fcntl, os, socket, time
folder = os.path.expanduser("~/.cache/rankbench")
os.makedirs(folder, exist_ok=True)
lock = open(f"{{folder}}/{MACHINE_LOCK}", "wb")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(120)
"""


@pytest.mark.long
def test_a_host_on_which_another_run_measures_is_waited_for(desk):
    far = desk.cluster.hosts["node2"]
    command = command_on(desk.cluster, far, [sys.executable, "-c", HOLD])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        desk.project.experiment(f"name: waits\nstrategy: ddp{SHORT}", "waits.yaml")
        run = desk.start("run", *desk.experiment("waits"), "--no-plots")
        assert run.stdout is not None
        waiting = "waiting: another measurement runs on the host node2"
        said = any(waiting in line for line in run.stdout)
        far.do("pkill", "-f", "fcntl.flock")
    assert said
    run.communicate(timeout=600)
    assert desk.table("waits")[DDP]["status"] == "ok"
