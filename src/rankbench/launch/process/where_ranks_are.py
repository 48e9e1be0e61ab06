"""Where each rank is, from what the ranks write at each stage and when asked."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

# Entry of a rank. rank/world/lifeline.py writes this format.
ENTRY = struct.Struct("<iiqd")
STAGES = (
    *("starting", "set-up", "warm-up", "training"),
    *("collectives", "evaluation", "the end"),
)


class Place(NamedTuple):
    """Where a rank was when it last wrote.

    Attributes:
        stage: index in `STAGES`.
        step: of the stage; known only if the rank was asked.
        asked: the heartbeat that asked; 0 if the rank wrote by itself.
        silent: seconds since the rank had last moved, when it was asked.
    """

    stage: int = 0
    step: int = 0
    asked: int = 0
    silent: float = 0.0


class ProgressFiles:
    """The supervisor's view of the ranks' progress: a file for each host."""

    def __init__(self, folder: Path, ranks: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._ranks = ranks

    def read(self) -> list[Place]:
        return read_places(self._folder, self._ranks)

    def all_in(self, stage: str) -> bool:
        """Whether each rank is in this stage."""
        return are_all_in(stage, self.read())

    def have_answered(self, asked: int) -> bool:
        """Whether each rank has answered this heartbeat or a later one."""
        return all(place.asked >= asked for place in self.read())

    def describe(self) -> str:
        """Words for a reason: where each rank is, and since when nothing has moved."""
        places = self.read()
        words = [_describe(rank, place) for rank, place in enumerate(places)]
        shown = "; ".join(words[:4]) + ("; ..." if len(words) > 4 else "")
        return shown + _describe_silence(places)


def read_places(folder: Path, ranks: int) -> list[Place]:
    """Where each rank of a launch is, from the files of all hosts."""
    places = [Place()] * ranks
    for file in folder.glob("*"):
        data = file.read_bytes()
        whole = data[: len(data) // ENTRY.size * ENTRY.size]
        for rank, entry in enumerate(ENTRY.iter_unpack(whole)):
            # The entries of other hosts' ranks are zero.
            places[rank] = max(places[rank], Place(*entry))
    return places


def are_all_in(stage: str, places: Sequence[Place]) -> bool:
    """Whether each rank is in this stage."""
    return all(STAGES[place.stage] == stage for place in places)


def _describe(rank: int, place: Place) -> str:
    where = STAGES[place.stage]
    return f"rank {rank} in {where}" + (f", step {place.step}" if place.step else "")


def _describe_silence(places: Sequence[Place]) -> str:
    answers = [place.silent for place in places if place.asked]
    if not answers:
        return ""
    moved = f"; nothing moved for {min(answers):.0f} s"
    silent = len(places) - len(answers)
    return f"{moved}; {silent} did not answer" if silent else moved
