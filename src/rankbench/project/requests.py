"""Pending launches, and the request files that ask for them."""

from __future__ import annotations

from rankbench.launch.cell.requests import ensure_request, raise_request, read_request
from rankbench.project.run import Run


def find_pending(run: Run) -> dict[str, int]:
    """Return the number of pending launches of each chosen cell not measured yet."""
    again = {cell.id for cell in run.rerun}
    wanted = run.plan.experiment["launches"]
    found = {}
    for cell in run.feasible:
        if cell.id in again or not _is_measured(run, cell.id):
            found[cell.id] = wanted
        elif run.plan.experiment["profile"] and not _has_profile(run, cell.id):
            found[cell.id] = 0
    return found


def make_requests(run: Run) -> None:
    """Write missing requests of the chosen cells; ask for a new attempt in a rerun."""
    again = {cell.id for cell in run.rerun}
    profile = run.plan.experiment["profile"]
    for cell in run.feasible:
        if cell.id in again:
            ask = raise_request
        elif profile or not run.layout.request(cell.id).exists():
            ask = ensure_request
        else:
            continue
        ask(
            run.layout,
            cell.id,
            launches=run.plan.experiment["launches"],
            cell_hash=cell.hash,
            profile=profile,
        )


def _has_profile(run: Run, cell_id: str) -> bool:
    request = read_request(run.layout, cell_id)
    return request is not None and request.profile


def _is_measured(run: Run, cell_id: str) -> bool:
    """Return whether the summary of the cell is newer than its request."""
    summary, request = run.layout.summary(cell_id), run.layout.request(cell_id)
    try:
        return summary.stat().st_mtime >= request.stat().st_mtime
    except FileNotFoundError:
        return False
