"""One fault, planted once: what is measured meanwhile, and what must come of it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import faulty_strategies as faulty
from lanes import Lane
from pretend_host import wait_until

Allocation = Literal["cell", "topology", "experiment"]
ALLOCATIONS: tuple[Allocation, ...] = ("cell", "topology", "experiment")
# Status of a launch, and words of its reason in which {near} and {far} are hosts.
State = tuple[str, str]
OK: State = ("ok", "")

# The second cell shows that others go on, and shares the job of the first if it may.
EXPERIMENT = """
name: {name}
model: lenet
launches: 1
steps: 240
warmup: 0
gate: false
evaluate: false
network_check: false
time_limit: {limit}
allocation: {allocation}
blocks:
  - strategy: victim
    topology: 2x1
    launcher: {launcher}
{more}
  - strategy: ddp
    topology: {other}
    data: synthetic
{beside}
"""


class Unexpected(Exception):
    """What has come of a fault is not what the documents say."""


@dataclass
class Trial:
    """A cell over two hosts that suffers, and another one.

    more, beside: further keys of the two cells; facts: further lines of the site file;
    spares_others: whether the other cell can be measured.
    """

    lane: Lane
    name: str
    allocation: Allocation
    launcher: str = "srun"
    limit: int = 300
    more: str = ""
    beside: str = ""
    facts: str = ""
    spares_others: bool = True
    run: subprocess.Popen[str] | None = None
    said: str = ""

    def begin(self, source: str = faulty.SLOW, *, pace: float = 1.0) -> None:
        """Start the run. source: of the strategy of the cell that suffers."""
        file = str(self.lane.pace_file)
        paced = f"time.sleep(float(open({file!r}).read()))"
        self.lane.set_pace(pace)
        self.lane.write_site(self.facts)
        source = source.replace("time.sleep(0.25)", paced)
        self.lane.project.add_strategy("victim", source)
        text = EXPERIMENT.format(
            name=self.name,
            allocation=self.allocation,
            limit=self.limit,
            launcher=self.launcher,
            more=self.more,
            beside=self.beside,
            other="2x1" if self.allocation == "topology" else "1x1",
        )
        self.lane.project.experiment(text, f"{self.name}.yaml")
        self.run = self.lane.run(self.name)

    def begin_and_train(self) -> None:
        """Start the run, and wait until the ranks of both hosts train."""
        self.begin()
        wait_until(self._trains, "ranks train")

    def _trains(self) -> bool:
        assert self.run is not None
        if self.run.poll() is not None:
            self.end()
            raise Unexpected(f"the run has ended: {self.said}")
        return any(self.lane.trains(launch) for launch in self._launches())

    def _launches(self) -> list[Path]:
        found = self.lane.launches(self.name)
        return [one for one in found if one.parts[-3].startswith("victim.")]

    def wait_for_record(self) -> None:
        """Wait until the launch that suffers has its record."""
        wait_until(
            lambda: any((one / "record.json").exists() for one in self._launches()),
            "the launch has its record",
        )

    def end(self) -> None:
        """Wait for the end of the run; what it says is kept."""
        assert self.run is not None
        self.said += self.lane.wait_for(self.run)

    def next_run(self) -> None:
        """Run once more, as a user would."""
        self.lane.set_pace(0)
        self.run = self.lane.run(self.name)
        self.end()

    def row(self) -> dict[str, str]:
        """The row of the cell that suffers."""
        rows = self.lane.table(self.name)
        return next(row for cell, row in rows.items() if cell.startswith("victim."))

    def states(self, strategy: str = "victim") -> list[State]:
        """Status and reason of each launch of a cell."""
        return [
            (record["status"], record["reason"] or "")
            for cell, records in self.lane.records(self.name).items()
            for record in records
            if cell.startswith(f"{strategy}.")
        ]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to Snakemake, or SIGINT to all of its group."""
        assert self.run is not None
        if number == signal.SIGINT:
            os.killpg(self.run.pid, number)
        else:
            self.run.send_signal(number)


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: as the table calls it.
        plant: does it to a trial, and mends what is to be mended.
        first: states of the launches of the cell that suffers.
        after: states that the next run adds.
        alone: whether other lanes would suffer as well.
        either: whether in a shared job the cell suffers that is launched first.
    """

    name: str
    plant: Callable[[Trial], None]
    first: Sequence[State]
    after: Sequence[State]
    alone: bool
    either: bool

    def try_it(self, trial: Trial) -> list[str]:
        """Plant it and run again; processes, jobs, locks and folders that were left.

        Raises:
            Unexpected: another state than expected, or a launch measured twice.
        """
        first, after = self.first, self.after
        self.plant(trial)
        trial.end()
        left = trial.lane.left()
        if self.either and not trial.states():
            self._compare(trial, first, trial.states("ddp"))
            first = []
        else:
            # On a busy host Slurm may kill a supervisor before its record is written.
            # Then the next run writes it.
            late = not trial.states() and first == (("cancelled", ""),)
            self._compare(trial, [] if late else first, trial.states())
        trial.next_run()
        self._compare(trial, [*first, *after], trial.states())
        others = [status for status, _ in trial.states("ddp")]
        if others.count("ok") != trial.spares_others or set(others) - {
            "ok",
            "crashed",
            "cancelled",
        }:
            raise Unexpected(f"the other cell: {trial.states('ddp')}")
        return left + trial.lane.left() + trial.lane.folders()

    def _compare(
        self, trial: Trial, expected: Sequence[State], found: Sequence[State]
    ) -> None:
        hosts = {"near": trial.lane.near.name, "far": trial.lane.far.name}
        same = len(found) == len(expected) and all(
            status == wanted and words.format(**hosts) in reason
            for (status, reason), (wanted, words) in zip(found, expected, strict=True)
        )
        if not same:
            raise Unexpected(f"{found}, not {list(expected)}")


FAULTS: dict[str, Fault] = {}
Plant = Callable[[Trial], None]


def fault(
    *first: State,
    after: Sequence[State] = (),
    alone: bool = False,
    either: bool = False,
) -> Callable[[Plant], Plant]:
    """Register a function that plants a fault; its docstring names it."""

    def register(plant: Plant) -> Plant:
        name = (plant.__doc__ or "").strip()
        assert name, plant
        FAULTS[plant.__name__] = Fault(name, plant, first, after, alone, either)
        return plant

    return register
