"""What runs on a host that ssh reaches, for as long as it hears the other side.

    python -m rankbench.launch.hosts.ssh_host hold FOLDER
    python -m rankbench.launch.hosts.ssh_host run HOST FOLDER [--apart] -- COMMAND

The other side writes its heartbeat to the standard input. At its end, or if nothing
comes for ten seconds, everything that was started here is ended.

hold: hold the lock of this host, and end what earlier launches left here.
run: run a command, and return its exit code.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rankbench.launch.hosts.base import take_lock
from rankbench.launch.processes import (
    adopt_orphans,
    end_processes,
)

SILENT_AFTER = 10.0  # seconds; the other side writes several times in each
GIVE_UP = 20.0  # seconds; a process that waits for a device cannot be killed
ROOM = 1 << 20  # bytes that ranks need at least
LOOK_SECONDS = 0.1

# What `hold` answers.
BUSY, HELD = "busy", "held"

# A variable that all processes of a launch have, those of a killed one too.
MARK = "RANKBENCH_LAUNCH"


class Hearing:
    """The heartbeat of the other side."""

    def __init__(self) -> None:
        self._heard = time.monotonic()

    def listen(self, seconds: float) -> bytes:
        """Return what comes within so many seconds.

        Raises:
            EOFError: the other side is gone.
        """
        if select.select([0], [], [], seconds)[0]:
            self._heard = time.monotonic()
            if said := os.read(0, 1 << 16):
                return said
            raise EOFError
        if time.monotonic() - self._heard >= SILENT_AFTER:
            raise EOFError
        return b""


def hold(folder: Path) -> None:
    """Hold the lock of this host until nobody is heard any more."""
    hearing, told = Hearing(), False
    while (lock := take_lock()) is None:
        if not told:
            _answer(BUSY)
            told = True
        hearing.listen(0.5)
    with lock:
        # Nothing of an earlier launch runs or is needed now.
        end_processes(_find_marked, give_up=GIVE_UP)
        launches = folder / "launches"
        shutil.rmtree(launches, ignore_errors=True)
        launches.mkdir(exist_ok=True)
        _answer(HELD)
        while True:
            hearing.listen(SILENT_AFTER)


def _answer(word: str) -> None:
    # Login scripts may print what they like before, but hardly this character.
    print(f"\x1e{word}\x1e", flush=True)


def run(host: str, folder: Path, argv: list[str], *, apart: bool) -> int:
    """Run a command in the folder of its launch, as long as the other side is heard.

    Args:
        host: name of this host.
        folder: of the launch.
        argv: the command.
        apart: whether this folder is a copy, to which the supervisor's heartbeat goes.

    Returns:
        Its exit code.
    """
    adopt_orphans()
    code: int | None = None
    try:
        child = subprocess.Popen(
            argv,
            env={**os.environ, MARK: "1"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        hearing = Hearing()
        while (code := child.poll()) is None:
            said = hearing.listen(LOOK_SECONDS)
            if apart and said:
                (folder / "work/heartbeat").write_bytes(said.splitlines()[-1])
    except EOFError:
        code = 128 + signal.SIGHUP
    except OSError as error:
        _refuse(host, f"{error.strerror}: {error.filename or argv[0]}")
        code = 1
    finally:
        end_processes(give_up=GIVE_UP)
        if apart and code and shutil.disk_usage(folder.parent).free < ROOM:
            _refuse(host, f"{os.strerror(errno.ENOSPC)}: {folder.parent}")
    # ssh itself returns 255 if it loses the host.
    return min(code if code >= 0 else 128 - code, 254)


def _refuse(host: str, why: str) -> None:
    print(f"the host {host} refuses: {why}", flush=True)


def _find_marked() -> set[int]:
    """Return processes of this user that belong to any launch."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"\0{MARK}=".encode() in b"\0" + (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found


def main() -> int:
    # The connection ends by its end of file, which is noticed; output may fail.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # It is for this program alone.
    os.environ.pop("PYTHONSAFEPATH", None)
    _, task, *words = sys.argv
    if task == "run":
        at = words.index("--")
        host, folder = words[:2]
        apart = "--apart" in words[:at]
        return run(host, Path(folder), words[at + 1 :], apart=apart)
    with contextlib.suppress(EOFError):
        hold(Path(words[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
