"""Pending launches, and the request files that ask for them."""

from __future__ import annotations

from rankbench.launch.job.requests import (
    ensure_request,
    extend_request,
    raise_request,
    read_request,
)
from rankbench.project.run import Run
from rankbench.record import read_json
from rankbench.stopping import BUDGET


def find_pending(run: Run) -> dict[str, int]:
    """Return the number of pending launches of each chosen cell not measured yet."""
    again = {cell.id for cell in run.rerun}
    found = {}
    for cell in run.feasible:
        if cell.id in again or not _is_measured(run, cell.id):
            found[cell.id] = run.rule(cell.id).at_most
        elif cell.id in run.more:
            measured = read_json(run.layout.summary(cell.id))["launches_ok"]
            if run.more[cell.id] > measured:
                found[cell.id] = run.more[cell.id] - measured
        elif run.plan.experiment["profile"] and not _has_profile(run, cell.id):
            found[cell.id] = 0
    return found


def make_requests(run: Run) -> None:
    """Write missing requests of the chosen cells; ask for a new attempt in a rerun."""
    again = {cell.id for cell in run.rerun}
    profile = run.plan.experiment["profile"]
    for cell in run.feasible:
        if cell.id in run.more:
            extend_request(run.layout, cell.id, launches=run.more[cell.id])
            continue
        if cell.id in again:
            ask = raise_request
        elif (
            profile
            or not run.layout.request(cell.id).exists()
            or (run.layout.summary(cell.id).exists() and has_new_budget(run, cell.id))
        ):
            ask = ensure_request
        else:
            continue
        ask(
            run.layout,
            cell.id,
            launches=run.plan.experiment["launches"],
            cell_hash=cell.hash,
            profile=profile,
            budget=run.plan.experiment["budget"],
        )


def _has_profile(run: Run, cell_id: str) -> bool:
    request = read_request(run.layout, cell_id)
    return request is not None and request.profile


def _is_measured(run: Run, cell_id: str) -> bool:
    """Return whether the summary of the cell is newer than its request.

    A cell that the budget ended is not, once the experiment has another budget.
    """
    summary, request = run.layout.summary(cell_id), run.layout.request(cell_id)
    try:
        if summary.stat().st_mtime < request.stat().st_mtime:
            return False
    except FileNotFoundError:
        return False
    return not has_new_budget(run, cell_id)


def has_new_budget(run: Run, cell_id: str) -> bool:
    """Return whether the budget ended the launches of a cell, and is another now."""
    summary = read_json(run.layout.summary(cell_id))
    why = (summary.get("enough") or (0, ""))[1]
    new = summary.get("budget") != run.plan.experiment["budget"]
    return new and str(why).startswith(BUDGET)
