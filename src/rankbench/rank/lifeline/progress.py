"""Tells the supervisor where a rank is: at each stage, and when it asks."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

# Entry of a rank: stage; step; the heartbeat that asked for it, or 0; seconds since the
# rank last moved. launch/process/where_ranks_are.py reads this format.
_ENTRY = struct.Struct("<iiqd")
STARTING, SET_UP, WARM_UP, TRAINING, COLLECTIVES, EVALUATION, THE_END = range(7)


class Progress:
    """Where one rank is in its launch.

    Steps are only remembered: within the timed window a rank writes nothing, unless the
    supervisor asks, which it does before it ends a launch that hangs. Each host has a
    file of its own, because a shared file system may take milliseconds to move a page
    from one host to another.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / socket.gethostname()
        self._offset = rank * _ENTRY.size
        self._now = self._seen = (STARTING, 0)
        self._moved = time.monotonic()

    def enter(self, stage: int) -> None:
        """Begin a stage, and tell the supervisor.

        Raises:
            OSError: the file cannot be written.
        """
        self._now = (stage, 0)
        self._write(asked=0, silent=0.0)

    def step(self, number: int) -> None:
        self._now = (self._now[0], number)

    def look(self, asked: int) -> None:
        """Notice whether the rank has moved since the last look; answer if asked.

        Args:
            asked: the heartbeat that asks where this rank is; 0 if it does not ask.
        """
        now = time.monotonic()
        if self._now != self._seen:
            self._seen, self._moved = self._now, now
        if asked:
            self._write(asked, now - self._moved)

    def _write(self, asked: int, silent: float) -> None:
        # Other hosts see what was written when the file is closed.
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, _ENTRY.pack(*self._now, asked, silent), self._offset)
        finally:
            os.close(file)
