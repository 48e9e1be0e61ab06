"""The heartbeat of a supervisor, and the signals that tell it to end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Stop:
    """Remember that this process was told to end, so that it can end in good order."""

    def __init__(self) -> None:
        self.signal: str | None = None
        self._parent = os.getppid()

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        def remember(number: int, _frame: object) -> None:
            self.signal = signal.Signals(number).name

        caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, remember) for number in caught}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def reason(self) -> str | None:
        """Name of the signal; ``parent`` if the parent process has died; or None."""
        if self.signal is None and os.getppid() != self._parent:
            return "parent"
        return self.signal


class Heartbeat:
    """A number in a file that grows as long as the supervisor lives.

    A question mark behind it asks the ranks where they are.
    """

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """Begin to beat.

        Args:
            path: of the file.
            shared: other hosts must see it, and do not wait until it is written back.
        """
        self._count = 0
        self._mark = " "
        at_once = os.O_DSYNC if shared else 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | at_once, 0o644)
        self.beat()

    def beat(self) -> None:
        # The number is overwritten in place with a fixed width, which needs no new
        # block even on a full disk.
        self._count += 1
        os.pwrite(self._file, f"{self._count:012}{self._mark}".encode(), 0)

    def ask(self) -> int:
        """Ask the ranks where they are, from now on; returns the first beat to ask."""
        self._mark = "?"
        self.beat()
        return self._count

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
