"""The processes of a launch: watched, ended, and told by a heartbeat."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rankbench.environ import read_stat

_PR_SET_CHILD_SUBREAPER = 36
UNKILLABLE_AFTER = 60.0  # seconds


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies.

    A launcher may put ranks into sessions of their own and then be killed; without
    this they would be nobody's and would outlive the launch.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def end_processes(
    find: Callable[[], Collection[int]] | None = None,
    *,
    grace: float = 3.0,
    give_up: float = UNKILLABLE_AFTER,
) -> None:
    """End processes: SIGTERM, after `grace` seconds SIGKILL.

    Args:
        find: returns the ids of those that live; None means all below this one.
        grace: seconds.
        give_up: seconds after which we no longer wait. A process that waits for a
            device or a dead file server cannot be killed.
    """
    find = find or descendants
    _signal(find(), signal.SIGTERM)
    deadline = time.monotonic() + grace
    while find() and time.monotonic() < deadline:
        time.sleep(0.05)
    # Killing a process may make us the parent of its children: repeat until none is
    # left.
    deadline = time.monotonic() + give_up
    while (left := find()) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(0.02)


def descendants() -> list[int]:
    """Living processes below this one; the dead among them are reaped."""
    states: dict[int, str] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *_ = read_stat(entry.name)
        except OSError:
            continue  # it has ended meanwhile
        states[int(entry.name)] = state
        children.setdefault(int(parent), []).append(int(entry.name))
    living = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        waiting += below
        for pid in set(below) - spared:
            if states[pid] not in "ZX":
                living.append(pid)
            elif pid not in awaited:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
    return living


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


# Ids of children that are not reaped here, because their `subprocess.Popen` needs the
# exit status.
awaited: set[int] = set()

# Ids of children that serve several launches: they are neither ended nor reaped.
spared: set[int] = set()


def wait_for_exit(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait until a child ends, at most so long; whether it has ended."""
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


class Interrupted(Exception):
    """This process was told to end. The next run measures missing launches."""


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

    def heed(self) -> None:
        """Raise `Interrupted` if this process was told to end."""
        if reason := self.reason():
            raise Interrupted(reason)


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

    def close(self) -> None:
        os.close(self._file)
