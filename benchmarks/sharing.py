"""What does one Slurm job for twenty cells save, compared with twenty jobs?

    sudo .venv/bin/python benchmarks/sharing.py         # half an hour, an idle machine

Twenty cells of two hosts, one short launch each, on a pretend cluster
(docs/pretend-cluster.md). The queue is planted: each job starts some seconds after the
one before has ended. Compared are the wall time and the device-hours of both.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np
from pretend_login import Login, give, pretend_login

NAME = "sharing"
EXPERIMENT = """
name: {name}
strategy: ddp
topology: 2x1
model: lenet
data: synthetic
learning_rate: [{rates}]
launches: 1
steps: 3
warmup: 1
gate: false
allocation: {allocation}
time_limit: 120
"""
CELLS, HOSTS = 20, 2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delay", type=float, default=60, help="seconds in the queue")
    arguments = parser.parse_args()
    with pretend_login(text_of("cell"), NAME) as login:
        one, gaps = shared(login)
        twenty = apart(login, arguments.delay)
    waits = CELLS * arguments.delay
    print(f"20 jobs: {twenty:.0f} s, of which {waits:.0f} s in the queue (20 waits)")
    first = one + arguments.delay
    print(f"1 job: {first:.0f} s, of which {arguments.delay:.0f} s in the queue (1)")
    print(f"ratio {first / twenty:.3f}; without the queue {one / (twenty - waits):.3f}")
    hours = [HOSTS * seconds / 3600 for seconds in (twenty - waits, one)]
    print(f"device-hours: {hours[0]:.3f} with 20 jobs, {hours[1]:.3f} with 1")
    print(
        f"between two launches of the shared job: median {np.median(gaps):.2f} s, "
        f"p95 {np.quantile(gaps, 0.95):.2f} s"
    )


def text_of(allocation: str) -> str:
    rates = ", ".join(f"{1e-3 * number:.3f}" for number in range(1, CELLS + 1))
    return EXPERIMENT.format(name=NAME, rates=rates, allocation=allocation)


def plan(login: Login, allocation: str) -> list[str]:
    """Plan the experiment anew; the ids of its cells."""
    name = f"{NAME}-{allocation}"
    text = text_of(allocation).replace(f"name: {NAME}", f"name: {name}")
    (login.home / f"{name}.yaml").write_text(text)
    give(login.home)
    said = login.run(
        *PYTHON, "-c", BEGIN, f"{name}.yaml", str(login.home / "slurm_profile")
    )
    return said.split()


PYTHON = (sys.executable,)
BEGIN = """
import sys
from pathlib import Path
from rankbench.project.run import open_run
from rankbench.project.start import begin
run = open_run({"experiment": sys.argv[1]}, profile=Path(sys.argv[2]), write=False)
begin(run)
print(*(cell.id for cell in run.feasible), sep="\\n")
"""
ALLOCATION = (
    *("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", "--exclusive"),
    "--time=60",
)


def shared(login: Login) -> tuple[float, list[float]]:
    """Measure all cells in one job.

    Returns:
        Its seconds, and those between its launches.
    """
    plan(login, "experiment")
    results = f"results/{NAME}-experiment"
    begun = time.monotonic()
    login.run(*ALLOCATION, *PYTHON, "-m", "rankbench.launch", results, "experiment")
    seconds = time.monotonic() - begun
    return seconds, gaps_of(login.home / results)


def gaps_of(results: Path) -> list[float]:
    """Seconds from the end of a launch to the claim of the next one."""
    spans = []
    for path in results.glob("records/*/1/*/record.json"):
        begun = (path.parent / "claim.json").stat().st_mtime
        assert json.loads(path.read_text())["status"] == "ok", path.read_text()
        spans.append((begun, path.stat().st_mtime))
    spans.sort()
    return [after[0] - before[1] for before, after in itertools.pairwise(spans)]


def apart(login: Login, delay: float) -> float:
    """Measure each cell in a job of its own, which waits in the queue; seconds."""
    cells = plan(login, "cell")
    begun = time.monotonic()
    for cell in cells:
        time.sleep(delay)
        login.run(
            *ALLOCATION,
            *(*PYTHON, "-m", "rankbench.launch", f"results/{NAME}-cell", cell),
        )
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
