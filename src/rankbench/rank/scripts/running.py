"""Runs the file of a script as Python would, and says why one ended too early."""

from __future__ import annotations

import os
import runpy
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from torch import distributed

from rankbench.environ import Place

LOOPBACK = "127.0.0.1"

# Bytes at the end of a script's output in which the reason of its end is looked for.
_TAIL = 8192


class ScriptError(RuntimeError):
    """A script did not do what its measurement needs."""


def place_variables(place: Place, init_method: str) -> dict[str, str]:
    """The variables that scripts read, whichever launcher started them.

    They are those of torchrun. With ``env://`` the launcher has set the place to meet.

    Args:
        place: of this rank.
        init_method: URL at which the ranks meet.
    """
    url = urlsplit(init_method)
    if url.scheme == "tcp":
        meeting = (str(url.hostname), str(url.port))
    elif url.scheme == "file":
        meeting = _agree(place, init_method)
    else:
        return place.export()
    return place.export() | dict(
        zip(("MASTER_ADDR", "MASTER_PORT"), meeting, strict=True)
    )


def _agree(place: Place, init_method: str) -> tuple[str, str]:
    """Host and port of rank 0, which tells the others by a file."""
    store, _, _ = next(distributed.rendezvous(init_method, place.rank, place.size))
    if place.rank == 0:
        spread = place.size > place.local_size
        host = socket.gethostname() if spread else LOOPBACK
        with socket.create_server((host, 0)) as server:
            store.set("meeting", f"{host} {server.getsockname()[1]}")
    host, port = store.get("meeting").decode().split()
    return host, port


def copy_folder(frozen: Path, folder: Path) -> None:
    """Copy the files of a script, which other ranks of the host do at the same time.

    Scripts write into their folder, so each launch has a copy of its own.
    """
    if folder.exists():
        return
    beside = folder.with_name(f".{folder.name}.{socket.gethostname()}.{os.getpid()}")
    beside.mkdir()
    # The files of the copy are writable, even if the frozen ones are not.
    for path in sorted(frozen.rglob("*")):
        target = beside / path.relative_to(frozen)
        target.mkdir() if path.is_dir() else shutil.copyfile(path, target)
    try:
        beside.rename(folder)
    except OSError:
        shutil.rmtree(beside)
        if not folder.exists():
            raise


def run_file(folder: Path, name: str, arguments: Sequence[str]) -> None:
    """Run a file as `python FILE ARGUMENTS` in its folder, but in this process.

    Raises:
        BaseException: whatever the script raises.
    """
    if sys.path[0] in ("", os.getcwd()):
        del sys.path[0]  # Python has put it there for `python -m rankbench.rank`.
    os.chdir(folder)
    file = folder / name
    sys.path.insert(0, str(file.parent))
    sys.argv = [str(file), *arguments]
    runpy.run_path(str(file), run_name="__main__")


def explain_exit(
    name: str, status: object, progress: str, log: Path, since: int
) -> str:
    """Why a script that has called `sys.exit` ended, in one line.

    Args:
        name: file name of the script.
        status: argument of `SystemExit`; neither 0 nor None.
        progress: how far the script came, in words.
        log: the script's output.
        since: size of the log when the script began.
    """
    if not isinstance(status, int):
        return f"{name} {progress}: {status}"
    last = read_tail(log, since)
    usage = [at for at, line in enumerate(last) if line.lower().startswith("usage: ")]
    if status == 2 and usage:
        # The last line of argparse and click says what is wrong.
        shown = " ".join(line.strip() for line in last[usage[-1] : -1])
        return f"{name} refuses its arguments: {last[-1]} ({shown})"
    said = last[-1] if last else "it printed nothing"
    return f"{name} {progress} and exited with status {status}: {said}"


def read_tail(log: Path, since: int) -> list[str]:
    """The last lines of a script's output that are not blank."""
    sys.stdout.flush()
    sys.stderr.flush()
    with open(log, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(since, size - _TAIL))
        lines = file.read().decode(errors="replace").splitlines()
    return [line.rstrip() for line in lines if line.strip()]
