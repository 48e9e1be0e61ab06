"""A job: it runs the launches that the attempts of its cells still lack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rankbench.failures import explain_failures, find_needs
from rankbench.launch.hosts.base import Needs, Waiting, hosts_of, machine_to_itself
from rankbench.launch.job.attempt import Attempt
from rankbench.launch.job.claim import read_request
from rankbench.launch.job.network import check_network
from rankbench.launch.job.rounds import Choose, Rounds, Say
from rankbench.launch.launchers import find_launcher, is_array
from rankbench.launch.processes import Stop
from rankbench.launch_spec import SOURCE
from rankbench.plan import Plan, read_plan
from rankbench.record import (
    Layout,
    Verdict,
    describe_speed,
    read_attempt,
    read_json,
    write_json,
)
from rankbench.schedulers import scheduler_of
from rankbench.stopping import LaunchHistory


def run_job(layout: Layout, name: str, *, project: Path, say: Say) -> bool:
    """Run the missing launches of the cells of a job, and write their summaries.

    First the gates, then the measured launches in rounds, then the profiles that are
    wanted. It may be called again at any time. With nothing missing it only writes the
    summaries.

    Args:
        layout: the result directory.
        name: of a job of the present run, or the id of a cell, which is then measured
            alone.
        project: the folder that a relative data_dir is below.
        say: gets lines of progress.

    Returns:
        Whether each of its cells has a summary, or is left to a later job.

    Raises:
        Interrupted: a signal came, or the process that started this one died.
        ValueError: no such job; a file of the run is damaged.
        OSError: a record could not be written.
    """
    plan = read_plan(layout.plan)
    jobs = read_json(layout.agenda)["jobs"]
    if name not in jobs and name not in plan.cells:
        raise ValueError(f"{layout.agenda} has no job, {layout.plan} no cell {name}")
    job = jobs.get(name) or {"cells": [name], "rounds": None}
    is_last = name not in {other["after"] for other in jobs.values()}
    statuses: dict[str, str] = {}
    attempts = []
    for cell_id in job["cells"]:
        try:
            planned, request = plan.cells[cell_id], read_request(layout, cell_id)
            if planned.infeasible:
                raise ValueError(f"it cannot run here: {planned.infeasible}")
            if request is None:
                path = layout.request(cell_id)
                raise ValueError(
                    f"{path} is missing: run the experiment again to write it"
                )
            attempt = Attempt(layout, plan, planned, request, project)
            attempt.read()
            if attempt.stale is None:
                attempts.append(attempt)
                continue
            statuses[cell_id] = _end(layout, attempt, attempt.verdict(None), None, say)
        except (ValueError, OSError) as error:
            # The other cells can be measured.
            say(cell_id, f"{cell_id}  not measured: {error}")
    budget = plan.experiment["budget"]
    others = _read_others(layout, plan, job["cells"], project)
    in_turn = plan.experiment["order"] == "rounds"
    with Stop().listening() as stop:
        for together in [attempts] if in_turn else [[one] for one in attempts]:
            rounds = Rounds(together, say=say, budget=budget, others=others)
            _launch_rounds(rounds, layout, plan, stop, say, job["rounds"])
            for cell_id, attempt in rounds.attempts.items():
                verdict = rounds.verdicts[cell_id]
                if verdict.complete:
                    enough = rounds.enough.get(cell_id)
                    statuses[cell_id] = _end(layout, attempt, verdict, enough, say)
                elif is_last:
                    say(
                        cell_id,
                        f"{cell_id}  not measured: its job ended with {verdict.ok} "
                        f"of {verdict.wanted} launches: run again to continue",
                    )
    if name in jobs:
        write_json(layout.job(name), statuses)
    return not is_last or len(statuses) == len(job["cells"])


def _launch_rounds(
    rounds: Rounds,
    layout: Layout,
    plan: Plan,
    stop: Stop,
    say: Say,
    at_most: int | None,
) -> None:
    """Run the launches that are missing, without cells that cannot run here."""
    for attempt in rounds.find_unfinished():
        # Data or image were not made, or are not here.
        needs = find_needs([(attempt.planned.image, attempt.cell.data)])
        try:
            why = explain_failures(layout, needs) or attempt.refuse_host()
        except (ValueError, OSError) as error:
            why = str(error)
        if why:
            say(attempt.id, f"{attempt.id}  not measured: {why}")
            del rounds.attempts[attempt.id]
    if not rounds.find_unfinished():
        return
    measured = list(rounds.attempts.values())
    with _open_hosts(measured, plan, stop, say) as (choose, devices):
        if plan.experiment["network_check"]:
            widest = max(measured, key=lambda each: each.shape.nodes)
            hosts = choose(widest, 0)
            check_network(layout, plan.site, hosts, partial(say, widest.id))
        rounds.run(choose, stop, devices=devices, at_most=at_most)


def _read_others(
    layout: Layout, plan: Plan, ours: Sequence[str], project: Path
) -> dict[str, LaunchHistory]:
    """Launches of the plan's other cells, which spend from the same budget."""
    if plan.experiment["budget"] is None:
        return {}
    found = {}
    for planned in plan.feasible:
        request = read_request(layout, planned.id)
        if planned.id not in ours and request:
            attempt = Attempt(layout, plan, planned, request, project)
            # A damaged record must not end the jobs of other cells.
            with suppress(ValueError):
                attempt.gate.read()
                attempt.measured.read()
                found[planned.id] = attempt.launched()
    return found


@contextmanager
def _open_hosts(
    attempts: Sequence[Attempt], plan: Plan, stop: Stop, say: Say
) -> Iterator[tuple[Choose, int | None]]:
    """A context in which a job has its hosts, and nothing else measures there.

    Yields:
        A function of an attempt and the number of the round from 0, which gives the
        hosts of a launch; and how many devices the job holds, idle ones too, or None if
        only the cell's.

    Raises:
        ValueError: it lacks what a cell needs, or a host cannot be used.
    """
    waiting = Waiting(partial(say, attempts[0].id), stop.heed)
    if is_array(find_launcher(attempts[0].cell.launcher)):
        from rankbench.launch.hosts.slurm_resources import plan_array  # few need it

        with machine_to_itself(waiting):
            yield lambda attempt, _: plan_array(plan, attempt.planned), None
        return
    images = [attempt.image for attempt in attempts if attempt.image is not None]
    files = {attempt.data_dir / f"{attempt.cell.data}.npz" for attempt in attempts}
    needs = Needs(
        source=SOURCE,
        code=attempts[0].code["rank"],
        data_dir=attempts[0].data_dir,
        data=sorted(path for path in files if path.exists()),
        # Without a hash the image is unusable; its launches say why.
        images={image["file"]: image["sha256"] for image in images if image["sha256"]},
        own=sorted({folder for each in attempts for folder in each.own_folders}),
        native=len(images) < len(attempts),
    )
    nodes = max(attempt.shape.nodes for attempt in attempts)
    with hosts_of(plan.site).open(plan.site, nodes, needs, waiting) as hosts:
        if len(attempts) == 1:
            # All launches are on the same hosts.
            yield lambda attempt, _: hosts.choose(nodes, 0), None
            return
        held = None
        if scheduler_of(plan.site).has_queue:
            widest = max(attempt.cell.size.devices_per_node for attempt in attempts)
            held = len(hosts.names) * widest
        yield lambda attempt, turn: hosts.choose(attempt.shape.nodes, turn), held


def _end(
    layout: Layout,
    attempt: Attempt,
    verdict: Verdict,
    enough: int | None,
    say: Say,
) -> str:
    """Write the summary of a cell, and return its status."""
    image = attempt.image
    summary = {
        **asdict(attempt.request),
        "status": verdict.status,
        "reason": verdict.reason,
        "launches_ok": verdict.ok,
        # The number of launches, if the budget ended them.
        "enough": enough,
        "image": image and {key: image[key] for key in ("recipe", "sha256")},
    }
    number = attempt.request.attempt
    write_json(layout.summary(attempt.id, number), summary)
    said = f"{attempt.id}  {verdict.status}: {verdict.reason}"
    if verdict.status == "ok":
        said = f"{attempt.id}  ok {verdict.ok}/{verdict.wanted}"
        with suppress(ValueError):
            folders = (attempt.directory, layout.attempt(attempt.id, number - 1))
            now, before = (describe_speed(read_attempt(each)) for each in folders)
            if before:
                said += f"  {now}; attempt {number - 1}: {before}"
    say(attempt.id, said)
    return verdict.status
