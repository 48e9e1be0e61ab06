"""The data of each cell for the page: its row, and its own view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankbench.invocation import (
    DEFAULT_EXPERIMENT,
    rankbench_command,
)
from rankbench.record import Layout, Record
from rankbench.results.elements.text import describe_base
from rankbench.results.numbers.summary import Summary
from rankbench.results.render.html.facts import (
    Pool,
    number,
    value_and_ends,
    without_blanks,
)
from rankbench.results.render.html.launches import describe_attempts
from rankbench.results.sections.profiles import TOP, Profile
from rankbench.schedulers import scheduler_of


def find_common(summaries: Sequence[Summary]) -> Record:
    """Fields of the definition that all cells agree on."""
    cells = [summary.row.cell.to_dict() for summary in summaries]
    if not cells:
        return {}
    return {
        field: value
        for field, value in cells[0].items()
        if all(cell[field] == value for cell in cells)
    }


def describe_cell(
    layout: Layout,
    summary: Summary,
    plan: Mapping[str, Any],
    profile: Profile | None,
    *,
    common: Record,
    facts: Pool,
) -> dict[str, Any]:
    """A cell with its attempts; values that are blank or common to all are left out.

    Args:
        plan: as `plan.json` has it.
        profile: of this cell.
        common: fields of the definition that all cells share.
        facts: a pool of values that cells share.

    Raises:
        ValueError: a record is damaged; the message names it.
    """
    row = summary.row
    definition = row.cell.to_dict()
    return without_blanks(
        id=row.id,
        status=row.status,
        reason=row.reason,
        marks=list(summary.marks),
        ok=row.ok,
        wanted=row.wanted,
        devices=row.devices,
        attempt=row.attempt,
        own={k: v for k, v in definition.items() if k not in common},
        numbers={name: value_and_ends(one) for name, one in summary.numbers.items()},
        bases=[describe_base(base) for base in summary.bases],
        phases=mean_phases(summary),
        attempts=describe_attempts(layout, summary, facts),
        profile=None if profile is None else _describe_profile(profile),
        rerun=_rerun(row.id, plan) if row.wanted else None,
        log=_find_log(layout, row.id),
    )


def mean_phases(summary: Summary) -> dict[str, float | None]:
    """Milliseconds of a step by phase, mean over the launches."""
    count = len(summary.measures)
    sums: dict[str, float] = {}
    for launch in summary.measures:
        for phase, ms in launch.phase_ms.items():
            sums[phase] = sums.get(phase, 0.0) + ms
    return {phase: number(total / count) for phase, total in sums.items()}


def _find_log(layout: Layout, cell_id: str) -> str | None:
    """The log of a cell, if it has any lines; relative to the result directory."""
    path = layout.log(cell_id)
    if path.exists() and path.stat().st_size:
        return path.relative_to(layout.root).as_posix()
    return None


def _describe_profile(profile: Profile) -> dict[str, Any]:
    return {
        "plot": profile.plot,
        "ranks": [
            {
                "rank": rank.rank,
                "trace": rank.trace,
                "operators": [
                    [one.name, *map(number, (one.calls, one.cpu_ms, one.share))]
                    for one in rank.operators[:TOP]
                ],
            }
            for rank in profile.ranks
        ],
    }


def _rerun(cell_id: str, plan: Mapping[str, Any]) -> str:
    """The command that reruns a cell, with the profile of the plan's scheduler."""
    experiment = plan["experiment"]
    return rankbench_command(
        "rerun",
        cells=[cell_id],
        experiment=experiment.get("file", DEFAULT_EXPERIMENT),
        override=experiment.get("override"),
        site=scheduler_of(plan.get("site") or {}).profile,
    )
