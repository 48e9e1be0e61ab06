"""What a rank has to do; reports to its supervisor, and watches the heartbeat."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankbench.environ import Place
from rankbench.launch_spec import PROGRESS_ENTRY, STARTING, LaunchSpec

ORPHANED = 97  # exit code of a rank that ended itself
LOOKS = 5  # number of looks at the heartbeat within the grace period
LOG = 2  # file of all output of a rank; a script may replace sys.stderr
TURN = 0.25  # seconds of a sleep between two of these looks
ASKS = "?"  # ends a heartbeat that asks where this rank is
LAST_WORDS = 5.0  # seconds for the report, whose file system may be down as well


class Progress:
    """Where one rank is in its launch.

    Steps are only remembered: within the timed window a rank writes nothing, unless the
    supervisor asks, which it does before it ends a launch that hangs. Each host has a
    file of its own, because a shared file system may take milliseconds to move a page
    from one host to another.

    Attributes:
        stopped: seconds for which this process was suspended so far.
        explain: says what this rank has done so far, beside its stacks.
    """

    explain: Callable[[], str] = staticmethod(str)

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / socket.gethostname()
        self._offset = rank * PROGRESS_ENTRY.size
        self._now = self._seen = (STARTING, 0)
        self._moved = time.monotonic()
        self.stopped = 0.0

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

    def sleep(self, seconds: float) -> None:
        """Sleep in short turns, and notice if the process is suspended meanwhile.

        If a turn ends late although the main thread has hardly worked, the process was
        suspended: by SIGSTOP, in a frozen control group (`scontrol suspend`), or with
        its machine. A main thread that works may let no other thread run.
        """
        main = threading.main_thread().ident
        assert main is not None
        clock, now = time.pthread_getcpuclockid(main), time.clock_gettime
        # Unlike other clocks, this one goes on while a machine is suspended.
        end = now(time.CLOCK_BOOTTIME) + seconds
        while (left := end - (begun := now(time.CLOCK_BOOTTIME))) > 0:
            turn, used = min(TURN, left), now(clock)
            time.sleep(turn)
            late = now(time.CLOCK_BOOTTIME) - begun - turn
            if late > max(TURN, 4 * (now(clock) - used)):
                self.stopped += late

    def _write(self, asked: int, silent: float) -> None:
        # Other hosts see what was written when the file is closed.
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            entry = PROGRESS_ENTRY.pack(*self._now, asked, silent)
            os.pwrite(file, entry, self._offset)
        finally:
            os.close(file)


@dataclass(frozen=True, kw_only=True)
class Duty:
    """The launch, and what this rank has of its own.

    Attributes:
        init_method: URL at which the ranks meet.
        affinity: CPUs that the process was given; loader processes may use them all.
    """

    spec: LaunchSpec
    place: Place
    init_method: str
    affinity: set[int]
    progress: Progress


class HeartbeatLost(TimeoutError):
    """The supervisor's heartbeat has stopped, because it is dead or late.

    `cause` is one of the causes in record.py.
    """

    cause = "site"

    def __init__(self, grace: float) -> None:
        super().__init__(
            f"no heartbeat of the supervisor for {grace:g} s "
            "(its host is overloaded, or a shared file system stands still)"
        )


def log_stacks() -> None:
    """Write all stacks into the log when this process crashes or is ended.

    The handlers need no lock of Python's, which code that hangs may hold.
    """
    faulthandler.enable(LOG)
    faulthandler.register(signal.SIGTERM, LOG, chain=True)


def watch_heartbeat(
    path: Path,
    grace: float,
    report: Callable[[BaseException], None],
    progress: Progress,
) -> None:
    """Start a thread that ends this process after `grace` seconds without a beat.

    Args:
        path: file of the heartbeat.
        grace: grace period in seconds.
        report: writes the reason, in case the supervisor is alive after all.
        progress: is told when the supervisor asks where this rank is.
    """

    def watch() -> None:
        last, unchanged, is_asked = "", 0, False
        while True:
            progress.sleep(grace / LOOKS)
            try:
                # Read instead of stat, because shared file systems cache attributes.
                beat = path.read_text()
            except OSError:
                beat = last
            # Count looks instead of seconds: while a machine is suspended, time passes
            # but the supervisor cannot beat.
            unchanged = unchanged + 1 if beat == last else 0
            last = beat
            if beat.endswith(ASKS) and not is_asked:
                faulthandler.dump_traceback(LOG)
                os.write(LOG, f"{progress.explain()}\n".encode())
            is_asked = beat.endswith(ASKS)
            # A disk that is full or gone must not end this thread.
            with contextlib.suppress(OSError):
                progress.look(int(beat[:-1]) if beat.endswith(ASKS) else 0)
            if unchanged >= LOOKS:
                threading.Timer(LAST_WORDS, os._exit, (ORPHANED,)).start()
                try:
                    faulthandler.dump_traceback(LOG)
                    report(HeartbeatLost(grace))
                finally:
                    os._exit(ORPHANED)

    threading.Thread(target=watch, daemon=True, name="heartbeat").start()


def report_failure(work: Path, rank: int, error: BaseException) -> None:
    """Write an error to the log and to the rank's report file.

    The file is needed because the last output of a rank may get lost. A report that
    exists already is kept, because its measurement is complete.
    """
    traceback.print_exception(error)
    sys.stderr.flush()
    path = work / f"rank{rank}.json"
    if path.exists():
        return
    message = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        # Python does not name the file if it was already open.
        place = os.environ.get("TMPDIR", "/tmp")  # noqa: S108
        message += f" (on the host {os.uname().nodename}; TMPDIR is {place})"
    # torch's host allocator raises a plain RuntimeError, so the message decides.
    words = ("can't allocate memory", "cannot allocate memory", "out of memory")
    of_memory = isinstance(error, MemoryError) or (
        type(error).__name__ == "OutOfMemoryError"
        or any(word in str(error).lower() for word in (*words, "bad_alloc"))
    )
    report: dict[str, Any] = {
        "error": {
            "type": type(error).__name__,
            "message": message,
            "oom": of_memory,
            "cause": error.cause if isinstance(error, HeartbeatLost) else None,
        }
    }
    path.write_text(json.dumps(report))
