"""Requests say which attempt of a cell is wanted; claims, who measures a launch of it.

A request is set once and raised only by a rerun. A launch is claimed by creating its
directory, so that nothing is measured twice.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from rankbench.environ import job_id, read_stat
from rankbench.launch.hosts.base import has_ended
from rankbench.record import Layout, numbered, read_json, write_json

_Kept = TypeVar("_Kept")

HEARTBEAT = "work/heartbeat"

# A heartbeat is written every second. On a shared file system another host may see it
# only after the attribute cache of NFS has expired (60 s by default).
SILENT_AFTER = 150.0


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that supervises a launch."""

    host: str
    boot: str
    pid: int
    started: int | None
    job_id: str | None

    @classmethod
    def of(cls, pid: int) -> Owner:
        """A process of this host, in the Slurm job of this one."""
        started = _start_ticks(pid)
        return cls(socket.gethostname(), _boot_id(), pid, started, job_id())

    def is_alive(self, directory: Path) -> bool:
        """Whether it still runs; on another host, whether its heartbeat continues.

        A Slurm job that has ended has no processes, which is known at once.
        """
        if self.host == socket.gethostname():
            if self.boot != _boot_id():
                return False
            # The start time distinguishes it from a later process with the same id.
            return _start_ticks(self.pid) == self.started
        if self.job_id is not None and has_ended(self.job_id):
            return False
        try:
            beat = (directory / HEARTBEAT).stat().st_mtime
        except FileNotFoundError:
            beat = (directory / "claim.json").stat().st_mtime
        return time.time() - beat < SILENT_AFTER


def claim_next(attempt_dir: Path) -> tuple[int, Path]:
    """Create the directory of the next launch, with `claim.json` in it.

    Only this user can open it until it is done (`supervise.finish`): its logs name the
    place at which ranks meet.

    Returns:
        Its number and path.
    """
    attempt_dir.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".claim-", dir=attempt_dir))
    try:
        (beside / "work").mkdir(mode=0o700)
        write_json(beside / "claim.json", asdict(Owner.of(os.getpid())))
        while True:
            number = max(numbered(attempt_dir), default=0) + 1
            place = attempt_dir / str(number)
            try:
                # The rename never replaces a directory with files in it. If two
                # processes rename at the same time, one gets this number and the other
                # the next.
                os.rename(beside, place)
                return number, place
            except OSError:
                if not place.exists():
                    raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def read_owner(directory: Path) -> Owner:
    """The owner of a launch.

    Raises:
        ValueError: the claim is damaged.
    """
    return _read(directory / "claim.json", Owner)


def _read(path: Path, kind: type[_Kept]) -> _Kept:
    """What a file keeps.

    Raises:
        ValueError: it is damaged; names the file.
    """
    value = read_json(path)
    try:
        return kind(**value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def open_claims(attempt_dir: Path) -> list[tuple[int, Path]]:
    """Launches that have been claimed and have no record yet."""
    places = [(number, attempt_dir / str(number)) for number in numbered(attempt_dir)]
    return [(n, place) for n, place in places if not (place / "record.json").exists()]


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is no more.

    Not the time of day: that changes when the clock is set.
    """
    try:
        fields = read_stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # In a container without an init process a dead orphan stays a zombie.
    return None if fields[0] in "ZX" else int(fields[22 - 3])  # starttime


@dataclass(frozen=True, slots=True)
class Request:
    """A request for launches of a cell, as the cell was defined then.

    Attributes:
        budget: device-seconds that the launches of all cells may take; None: no limit.
        profile: whether a profile of it is wanted beside them.
    """

    attempt: int
    launches: int
    cell_hash: str
    profile: bool = False
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.launches < 1 or type(self.attempt) is not int:
            raise ValueError("expected numbers of launches and of an attempt")


def read_request(layout: Layout, cell_id: str) -> Request | None:
    path = layout.request(cell_id)
    return _read(path, Request) if path.exists() else None


def make_request(
    layout: Layout, cell_id: str, *, again: bool = False, launches: int, **wanted: Any
) -> Request:
    """The request of a cell; the first one is made if there is none.

    Args:
        layout: the result directory.
        cell_id: the cell.
        again: ask for a new attempt; earlier measurements are kept.
        launches: so many in all.
        wanted: attributes of a request, without the attempt.
    """
    request = None
    with suppress(ValueError):  # A damaged one is replaced.
        request = read_request(layout, cell_id)
    if request is None or again:
        # Without a request there may be records, because the file was removed. Never
        # measure into an attempt that may be complete.
        used = [*layout.attempts(cell_id), request.attempt if request else 0]
        asked = Request(max(used) + 1, launches, **wanted)
    else:
        # The attempt stays the same: its launches are kept, and others are added.
        asked = replace(
            request,
            launches=launches,
            profile=request.profile or wanted.get("profile", False),
            budget=wanted.get("budget"),
        )
    if asked != request:
        write_json(layout.request(cell_id), asdict(asked))
    return asked
