"""A pretend cluster leaves nothing behind, and two of them do not meet."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pretend_kernel
import pretend_up
import pytest
from pretend_cluster import MEMBER, Cluster
from pretend_down import INTERFACES, bridge_of, down, members
from pretend_host import CORE_GROUPS, MEMORY_GROUPS, PretendError, check, wait_until
from pretend_up import up

PRETEND = (sys.executable, Path(__file__).resolve().with_name("pretend.py"))

# Other tests fail, too, if the pretend cluster is not as it should be.
pytestmark = [pytest.mark.cluster, pytest.mark.long]


def pretend(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it, with no cluster named in the environment."""
    command = [*PRETEND, *arguments]
    environment = {"PATH": os.environ["PATH"]}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )


def traces(folder: Path) -> dict[str, Counter[str]]:
    """What the machine shows of clusters, besides processes and files."""
    # Other clusters and mounts may appear and disappear. Only mounts in these places
    # would be left over from this cluster.
    ours = bridge_of(folder)
    where = ("/dev", "/etc", "/proc", "/sys", str(folder))
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1] for line in mounts]
    return {
        "groups": Counter(
            path.name
            for folder in (MEMORY_GROUPS, CORE_GROUPS)
            for path in folder.glob(f"{ours}*")
        ),
        "links": Counter(path.name for path in INTERFACES.glob(f"{ours}*")),
        "mounts": Counter(p for p in points if p == "/tmp" or p.startswith(where)),  # noqa: S108
        "named namespaces": Counter(p.name for p in Path("/run/netns").glob("*")),
    }


@pytest.fixture
def state(machine: None) -> Iterator[Path]:
    """A folder for a cluster that the test takes down, so that nothing is left."""
    folder = Path(tempfile.mkdtemp(prefix="pretend-test-"))
    before = traces(folder)
    yield folder
    left: dict[str, Any] = {
        what: now - before[what] for what, now in traces(folder).items()
    }
    left |= {"processes": members(folder), "files": list(folder.rglob("*"))}
    if left["processes"] or left["files"]:
        down(folder)
    assert not any(left.values())
    assert not folder.exists()


def test_down_ends_what_runs_and_leaves_nothing(state):
    told = pretend("--state", state, "up", "--hosts", "2")
    assert told.stdout == f"export PRETEND_CLUSTER={state}\n", told.stderr
    cluster = Cluster.load(state)
    job = f"/bin/sleep {9000 + os.getpid() / 1e7}"
    cluster.run("sbatch", "--output=/dev/null", f"--wrap=setsid {job}")
    # As in a launch: of the cluster's variables, only the one that Slurm reads is set.
    alone = ("env", f"--unset={MEMBER}", "srun", *job.split())
    waiting = subprocess.Popen(cluster.command(alone))

    def count() -> int:
        return check(["ps", "-eo", "args"]).splitlines().count(job)

    wait_until(lambda: count() == 2, "both jobs run")
    assert pretend("--state", state, "down").returncode == 0
    assert waiting.wait(timeout=400) != 0
    assert count() == 0


def test_start_that_fails_says_why_and_leaves_nothing(state, monkeypatch):
    monkeypatch.setattr(pretend_up, "slurm_conf", lambda **_: "Nonsense=1\n")
    with pytest.raises(PretendError, match="Nonsense"):
        up(state, hosts=2)


def test_down_after_a_start_that_was_killed_leaves_nothing(state):
    starting = subprocess.Popen([*PRETEND, "--state", state, "up", "--hosts=50"])
    third = INTERFACES / f"{bridge_of(state)}.3"
    wait_until(third.exists, "three hosts are there")
    starting.kill()
    starting.wait()
    assert members(state)
    down(state)


def test_two_clusters_do_not_meet(cluster, state):
    other = up(state, hosts=1, user=cluster.user)
    try:
        host = other.hosts["node1"]
        assert host.address != cluster.hosts["node1"].address
        assert other.run("sinfo", "--noheader", "--format=%D %T") == "1 idle\n"
        with pytest.raises(PretendError):
            host.do("timeout", "3", "bash", "-c", f": < /dev/tcp/{host.address}/7000")
    finally:
        down(state)
    assert cluster.run("srun", "--nodelist=node1", "hostname") == "node1\n"


def test_hosts_share_cores_without_autogroups(cluster):
    setting = pretend_kernel.AUTOGROUPS
    # Some kernels have no autogroups, and some containers may not change them.
    assert not os.access(setting, os.W_OK) or setting.read_text().strip() == "0"


@pytest.mark.parametrize("before", ["0", "1"])
def test_autogroups_are_put_back(before, tmp_path, monkeypatch):
    setting = tmp_path / "setting"
    setting.write_text(f"{before}\n")
    monkeypatch.setattr(pretend_kernel, "AUTOGROUPS", setting)
    monkeypatch.setattr(pretend_kernel, "NOTE", tmp_path / "note")
    pretend_kernel.set_autogroups_aside()
    assert setting.read_text().strip() == "0"
    pretend_kernel.put_autogroups_back()
    assert setting.read_text().strip() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("down",), "which cluster? Give --state, or set PRETEND_CLUSTER"),
        (("--state=/nowhere", "down"), "/nowhere: no pretend cluster is there"),
        (("--state=/nowhere", "run", "id"), "/nowhere: no pretend cluster is up there"),
        (("--state=/etc", "up"), "/etc: not empty"),
        (("up", "--hosts=0"), "0 hosts: from 1 to 200"),
        (("up", "--user=nobody-at-all"), "useradd --create-home nobody-at-all"),
        (("up", "--share=/nowhere"), "/nowhere: to be shared, but is no folder"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_wrong_command_is_answered(arguments, said):
    done = pretend(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pretend.py: ")
    assert said in done.stderr


def test_unknown_host_is_answered_with_the_known(cluster):
    done = pretend("--state", cluster.state, "cut", "node9")
    assert "no host 'node9'; there are node1, node2, node3, node4" in done.stderr


def test_without_root_it_says_so(cluster, python):
    with pytest.raises(PretendError, match="needs root, for namespaces and a bridge"):
        cluster.run(python, *PRETEND[1:], "up")
