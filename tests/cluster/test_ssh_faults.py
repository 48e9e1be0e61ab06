"""Faults of hosts that ssh reaches: a typed record, nothing left, the next run goes on.

Each fault is planted while the ranks of both hosts train.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import faulty_strategies
import pytest
from desks import Desk
from lanes import RANK
from pretend_host import Host, check, wait_until
from pretend_sshd import (
    home_of,
    home_there,
    kill_sshd,
    start_sshd,
    wait_until_gone,
)

pytestmark = pytest.mark.cluster

EXPERIMENT = """
name: {name}
strategy: slow
model: lenet
topology: 2x1
launcher: {launcher}
launches: 1
repeat_disturbed: false
steps: 240
warmup: 0
gate: false
network_check: false
time_limit: 300
"""
FAR = "node2"
ROOM = "24m"  # of the disk that is to be full
PACE = 1.0  # seconds for each step: it trains until it is ended


@pytest.fixture(params=["apart", pytest.param("shared", marks=pytest.mark.long)])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    found: Desk = request.getfixturevalue(f"{request.param}_desk")
    yield found
    for host in found.cluster.hosts.values():
        ours = ("pkill", "-KILL", "--euid", found.cluster.user)
        subprocess.run(host.command(ours), check=False)
    wait_until_gone(found.cluster)


@dataclass
class Case:
    """One launch that suffers a fault, and the run after it."""

    desk: Desk
    name: str
    run: subprocess.Popen[str]
    launcher: str = "auto"

    @property
    def cell(self) -> str:
        end = "" if self.launcher == "auto" else f".launcher={self.launcher}"
        return f"slow.gloo.2x1.lenet.digits{end}"

    @property
    def far(self) -> Host:
        return self.desk.cluster.hosts[FAR]

    def ends(self) -> str:
        """Wait for the end of the run, and of everything on all hosts."""
        said, _ = self.run.communicate(timeout=600)
        wait_until_gone(self.desk.cluster)
        return said

    def first(self) -> tuple[str, str]:
        """Status and reason of the launch that suffered."""
        record = self.desk.records(self.name)[self.cell][0]
        return record["status"], record["reason"]

    def goes_on(self) -> None:
        """The next run measures the launch again, and leaves nothing."""
        set_pace(self.desk, 0)
        options = (*self.desk.experiment(self.name), "--no-plots")
        self.desk.rankbench("run", *options)
        row = self.desk.table(self.name)[self.cell]
        assert row["status"] == "ok", row["reason"]
        assert len(self.desk.records(self.name)[self.cell]) == 2
        self.leaves_nothing()

    def leaves_nothing(self) -> None:
        wait_until_gone(self.desk.cluster)
        for host in ("node1", FAR):
            assert not self.desk.left_on(host)


def set_pace(desk: Desk, seconds: float) -> None:
    source = faulty_strategies.SLOW.replace("0.25", str(seconds))
    desk.project.add_strategy("slow", source)


@pytest.fixture
def begin(desk: Desk) -> Callable[..., Case]:
    """Start an experiment, and wait until the ranks of both hosts train."""

    def start(name: str, launcher: str = "auto") -> Case:
        set_pace(desk, PACE)
        # The same fault may be planted many times.
        count = len(list(desk.project.root.glob(f"results/{name}-*")))
        name = f"{name}-{count}"
        text = EXPERIMENT.format(name=name, launcher=launcher)
        desk.project.experiment(text, f"{name}.yaml")
        run = desk.start("run", *desk.experiment(name), "--no-plots")
        case = Case(desk, name, run, launcher)
        try:
            wait_until(
                lambda: run.poll() is not None or desk.trains(name, case.cell),
                "ranks train",
            )
            assert run.poll() is None
        except BaseException:
            run.kill()
            print(run.communicate()[0])
            raise
        return case

    return start


@pytest.mark.parametrize(
    "fault",
    ["crash", *(pytest.param(x, marks=pytest.mark.long) for x in ("cut", "sshd"))],
)
def test_a_host_is_lost(begin, restart, fault):
    """It crashes, its link is cut, or sshd there is killed."""
    case = begin(fault)
    far, cluster = case.far, case.desk.cluster
    break_it = {"crash": far.crash, "cut": far.cut, "sshd": lambda: kill_sshd(far)}
    mend = {
        "crash": lambda: restart(FAR),
        "cut": far.mend,
        "sshd": lambda: start_sshd(cluster, far),
    }
    break_it[fault]()
    try:
        said = case.ends()
    finally:
        mend[fault]()
    status, reason = case.first()
    assert status == "cancelled", said
    assert f"the host {FAR} failed" in reason
    case.goes_on()


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("torchrun", "rank 1 was ended by SIGKILL"),
        pytest.param("manual", "rank 1 was ended by SIGKILL", marks=pytest.mark.long),
        pytest.param("mpirun", "rank 1", marks=pytest.mark.long),
    ],
)
def test_a_rank_of_the_far_host_is_killed(begin, launcher, words):
    launcher = "auto" if launcher == "torchrun" else launcher
    case = begin("rank", launcher)
    case.far.do("pkill", "-KILL", "-f", RANK)
    said = case.ends()
    status, reason = case.first()
    assert status == "crashed", said
    assert words in reason
    case.leaves_nothing()


@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGKILL of the supervisor", "SIGINT of the user"])
def test_a_launch_is_interrupted(begin, how):
    case = begin(how.split()[-1])
    if how.startswith("SIGKILL"):
        case.desk.host.do("pkill", "-KILL", "-f", "rankbench.launch results")
    else:
        os.killpg(case.run.pid, signal.SIGINT)
    said = case.ends()
    case.goes_on()
    status, reason = case.first()
    assert status == "cancelled", said
    assert ("supervisor" in reason) == how.startswith("SIGKILL")


@pytest.fixture
def small_disk(desk: Desk) -> Iterator[None]:
    """Little room for rankbench on the far host."""
    far = desk.cluster.hosts[FAR]
    folder = home_of(desk.cluster, far) / ".cache/rankbench"
    folder.mkdir(parents=True, exist_ok=True)
    place = home_there(desk.cluster) / ".cache/rankbench"
    owner = f"uid={desk.cluster.user},gid={desk.cluster.user}"
    far.do("mount", "-t", "tmpfs", "-o", f"size={ROOM},{owner}", "tmpfs", place)
    yield
    far.do("umount", place)


# Hosts that share files share the disk of this machine as well.
@pytest.mark.long
@pytest.mark.parametrize("desk", ["apart"], indirect=True)
@pytest.mark.usefixtures("small_disk")
def test_the_far_disk_is_full(begin, desk):
    case = begin("disk")
    filling = home_there(desk.cluster) / ".cache/rankbench/filling"
    check(
        [
            "sh",
            "-c",
            '"$@" || true',
            "sh",
            *case.far.command(["dd", "if=/dev/zero", f"of={filling}", "bs=64k"]),
        ]
    )
    said = case.ends()
    status, reason = case.first()
    assert status == "cancelled", said
    assert f"the host {FAR} refuses: No space left on device" in reason
    # A run that cannot begin says why.
    options = (*desk.experiment(case.name), "--no-plots")
    refused = desk.rankbench("run", *options, status=1)
    assert f"{FAR}: has 0 MiB free" in refused
    case.far.do("rm", filling)
    case.goes_on()
