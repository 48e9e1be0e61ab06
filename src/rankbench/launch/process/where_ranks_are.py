"""The progress of each rank, in a few bytes of shared memory.

A rank must not write files while it is timed. Storing two integers into a mapped page
has no measurable cost, and the supervisor can read them at any time.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path

# One entry per rank: stage and step. rank/lifeline/progress.py writes this format.
ENTRY = struct.Struct("<ii")
STAGES = ("starting", "set-up", "warm-up", "training", "evaluation", "the end")


class ProgressFile:
    """The supervisor's view of the ranks' progress."""

    def __init__(self, path: Path, ranks: int) -> None:
        path.write_bytes(bytes(ENTRY.size * ranks))
        self._path = path
        self._ranks = ranks
        self._last: list[tuple[int, int]] = []
        self._changed = time.monotonic()

    def read(self) -> list[tuple[int, int]]:
        """(stage, step) of each rank."""
        data = self._path.read_bytes()
        now = [
            ENTRY.unpack_from(data, rank * ENTRY.size) for rank in range(self._ranks)
        ]
        if now != self._last:
            self._last, self._changed = now, time.monotonic()
        return now

    def all_in(self, stage: str) -> bool:
        """Whether each rank was in this stage at the last look."""
        return all(STAGES[number] == stage for number, _ in self._last)

    def describe(self) -> str:
        """Words for a reason: where each rank was, and since when nothing moved."""
        places = self.read()
        silent = time.monotonic() - self._changed
        words = [_describe(rank, *place) for rank, place in enumerate(places)]
        shown = "; ".join(words[:4]) + ("; ..." if len(words) > 4 else "")
        return f"{shown}; nothing moved for {silent:.0f} s"


def _describe(rank: int, stage: int, step: int) -> str:
    where = STAGES[stage]
    return f"rank {rank} in {where}" + (f", step {step}" if step else "")
