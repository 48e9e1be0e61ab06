"""The task of one rank. This module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankbench.cell import Cell, Shape
from rankbench.environ import Place
from rankbench.rank.world.lifeline import Progress


@dataclass(frozen=True, kw_only=True)
class Duty:
    """The task of one rank, and the resources it has.

    Attributes:
        init_method: URL at which the ranks meet.
        phases: names of the phases of a step, in order.
        work: folder of the launch for reports and progress.
        data_dir: folder of the prepared data sets.
        threads: number of CPU threads of this rank.
        affinity: CPUs that the process was given; loader processes may use them all.
        save_model: ``none``, ``per_rank`` or ``consolidated``.
        collectives: whether to time the strategy's communication operations.
        seeds: seeds that a gate checks; empty means the seed of the cell.
        script: of the user, if the cell has one: ``folder`` that holds its files,
            ``file`` in it, and its ``args``.
    """

    cell: Cell
    shape: Shape
    place: Place
    init_method: str
    phases: list[str]
    work: Path
    data_dir: Path
    threads: int
    affinity: set[int]
    progress: Progress
    save_model: str = "none"
    collectives: bool = False
    seeds: Sequence[int] = ()
    script: Mapping[str, Any] | None = None

    @property
    def log(self) -> Path:
        """All output of this rank."""
        return log_of(self.work.parent, self.place)


def log_of(directory: Path, place: Place) -> Path:
    """The log of a rank, in the directory of its launch."""
    return directory / f"rank{place.rank}.log"
