"""Previews a run in words: cells, launches, device-hours, images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rankbench.invocation import named_in, rankbench_command
from rankbench.launch.images.store import reason_to_make
from rankbench.matrix.plan import CELL, EXPERIMENT, ROUNDS, TOPOLOGY
from rankbench.plan import PlannedCell
from rankbench.project.jobs import (
    count_beside,
    find_pending,
    group_of,
    held_seconds,
    jobs_of,
    mean_seconds,
    resources_of,
    why_too_long,
)
from rankbench.project.run import Run
from rankbench.record import NOT_MEASURED, minutes
from rankbench.schedulers import scheduler_of

# A longer list is shortened or summarised.
LISTED = 40


@dataclass(frozen=True)
class Preview:
    """A run before it starts.

    Attributes:
        chosen: the cells of the run.
        pending: id of a cell to measure -> number of launches it still needs.
        seconds: id of a cell -> seconds of a launch in earlier records, if any.
        time_limit: limit for a launch, in seconds.
        beside: id of a cell -> number of its launches that are not measured (gate,
            profile).
        images: image to make before -> reason.
        jobs: name -> hosts of each Slurm job (`nodes`) and its time limit (`minutes`);
            empty on a site without Slurm.
        in_rounds: whether the launches of these cells take turns.
        held: allocation -> device-seconds of the run under it, with idle devices.
        apart: cells that cannot share a job although others do.
        too_long: which job exceeds the time limit of its partition, if one does.
        why: id of a cell to measure -> what it lacks.
        named: arguments for `rankbench_command` that name the experiment.
    """

    chosen: Sequence[PlannedCell]
    pending: Mapping[str, int]
    seconds: Mapping[str, float]
    time_limit: float
    beside: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    jobs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    in_rounds: bool = False
    held: Mapping[str, float] = field(default_factory=dict)
    apart: Sequence[str] = ()
    too_long: str | None = None
    why: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, Any] = field(default_factory=dict)

    def lines(self, *, measured: bool = False) -> list[str]:
        """The preview as lines of text, with the measured cells if they are wanted."""
        infeasible = [c for c in self.chosen if c.infeasible]
        pending = [c for c in self.chosen if c.id in self.pending]
        done = [c.id for c in self.chosen if not (c.infeasible or c.id in self.pending)]
        text = [
            f"{len(self.chosen)} cell{'s' * (len(self.chosen) != 1)}: "
            f"{len(pending)} to measure, "
            f"{len(done)} measured, {len(infeasible)} that cannot run here"
        ]
        if pending:
            text += self._cost(pending)
            text += _listed("to measure:", [self._describe(c) for c in pending])
        if measured and done:
            text += _listed("measured:", done)
        if self.images:
            made = [f"{name}  {reason}" for name, reason in self.images.items()]
            text += _listed("images to make:", made)
        if infeasible:
            reasons = [f"{c.id}  {c.infeasible}" for c in infeasible]
            if len(infeasible) > LISTED:
                counts = Counter(c.infeasible for c in infeasible)
                reasons = [f"{count} cells  {why}" for why, count in counts.items()]
            text += _listed("cannot run here:", reasons)
        return text

    def facts(self) -> dict[str, Any]:
        """The preview as JSON values, for programs."""
        return {
            "to_measure": dict(self.pending),
            "why": dict(self.why),
            "unsupported": {c.id: c.infeasible for c in self.chosen if c.infeasible},
            "images_to_make": dict(self.images),
            "device_hours_at_most": self._device_seconds({}) / 3600,
            "device_hours": self._device_seconds(estimates) / 3600
            if (estimates := self._estimates())
            else None,
            "in_rounds": self.in_rounds,
            "jobs": dict(self.jobs),
            "too_long": self.too_long,
        }

    def _count(self, cell: PlannedCell) -> int:
        """Launches that a pending cell needs, with those that are not measured."""
        return self.pending[cell.id] + self.beside.get(cell.id, 0)

    def _device_seconds(self, seconds: Mapping[str, float]) -> float:
        """Device time of the run: id of a cell -> seconds that a launch takes.

        Cells without a number take the time limit.
        """
        return sum(
            c.cell.size.devices * self._count(c) * seconds.get(c.id, self.time_limit)
            for c in self.chosen
            if c.id in self.pending
        )

    def _estimates(self) -> dict[str, float]:
        """Seconds of a launch of each pending cell; {} if none was ever launched.

        One that was not counts as the mean of the others.
        """
        if not self.seconds:
            return {}
        usual = fmean(self.seconds.values())
        return {name: self.seconds.get(name, usual) for name in self.pending}

    def _describe(self, cell: PlannedCell) -> str:
        shape, launches = cell.shape, self.pending[cell.id]
        ranks = f"{shape.ranks} rank" + ("s" if shape.ranks > 1 else "")
        marks = f"  [{', '.join(cell.marks)}]" if cell.marks else ""
        why = self.why.get(cell.id, NOT_MEASURED)
        said = "" if why == NOT_MEASURED else f"  ({why})"
        return f"{cell.id}  {launches} launches of {ranks}{marks}{said}"

    def _cost(self, pending: Sequence[PlannedCell]) -> list[str]:
        launches = sum(self.pending.values())
        beside = sum(self.beside.values())
        processes = sum(c.shape.ranks * self._count(c) for c in pending)
        more = f" and {beside} for gates or profiles" if beside else ""
        if estimates := self._estimates():
            seconds = sum(self._count(c) * estimates[c.id] for c in pending)
            time = "" if self.jobs else f"{minutes(seconds)}, "
            used = _hours(self._device_seconds(estimates))
            cost = f"about {time}{used} device-hours, by earlier launches"
            if others := len(pending) - len(self.seconds):
                cost += f" (never launched: {others}, taken as the mean)"
        else:
            limit = f"time_limit: {self.time_limit:g} s each"
            cost = f"the first will tell how long it takes ({limit})"
            if self.jobs:
                most = _hours(self._device_seconds({}))
                cost = f"at most {most} device-hours ({limit})"
        lines = [f"{launches} launches{more}, {processes} processes: {cost}"]
        unknown = [
            c for c in pending if c.cell.device == "cuda" and c.estimated_mib is None
        ]
        if unknown:
            options = ["-n", "--memory"]
            asked = rankbench_command("run", options=options, **self.named)
            lines.append(
                f"nobody knows whether {len(unknown)} of them fit the memory of a GPU: "
                f"{asked} estimates it"
            )
        if self.in_rounds:
            lines.append("in rounds: launches of the cells take turns in random order")
        if self.jobs:
            longest = max(self.jobs, key=lambda name: self.jobs[name]["minutes"])
            nodes, spent = (self.jobs[longest][key] for key in ("nodes", "minutes"))
            jobs = f"{len(self.jobs)} job" + ("s" if len(self.jobs) > 1 else "")
            hosts = f"{nodes} host" + ("s" if nodes > 1 else "")
            lines.append(
                f"{jobs}; the longest may take {spent} minutes on {hosts}: {longest}"
            )
        if self.too_long:
            lines.append(f"too long: {self.too_long}")
        if self.held:
            hours = [f"{name} {_hours(spent)}" for name, spent in self.held.items()]
            lines.append(
                "device-hours at most, idle hosts included, by allocation: "
                + ", ".join(hours)
            )
        if self.apart:
            lines.append(
                f"in jobs of their own, because a job array has a job for each host: "
                f"{', '.join(self.apart)}"
            )
        return lines


def make_preview(run: Run) -> Preview:
    """Return what a run would do; write nothing."""
    lacks, jobs = find_pending(run), jobs_of(run)
    pending = {name: lack.launches for name, lack in lacks.items()}
    experiment, has_queue = run.plan.experiment, scheduler_of(run.plan.site).has_queue
    means = {cell_id: mean_seconds(run, cell_id) for cell_id in pending}
    images = {name: reason_to_make(run.known_images[name]) for name in run.image_names}
    alone = [c.id for c in run.feasible if c.id in pending and group_of(run, c) == c.id]
    shared = len(alone) < len(pending)
    asked = {name: resources_of(run, name) for name in jobs} if has_queue else {}
    return Preview(
        run.chosen,
        pending,
        {cell_id: mean for cell_id, mean in means.items() if mean is not None},
        experiment["time_limit"],
        {cell_id: count_beside(run, cell_id) for cell_id in pending},
        {name: reason for name, reason in images.items() if reason},
        {
            name: {"nodes": int(job["nodes"]), "minutes": int(job["runtime"])}
            for name, job in asked.items()
        },
        in_rounds=shared and experiment["order"] == ROUNDS,
        held={
            allocation: held_seconds(run, allocation)
            for allocation in (CELL, TOPOLOGY, EXPERIMENT)
            if has_queue and shared
        },
        apart=[] if experiment["allocation"] == CELL else alone,
        too_long=why_too_long(run),
        why={name: lack.why for name, lack in lacks.items()},
        named=named_in(experiment),
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g}"


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    shown = [f"  {line}" for line in lines[:LISTED]]
    if len(lines) > LISTED:
        shown.append(f"  ... and {len(lines) - LISTED} more")
    return [title, *shown]
