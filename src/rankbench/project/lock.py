"""The lock of a result directory: one run at a time measures into it."""

from __future__ import annotations

from filelock import FileLock, Timeout

from rankbench.record import Layout, read_json


class InUse(ValueError):
    """Another run holds the lock of the result directory."""


class Lock:
    """The lock of a result directory.

    However the process that holds the lock ends, the kernel then releases it.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._file = FileLock(layout.lock, thread_local=False)

    def take(self) -> None:
        """Keep other runs from measuring until this process ends or releases the lock.

        Raises:
            InUse: another run holds the lock; the message names its process.
        """
        self._layout.root.mkdir(parents=True, exist_ok=True)
        try:
            self._file.acquire(timeout=0)
        except Timeout:
            raise InUse(
                f"{self._layout.root} is in use by {self._holder()}: wait for it or "
                "end it; `rankbench status` shows its progress"
            ) from None

    def release(self) -> None:
        """Let other runs take the lock; do nothing if this process does not hold it."""
        self._file.release()

    def _holder(self) -> str:
        try:
            agenda = read_json(self._layout.agenda)
        except (OSError, ValueError):
            return "another run"
        return f"process {agenda['pid']} on {agenda['host']} ({agenda['command']})"
