"""Measure what attempts still lack: one cell, or several that share a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rankbench.failures import explain_failures, find_wanted
from rankbench.launch.job.attempt import Attempt, Entry
from rankbench.launch.job.pace import Out
from rankbench.launch.job.places import find_places
from rankbench.launch.job.requests import Request, read_request
from rankbench.launch.job.rounds import Means, Rounds
from rankbench.launch.process.processes import Stop
from rankbench.record import (
    Layout,
    Verdict,
    read_attempt,
    read_json,
    write_json,
)
from rankbench.stopping import BEST, Enough, Launched, Rule


def run_cell(layout: Layout, cell_id: str, *, project: Path, out: Out) -> Verdict:
    """Run the missing launches of the wanted attempt, then write the summary.

    First the gate, then the measured launches, then the profile if one is wanted. It
    may be called again at any time. With nothing missing it only writes the summary.

    Args:
        layout: the result directory.
        cell_id: a feasible cell of its plan.
        project: the folder that a relative data_dir is below.
        out: where progress goes.

    Raises:
        Interrupted: a signal came, or the process that started this one died.
        ValueError: no such cell or no request for it; a file of the run is damaged.
        OSError: a record could not be written.
    """
    plan = read_json(layout.plan)
    attempt = _open(layout, plan, cell_id, project)
    if reason := attempt.why_stale():
        return _write_stale(layout, attempt, reason)
    rounds = _run([attempt], plan, lambda _: out)
    enough = rounds.enough.get(cell_id)
    return _write_summary(layout, attempt, rounds.verdict(attempt), enough)


def run_job(
    layout: Layout,
    name: str,
    cell_ids: Sequence[str],
    *,
    at_most: int | None,
    project: Path,
    out: Callable[[str], Out],
) -> None:
    """Run the missing launches of cells that share a job, in rounds.

    Args:
        layout: the result directory.
        name: of the job; it leaves `layout.job(name)`.
        cell_ids: feasible cells of the plan.
        at_most: the number of rounds; None for as many as the cells need.
        project: the folder that a relative data_dir is below.
        out: id of a cell -> where its progress goes.

    Raises:
        Interrupted, ValueError, OSError: as of `run_cell`.
    """
    plan = read_json(layout.plan)
    attempts = []
    for cell_id in cell_ids:
        try:
            attempt = _open(layout, plan, cell_id, project)
            if attempt.why_stale() is None:
                _check_needs(layout, attempt)
                if why := attempt.measured.refuse_image():
                    raise ValueError(why)
                attempts.append(attempt)
        except (ValueError, OSError) as error:
            # The other cells can be measured.
            out(cell_id).say(f"{cell_id}  not measured: {error}")
    others = _read_others(layout, plan, cell_ids, project)
    enough: dict[str, Enough] = {}
    in_turn = plan["experiment"]["order"] == "rounds"
    for together in [attempts] if in_turn else [[one] for one in attempts]:
        if together:
            enough |= _run(together, plan, out, at_most, others).enough
    write_json(layout.job(name), {"enough": {k: list(v) for k, v in enough.items()}})


def _check_needs(layout: Layout, attempt: Attempt) -> None:
    """Check that data and image of a cell were made.

    Raises:
        ValueError: they were not; says why.
    """
    needs = find_wanted([(attempt.image_name, attempt.cell.data)])
    if why := explain_failures(layout, needs):
        raise ValueError(why)


def _read_others(
    layout: Layout, plan: Entry, ours: Sequence[str], project: Path
) -> dict[str, Launched]:
    """Launches of the plan's other cells, if the rules of this experiment need them."""
    experiment = plan["experiment"]
    is_best = Rule.read(experiment["launches"]).kind == BEST
    if not is_best and experiment["budget"] is None:
        return {}
    found = {}
    for entry in plan["cells"]:
        cell_id = entry["id"]
        request = read_request(layout, cell_id)
        if entry["infeasible"] is None and cell_id not in ours and request:
            attempt = Attempt(layout, plan, entry, request, project)
            attempt.gate.read()
            attempt.measured.read()
            found[cell_id] = attempt.launched()
    return found


def summarise_cell(layout: Layout, cell_id: str, *, project: Path) -> Verdict:
    """Write the summary of a cell that a shared job has measured.

    Args:
        layout: the result directory.
        cell_id: a feasible cell of its plan.
        project: the folder that a relative data_dir is below.

    Raises:
        ValueError: the job has not measured it; a file of the run is damaged.
    """
    plan = read_json(layout.plan)
    attempt = _open(layout, plan, cell_id, project)
    if reason := attempt.why_stale():
        return _write_stale(layout, attempt, reason)
    attempt.gate.read()
    jobs = read_json(layout.agenda)["jobs"]
    job = [name for name, one in jobs.items() if cell_id in one["cells"]][-1:]
    found = read_json(layout.job(job[0]))["enough"].get(cell_id) if job else None
    enough = None if found is None else Enough(*found)
    verdict = attempt.verdict(enough)
    if not verdict.complete:
        raise ValueError(
            f"its job ended with {verdict.ok} of {verdict.wanted} launches: the log "
            "says why; run again to continue"
        )
    return _write_summary(layout, attempt, verdict, enough)


def _open(layout: Layout, plan: Entry, cell_id: str, project: Path) -> Attempt:
    entry = _find(plan, cell_id, layout)
    request = read_request(layout, cell_id)
    if request is None:
        raise ValueError(
            f"{layout.request(cell_id)} is missing: `rankbench run` writes it"
        )
    return Attempt(layout, plan, entry, request, project)


def _run(
    attempts: Sequence[Attempt],
    plan: Entry,
    out: Callable[[str], Out],
    at_most: int | None = None,
    others: Mapping[str, Launched] | None = None,
) -> Rounds:
    """Run all launches that the attempts lack."""
    with Stop().listening() as stop:
        places = find_places(
            attempts,
            plan,
            told_to_stop=stop.heed,
            say=out(attempts[0].id).say,
        )
        with places as found:
            means = Means(
                choose_hosts=found.choose,
                stop=stop,
                out=out,
                budget=plan["experiment"]["budget"],
                devices=found.devices,
                others=others or {},
            )
            rounds = Rounds(attempts, means)
            rounds.run(at_most)
    return rounds


def _find(plan: Entry, cell_id: str, layout: Layout) -> Entry:
    for entry in plan["cells"]:
        if entry["id"] == cell_id:
            if entry["infeasible"]:
                raise ValueError(f"{cell_id} cannot run here: {entry['infeasible']}")
            return dict(entry)
    raise ValueError(f"{layout.plan} has no cell {cell_id}")


def _write_stale(layout: Layout, attempt: Attempt, reason: str) -> Verdict:
    attempt.gate.read()
    verdict = replace(
        attempt.verdict(None), status="stale", reason=reason, complete=True
    )
    return _write_summary(layout, attempt, verdict, None)


def _write_summary(
    layout: Layout, attempt: Attempt, verdict: Verdict, enough: Enough | None
) -> Verdict:
    write_json(layout.summary(attempt.id), _summarise(attempt, verdict, enough))
    return verdict


def _summarise(
    attempt: Attempt, verdict: Verdict, enough: Enough | None
) -> dict[str, Any]:
    request: Request = attempt.request
    records = read_attempt(attempt.directory)
    seconds = [r["seconds"]["launch"] for r in records if r["status"] == "ok"]
    return {
        "cell": attempt.id,
        **asdict(request),
        "status": verdict.status,
        "reason": verdict.reason,
        "launches_ok": verdict.ok,
        # The number of launches that suffices and why, if a rule ended them.
        "enough": None if enough is None else list(enough),
        "launch_seconds": sum(seconds) / len(seconds) if seconds else None,
        "records": [f"{request.attempt}/{r['launch']}" for r in records],
    }
