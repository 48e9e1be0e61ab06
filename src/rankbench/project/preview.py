"""Previews a run in words: cells, launches, device-hours, images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankbench.invocation import named_in, rankbench_command
from rankbench.launch.images.store import reason_to_make
from rankbench.matrix.plan import CELL, EXPERIMENT, ROUNDS, TOPOLOGY
from rankbench.plan import PlannedCell
from rankbench.project.jobs import (
    find_pending,
    held_hours,
    jobs_of,
    mean_of_cell,
    resources_of,
    why_too_long,
)
from rankbench.project.run import Run
from rankbench.record import NOT_MEASURED, fill_means, minutes
from rankbench.schedulers import scheduler_of

# A longer list is shortened or summarised.
LISTED = 40

# Measured cells that tell how long those that were never launched may take.
_FEW = 200


class Preview:
    """A run before it starts; nothing is written.

    Attributes:
        chosen: the cells of the run.
        lacks: id of a cell to measure -> what it lacks.
        each: id of such a cell -> seconds of a launch, by earlier launches of this
            cell or of others; {} if there are none.
        never: how many of these cells were never launched.
        images: image to make before -> reason.
        jobs: name -> hosts of each Slurm job (`nodes`) and its time limit (`minutes`);
            empty on a site without Slurm.
        in_rounds: whether the launches of these cells take turns.
        held: allocation -> device-hours of the run at most, with idle devices of jobs;
            empty if each cell has a job.
        apart: cells that cannot share a job although others do.
        too_long: which job exceeds the time limit of its partition, if one does.
    """

    def __init__(self, run: Run) -> None:
        """Read what there is.

        Raises:
            ValueError: as `jobs_of`.
        """
        experiment = run.plan.experiment
        self.chosen, self.experiment = run.chosen, experiment
        self.lacks, jobs = find_pending(run), jobs_of(run)
        means = {name: lack.mean for name, lack in self.lacks.items()}
        self.never = [*means.values()].count(None)
        if self.never:
            known = [c.id for c in run.plan.feasible if c.id not in self.lacks]
            means |= {name: mean_of_cell(run, name) for name in known[:_FEW]}
        self.each = fill_means(means)
        reasons = {n: reason_to_make(run.known_images[n]) for n in run.image_names}
        self.images = {name: reason for name, reason in reasons.items() if reason}
        has_queue = scheduler_of(run.plan.site).has_queue
        asked = {name: resources_of(run, name) for name in jobs} if has_queue else {}
        self.jobs = {
            name: {"nodes": int(job["nodes"]), "minutes": int(job["runtime"])}
            for name, job in asked.items()
        }
        shares = any(len(job.cells) > 1 for job in jobs.values())
        self.in_rounds = shares and experiment["order"] == ROUNDS
        self.held = {
            allocation: held_hours(run, allocation)
            for allocation in (CELL, TOPOLOGY, EXPERIMENT)
            if has_queue and shares
        }
        apart = [job.cells[0] for job in jobs.values() if job.here]
        self.apart = [] if experiment["allocation"] == CELL else apart
        self.too_long = why_too_long(run)

    @property
    def pending(self) -> dict[str, int]:
        """Id of a cell to measure -> number of measured launches that it needs."""
        return {name: lack.launches for name, lack in self.lacks.items()}

    def lines(self, *, measured: bool = False) -> list[str]:
        """The preview as lines of text, with the measured cells if they are wanted."""
        infeasible = [c for c in self.chosen if c.infeasible]
        pending = [c for c in self.chosen if c.id in self.lacks]
        done = [c.id for c in self.chosen if not (c.infeasible or c.id in self.lacks)]
        text = [
            f"{_count(len(self.chosen), 'cell')}: {len(pending)} to measure, "
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
            alike: dict[str, list[str]] = {}
            for cell in infeasible:
                alike.setdefault(str(cell.infeasible), []).append(cell.id)
            reasons = [
                f"{first}{f' and {len(more)} more' * bool(more)}\n      {why}"
                for why, (first, *more) in alike.items()
            ]
            text += _listed("cannot run here:", reasons)
        return text

    def facts(self) -> dict[str, Any]:
        """The preview as JSON values, for programs."""
        return {
            "to_measure": self.pending,
            "why": {name: lack.why for name, lack in self.lacks.items()},
            "unsupported": {c.id: c.infeasible for c in self.chosen if c.infeasible},
            "images_to_make": self.images,
            "device_hours_at_most": self._device_hours({}),
            "device_hours": self._device_hours(self.each) if self.each else None,
            "in_rounds": self.in_rounds,
            "jobs": self.jobs,
            "too_long": self.too_long,
            "device_hours_by_allocation": self.held,
        }

    def _device_hours(self, each: Mapping[str, float]) -> float:
        """Device time of the run by seconds of its launches; at most, without them."""
        lacks = [(c.cell.size.devices, self.lacks.get(c.id), c.id) for c in self.chosen]
        limit: float = self.experiment["time_limit"]
        seconds = sum(
            devices * (lack.launches * each[name] if each else lack.total * limit)
            for devices, lack, name in lacks
            if lack
        )
        return seconds / 3600

    def _describe(self, cell: PlannedCell) -> str:
        lack = self.lacks[cell.id]
        launches = _count(lack.launches, "launch")
        ranks = _count(cell.shape.ranks, "rank")
        marks = f"  [{', '.join(cell.marks)}]" if cell.marks else ""
        said = "" if lack.why == NOT_MEASURED else f"  ({lack.why})"
        return f"{cell.id}  {launches} of {ranks}{marks}{said}"

    def _cost(self, pending: Sequence[PlannedCell]) -> list[str]:
        launches = sum(self.pending.values())
        beside = sum(lack.beside for lack in self.lacks.values())
        processes = sum(c.shape.ranks * self.lacks[c.id].total for c in pending)
        more = f", {beside} more for gates or profiles" if beside else ""
        limit = f"time_limit: {self.experiment['time_limit']:g} s each"
        if self.each:
            # As NEXT of the answer counts it, which does not know of gates.
            seconds = sum(self.lacks[c.id].launches * self.each[c.id] for c in pending)
            time = "" if self.jobs else f"{minutes(seconds)}, "
            used = _plain(self._device_hours(self.each))
            cost = f"about {time}{used} device-hours, by earlier launches"
            if self.never:
                cost += f" (never launched: {self.never}, taken as the mean)"
        elif self.jobs:
            cost = f"at most {_plain(self._device_hours({}))} device-hours ({limit})"
        else:
            cost = f"time not known yet ({limit})"
        started = _count(processes, "process")
        lines = [f"{_count(launches, 'launch')}{more}, {started}: {cost}"]
        unknown = [
            c for c in pending if c.cell.device == "cuda" and c.estimated_mib is None
        ]
        if unknown:
            options = ["-n", "--memory"]
            asked = rankbench_command(
                "run", options=options, **named_in(self.experiment)
            )
            lines.append(
                f"not known whether {len(unknown)} of them fit into the memory of a "
                f"GPU: {asked} estimates it"
            )
        if self.in_rounds:
            lines.append("in rounds: launches of the cells take turns in random order")
        if self.jobs:
            longest = max(self.jobs, key=lambda name: self.jobs[name]["minutes"])
            hosts = _count(self.jobs[longest]["nodes"], "host")
            lines.append(
                f"{_count(len(self.jobs), 'job')}; the longest may take "
                f"{self.jobs[longest]['minutes']} minutes on {hosts}: {longest}"
            )
        if self.held:
            hours = ", ".join(
                f"{name} {_plain(own)}" for name, own in self.held.items()
            )
            said = "device-hours at most, idle hosts included, by allocation"
            lines.append(f"{said}: {hours}")
        if self.apart:
            said = "in jobs of their own, because a job array has a job for each host"
            lines.append(f"{said}: {', '.join(self.apart)}")
        if self.too_long:
            lines.append(f"too long: {self.too_long}")
        return lines


def _count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun[-1] in "hs" else "s")
    return f"{number} {noun if number == 1 else plural}"


def _plain(number: float) -> str:
    """Three digits, without an exponent below a million."""
    return f"{float(f'{number:.3g}'):,g}"


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    shown = [f"  {line}" for line in lines[:LISTED]]
    if len(lines) > LISTED:
        shown.append(f"  ... and {len(lines) - LISTED} more")
    return [title, *shown]
