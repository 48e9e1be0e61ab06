#!/usr/bin/env python3
"""Plant faults on a pretend cluster, many times and in random order.

Needs root, Slurm's packages and the images gloo-cpu and mpi-cpu. Every fault of
docs/troubleshooting.md is planted in each allocation, and programs are
killed at random. What has come of each is a line of a file; what has its line is not
done again, so a campaign that was ended goes on. At the end it prints the table for
docs/evidence.md.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
# A program finds only modules of its own folder.
sys.path[:0] = [str(TESTS), str(TESTS / "integration")]

import planted_faults  # noqa: E402, F401 (it registers the faults)
from lanes import Lane, make_lanes  # noqa: E402
from pretend_down import down  # noqa: E402
from random_kills import KILLS, LAUNCHES, Kills  # noqa: E402
from trials import ALLOCATIONS, FAULTS, Trial  # noqa: E402

AS_DOCUMENTED = "as documented"


@dataclass(frozen=True)
class Task:
    """What a lane does next.

    what: a name in FAULTS, or "kills"; allocation: empty for kills.
    """

    what: str
    allocation: str
    time: int

    @property
    def name(self) -> str:
        return "-".join(
            filter(None, (self.what.replace("_", "-"), self.allocation, str(self.time)))
        )

    @property
    def alone(self) -> bool:
        return self.what in FAULTS and FAULTS[self.what].alone


def plan(seed: int, times: int, kills: int, only: list[str]) -> list[Task]:
    """All tasks in random order; those that disturb other lanes come last."""
    tasks = [
        Task(name, allocation, time)
        for name in FAULTS
        for allocation in ALLOCATIONS
        for time in range(1, times + 1)
    ]
    tasks += [Task("kills", "", number) for number in range(1, kills // KILLS + 1)]
    tasks = [task for task in tasks if not only or task.what in only]
    random.Random(seed).shuffle(tasks)
    return sorted(tasks, key=lambda task: task.alone)


class Campaign:
    """Tasks for lanes, and the file with what has come of them."""

    def __init__(
        self, tasks: list[Task], file: Path, seed: int, minutes: float
    ) -> None:
        self._file = file
        self._seed = seed
        self._end = time.monotonic() + 60 * minutes
        self._lock = threading.Lock()
        self._ended = threading.Event()
        done = {(one["what"], one["allocation"], one["time"]) for one in read(file)}
        self._left = [
            task
            for task in tasks
            if (task.what, task.allocation, task.time) not in done
        ]

    def go(self, lanes: list[Lane]) -> None:
        for alone in (False, True):
            tasks = iter([task for task in self._left if task.alone == alone])
            workers = [
                threading.Thread(target=self._work, args=(lane, tasks), daemon=True)
                for lane in (lanes[:1] if alone else lanes)
            ]
            for worker in workers:
                worker.start()
            try:
                for worker in workers:
                    worker.join()
            except KeyboardInterrupt:
                # What a trial sees while its cluster is taken down means nothing.
                self._ended.set()
                raise

    def _work(self, lane: Lane, tasks: Iterator[Task]) -> None:
        while time.monotonic() < self._end:
            with self._lock:
                task = next(tasks, None)
            if task is None:
                return
            begun = time.monotonic()
            found = try_it(task, lane, self._seed)
            if self._ended.is_set():
                return
            if found["outcome"] != AS_DOCUMENTED:
                self._keep(lane, task)
            seconds = round(time.monotonic() - begun, 1)
            line = {**asdict(task), "seed": self._seed, "seconds": seconds, **found}
            with self._lock, open(self._file, "a") as file:
                file.write(json.dumps(line) + "\n")
            outcome = found["outcome"].splitlines()[0]
            print(
                f"{task.name} ({seconds:.0f} s): {outcome} {found['left']}", flush=True
            )

    def _keep(self, lane: Lane, task: Task) -> None:
        """Keep the results of a surprise, for somebody to look at."""
        place = self._file.with_suffix(".surprises") / task.name
        results = lane.project.root / "results"
        shutil.copytree(results, place, dirs_exist_ok=True, symlinks=True)


def try_it(task: Task, lane: Lane, seed: int) -> dict[str, Any]:
    """What has come of a task, and what was left of it."""
    found: dict[str, Any] = {"left": []}
    try:
        lane.clear()
        if task.what == "kills":
            kills = Kills(lane, task.name, seed * 1000 + task.time)
            try:
                found["left"] = kills.go()
            finally:
                found |= {"killed": kills.killed, "lost": kills.lost}
                found |= {"failed": kills.failed, "runs": kills.runs}
                found["said"] = kills.said[-5:]
        else:
            trial = Trial(lane, task.name, task.allocation)  # type: ignore[arg-type]
            try:
                found["left"] = FAULTS[task.what].try_it(trial)
            finally:
                found["said"] = trial.said[-2000:]
        found["outcome"] = AS_DOCUMENTED
        found.pop("said", None)
    except Exception as error:
        found["outcome"] = f"{type(error).__name__}: {error}"
        found["trace"] = traceback.format_exc()[-2000:]
    return found


def read(file: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in file.read_text().splitlines()]
    except FileNotFoundError:
        return []


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown: how often each fault was planted, what came of it, what was left."""
    rows = [
        "| fault | `cell` | `topology` | `experiment` | left |",
        "|---|---|---|---|---|",
    ]
    for name, fault in FAULTS.items():
        mine = [line for line in lines if line["what"] == name]
        cells = []
        for allocation in ALLOCATIONS:
            here = [
                line["outcome"] for line in mine if line["allocation"] == allocation
            ]
            cells.append(f"{here.count(AS_DOCUMENTED)} of {len(here)}")
        left = sum(bool(line["left"]) for line in mine)
        rows.append(f"| {fault.name} | {' | '.join(cells)} | {left or 'nothing'} |")
    kills = [line for line in lines if line["what"] == "kills"]
    if kills:
        rows += ["", *kills_table(kills)]
    return "\n".join(rows)


def kills_table(kills: list[dict[str, Any]]) -> list[str]:
    killed = [victim for line in kills for victim in line["killed"]]
    counts = {victim: killed.count(victim) for victim in sorted(set(killed))}
    good = sum(line["outcome"] == AS_DOCUMENTED for line in kills)
    said = ", ".join(f"{victim} {count}" for victim, count in counts.items())
    lost, failed = (sum(line[key] for line in kills) for key in ("lost", "failed"))
    return [
        f"{len(killed)} kills ({said}) in {len(kills)} experiments of {LAUNCHES} "
        "launches: "
        f"{good} ended with each launch measured once or typed; {lost} launches were "
        f"repeated, {failed} count as failed, {sum(bool(x['left']) for x in kills)} "
        "experiments left something."
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="with a line for each fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", type=int, default=3, help="in each allocation")
    parser.add_argument("--kills", type=int, default=100, help="random ones, in all")
    parser.add_argument("--minutes", type=float, default=150)
    parser.add_argument("--lanes", type=int, default=4, help="two hosts each")
    parser.add_argument("--only", nargs="+", default=[], metavar="FAULT")
    parser.add_argument("--user", default="rankbench")
    parser.add_argument("--table", action="store_true", help="print the table only")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    # Then the cluster is taken down, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Whoever starts this by nohup: what it starts shall not ignore SIGHUP.
    signal.signal(signal.SIGHUP, lambda *_: None)
    if not given.table:
        tasks = plan(given.seed, given.times, given.kills, given.only)
        campaign = Campaign(tasks, given.file, given.seed, given.minutes)
        root = Path(tempfile.mkdtemp(prefix="faults-"))
        root.chmod(0o755)
        digits = [sys.executable, "-m", "rankbench.rank.data.prepare", "digits"]
        subprocess.run([*digits, "--root", str(root)], check=True, capture_output=True)
        try:
            campaign.go(make_lanes(root, given.lanes, given.user, root))
        finally:
            down(root / "cluster")
            for disk in root.glob("lane*/project/results"):
                subprocess.run(["umount", "--lazy", str(disk)], check=False)
            shutil.rmtree(root)
    lines = read(given.file)
    print(table(lines))
    return int(any(line["outcome"] != AS_DOCUMENTED or line["left"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
