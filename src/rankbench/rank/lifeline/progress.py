"""Reports a rank's progress: two integers in shared memory."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

# Entry of a rank: stage, step. launch/process/where_ranks_are.py reads this format.
_ENTRY = struct.Struct("<ii")
STARTING, SET_UP, WARM_UP, TRAINING, EVALUATION, THE_END = range(6)


class Progress:
    """The entry of one rank in the progress file of its launch."""

    def __init__(self, path: Path, rank: int) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._offset = rank * _ENTRY.size
        self._stage = STARTING

    def enter(self, stage: int) -> None:
        self._stage = stage
        self.step(0)

    def step(self, number: int) -> None:
        _ENTRY.pack_into(self._map, self._offset, self._stage, number)
