"""Follows the cells of a run by the files that their launches write anyway.

A launch that has begun has a claim; a launch that has ended has a record; a cell that
is done has a summary. So this works for jobs on other hosts, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankbench.launch_spec import MEASURE
from rankbench.record import (
    GATE,
    PROFILE,
    Layout,
    Record,
    mtime_of,
    numbered,
    read_json,
)


class Tail:
    """Reads the lines that are appended to a file.

    Attributes:
        last: the last one that is not blank.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path, self.last = path, ""
        self._place = path.stat().st_size if from_end and path.exists() else 0

    def read(self) -> Iterator[str]:
        """Yield new lines that are complete and not blank."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._place)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._place += len(new)
        for line in new.decode(errors="replace").splitlines():
            if line.strip():
                self.last = line.strip()
                yield line


@dataclass
class WatchedCell:
    """A cell that the run measures.

    Attributes:
        wanted: launches that make it complete.
        queued: why it waits while no launch runs.
        running: the current launch, such as ``launch 3 of 6``; None if no launch runs.
        launched: number of ended launches without gate and profile; launches of an
            earlier run count.
        done: whether its summary has been written.
        begun: host clock when its first launch was seen; None before that.
    """

    id: str
    wanted: int
    queued: str = "queued"
    running: str | None = None
    launched: int = 0
    done: bool = False
    begun: float | None = None
    _seen: set[Path] = field(default_factory=set)
    _summary: int | None = None

    @property
    def seconds(self) -> float:
        """Seconds since its first launch was seen; 0 before that."""
        return 0.0 if self.begun is None else time.monotonic() - self.begun


@dataclass(frozen=True)
class Event:
    """An event in the life of a cell.

    Attributes:
        kind: ``begun`` (a launch), ``ended`` (a launch), ``done`` (the cell), or
            ``said`` (its job printed a message for users).
        text: the name of the launch, or the message.
        record: the record of an ended launch.
    """

    kind: str
    cell: WatchedCell
    text: str = ""
    record: Record | None = None


class Watch:
    """Follows the cells that a run measures."""

    def __init__(
        self,
        layout: Layout,
        pending: Mapping[str, int],
        kept: Mapping[str, int] | None = None,
    ) -> None:
        """Note which files exist before the run begins.

        Args:
            layout: the result directory.
            pending: cell to measure -> number of its launches.
            kept: cell -> number of these launches that an earlier run measured.
        """
        self._layout = layout
        self.cells = [
            WatchedCell(cell, wanted, launched=(kept or {}).get(cell, 0))
            for cell, wanted in pending.items()
        ]
        self._logs = {
            cell.id: Tail(layout.log(cell.id), from_end=True) for cell in self.cells
        }
        for cell in self.cells:
            cell._seen = {place for _, place in self._launches(cell)}
            cell._summary = mtime_of(layout.summary(cell.id))

    def look(self) -> Iterator[Event]:
        """Yield the events since the last look, cell by cell."""
        for cell in self.cells:
            if not cell.done:
                yield from self._look_at(cell)

    def _look_at(self, cell: WatchedCell) -> Iterator[Event]:
        # Read before the records, because jobs write a summary after them.
        summary = mtime_of(self._layout.summary(cell.id))
        running = None
        for purpose, place in self._launches(cell):
            # A retried launch counts once more.
            number = cell.launched + 1
            name = f"launch {number} of {max(number, cell.wanted)}"
            name = name if purpose == MEASURE else purpose
            if not (place / "record.json").exists():
                running = name
                continue
            cell._seen.add(place)
            cell.launched += purpose == MEASURE
            yield Event("ended", cell, name, read_json(place / "record.json"))
        if running and running != cell.running:
            cell.begun = cell.begun or time.monotonic()
            yield Event("begun", cell, running)
        cell.running = running
        # Messages of its job: why it waits, and errors.
        refused = f"{cell.id}  not measured: "
        for line in self._logs[cell.id].read():
            if line.startswith((" ", refused)):
                yield Event("said", cell, line.removeprefix(refused).strip())
        if summary is not None and summary != cell._summary:
            cell.done, cell.running = True, None
            yield Event("done", cell)

    def _launches(self, cell: WatchedCell) -> Iterator[tuple[str, Path]]:
        """Yield purpose and folder of each launch of all attempts that is new."""
        for attempt in self._layout.attempts(cell.id):
            place = self._layout.attempt(cell.id, attempt)
            folders = {GATE: place / GATE, MEASURE: place, PROFILE: place / PROFILE}
            for purpose, folder in folders.items():
                for number in numbered(folder):
                    if (launch := folder / str(number)) not in cell._seen:
                        yield purpose, launch
