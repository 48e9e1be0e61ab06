"""What a rank sees of its CPUs, its quota and of being suspended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankbench.rank.facts import usage
from rankbench.rank.facts.usage import Surroundings
from rankbench.rank.world import lifeline
from rankbench.rank.world.lifeline import Progress

pytestmark = pytest.mark.unit


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `proc` and `cgroup`; this process may use CPUs 0 and 2."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    monkeypatch.setattr(usage, "_SHORTEST", 0.0)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    count(tmp_path, idle=0, steal=0)
    return tmp_path


def count(folder: Path, *, idle: int, steal: int) -> None:
    """The ticks of all CPUs; CPU 1 is another rank's."""
    lines = ["cpu  9 9 9 9 9 9 9 9 0 0"]
    for cpu in range(3):
        more = 10_000 if cpu == 1 else 0
        lines.append(f"cpu{cpu} 7 0 3 {idle + more} 0 0 0 {steal + more} 0 0")
    (folder / "proc/stat").write_text("\n".join([*lines, "intr 1 2 3", ""]))


def limit(group: Path, quota: str, periods: int, throttled: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.max").write_text(f"{quota} 100000\n")
    (group / "cpu.stat").write_text(
        f"usage_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\n"
    )


def look(folder: Path) -> Surroundings:
    found = Surroundings(
        Progress(folder, 0), proc=folder / "proc", cgroups=folder / "cgroup"
    )
    found.begin()
    return found


def quota_of(looking: Surroundings) -> tuple[float | None, int, int]:
    found = looking.end()
    assert found is not None
    return found["quota"], found["periods"], found["throttled"]


def test_cpus_of_this_rank_only(kernel):
    looking = look(kernel)
    ticks = os.sysconf("SC_CLK_TCK")
    count(kernel, idle=2 * ticks, steal=3 * ticks)
    found = looking.end()
    assert found is not None
    assert (found["cpus"], found["steal"]) == ([0, 2], [3.0, 3.0])
    # No more than the time that went by, less idle and stolen time: none at all.
    assert found["busy"] == [0.0, 0.0]
    assert (found["quota"], found["periods"], found["stopped"]) == (None, 0, 0.0)


def test_the_quota_of_any_group_above(kernel):
    limit(kernel / "cgroup/job", "150000", 100, 10)
    limit(kernel / "cgroup/job/step", "max", 0, 0)
    looking = look(kernel)
    limit(kernel / "cgroup/job", "150000", 140, 30)
    assert quota_of(looking) == (1.5, 40, 20)


def test_the_quota_of_the_first_version_of_control_groups(kernel):
    (kernel / "proc/self/cgroup").write_text("4:memory:/x\n3:cpu,cpuacct:/job\n0::/\n")
    group = kernel / "cgroup/cpu/job"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("50000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    (group / "cpu.stat").write_text("nr_periods 5\nnr_throttled 1\nthrottled_time 9\n")
    looking = look(kernel)
    (group / "cpu.stat").write_text("nr_periods 9\nnr_throttled 4\nthrottled_time 9\n")
    assert quota_of(looking) == (0.5, 4, 3)


def test_a_short_window_says_nothing(tmp_path):
    looking = Surroundings(Progress(tmp_path, 0))
    looking.begin()
    assert looking.end() is None


# Sleeps until it has stood still for a second; prints how long.
SLEEPER = """
import sys
from pathlib import Path
from rankbench.rank.world.lifeline import Progress
progress = Progress(Path(sys.argv[1]), 0)
print("begun", flush=True)
for _ in range(60):
    if progress.stopped < 1.0:
        progress.sleep(5.0)
print(progress.stopped)
"""


def test_a_suspension_is_seen(tmp_path):
    command = [sys.executable, "-c", SLEEPER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        # One that begins before the first turn is not seen.
        while child.poll() is None:
            time.sleep(0.5)
            child.send_signal(signal.SIGSTOP)
            time.sleep(2.0)
            child.send_signal(signal.SIGCONT)
        assert float(child.stdout.readline()) >= 1.0


@pytest.mark.parametrize(("worked", "stopped"), [(0.0, 5.0), (0.2, 5.0), (4.0, 0.0)])
def test_a_main_thread_that_works_may_hold_up_the_others(
    tmp_path, monkeypatch, worked, stopped
):
    """The first turn ends 5 s late; the main thread has worked for so many of them."""
    clocks = {"wall": 100.0, "main": 7.0}
    late = iter([(5.0, worked)])

    def sleep(seconds: float) -> None:
        more, used = next(late, (0.0, 0.0))
        clocks["wall"] += seconds + more
        clocks["main"] += used

    clock = SimpleNamespace(
        CLOCK_BOOTTIME="wall",
        pthread_getcpuclockid=lambda thread: "main",
        clock_gettime=clocks.__getitem__,
        monotonic=time.monotonic,
        sleep=sleep,
    )
    monkeypatch.setattr(lifeline, "time", clock)
    progress = Progress(tmp_path, 0)
    progress.sleep(8.0)
    assert progress.stopped == pytest.approx(stopped)
    assert clocks["wall"] == pytest.approx(108.0)
