"""What a run would do, in words: cells, launches, device-hours, images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankbench.cell import Topology
from rankbench.matrix.plan import PlannedCell

# A matrix of thousands is summed up, not listed.
LISTED = 40


@dataclass(frozen=True)
class Preview:
    """A run before it starts.

    Attributes:
        chosen: cells that the run is about.
        pending: those of them that would be measured, with the launches to come.
        seconds: seconds of a launch in earlier records, for the cells that have any.
        time_limit: seconds of a launch at most.
        beside: launches that are not measured, for each of those cells: its gate, its
            profile.
        images: those that would be made before, and why.
        minutes: how long the job of each of those cells may take; empty where cells are
            no jobs.
    """

    chosen: Sequence[PlannedCell]
    pending: Mapping[str, int]
    seconds: Mapping[str, float]
    time_limit: float
    beside: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    minutes: Mapping[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        infeasible = [c for c in self.chosen if c.infeasible]
        pending = [c for c in self.chosen if c.id in self.pending]
        done = len(self.chosen) - len(infeasible) - len(pending)
        text = [
            f"{len(self.chosen)} cells: {len(pending)} to measure, {done} measured, "
            f"{len(infeasible)} that cannot run here"
        ]
        if pending:
            text += self._cost(pending)
            text += _listed("to measure:", [self._describe(c) for c in pending])
        if self.images:
            made = [f"{name}  {reason}" for name, reason in self.images.items()]
            text += _listed("images to make:", made)
        if infeasible:
            text += _listed("cannot run here:", _grouped(infeasible))
        return text

    def facts(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "to_measure": dict(self.pending),
            "unsupported": {c.id: c.infeasible for c in self.chosen if c.infeasible},
            "images_to_make": dict(self.images),
            "device_hours_at_most": self._most() / 3600,
        }

    def _most(self) -> float:
        """Seconds that all devices are held at most."""
        return (
            sum(
                _devices(c) * (self.pending[c.id] + self.beside.get(c.id, 0))
                for c in self.chosen
                if c.id in self.pending
            )
            * self.time_limit
        )

    def _describe(self, cell: PlannedCell) -> str:
        shape, launches = cell.shape, self.pending[cell.id]
        ranks = f"{shape.ranks} rank" + ("s" if shape.ranks > 1 else "")
        marks = f"  [{', '.join(cell.marks)}]" if cell.marks else ""
        return f"{cell.id}  {launches} launches of {ranks}{marks}"

    def _cost(self, pending: Sequence[PlannedCell]) -> list[str]:
        launches = sum(self.pending.values())
        beside = sum(self.beside.values())
        all_of = {c.id: self.pending[c.id] + self.beside.get(c.id, 0) for c in pending}
        processes = sum(c.shape.ranks * all_of[c.id] for c in pending)
        more = f" and {beside} that check or profile" if beside else ""
        lines = [
            f"{launches} launches{more}, {processes} processes, at most "
            f"{_hours(self._most())} device-hours "
            f"(time limit {self.time_limit:g} s a launch)"
        ]
        known = [c for c in pending if c.id in self.seconds]
        if known:
            spent = sum(
                _devices(c) * self.pending[c.id] * self.seconds[c.id] for c in known
            )
            lines.append(
                f"by the records of {len(known)} of them: {_hours(spent)} device-hours"
            )
        if self.minutes:
            longest = max(self.minutes, key=lambda cell: self.minutes[cell])
            lines.append(
                f"{len(self.minutes)} jobs; the longest may take "
                f"{self.minutes[longest]} minutes: {longest}"
            )
        return lines


def _devices(cell: PlannedCell) -> int:
    return Topology.parse(cell.cell.topology).devices


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g}"


def _grouped(cells: Sequence[PlannedCell]) -> list[str]:
    """A line per cell; where they are many, a line per reason."""
    if len(cells) <= LISTED:
        return [f"{c.id}  {c.infeasible}" for c in cells]
    counts: dict[str, int] = {}
    for cell in cells:
        reason = str(cell.infeasible)
        counts[reason] = counts.get(reason, 0) + 1
    return [f"{count} cells  {reason}" for reason, count in counts.items()]


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    shown = [f"  {line}" for line in lines[:LISTED]]
    if len(lines) > LISTED:
        shown.append(f"  ... and {len(lines) - LISTED} more")
    return [title, *shown]
