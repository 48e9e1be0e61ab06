"""Commands of jobs: ``python -m rankbench.launch cell|job|summary RESULTS NAME``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from rankbench.environ import restore_job
from rankbench.launch.job.measure import run_cell, run_job, summarise_cell
from rankbench.launch.job.pace import Out
from rankbench.launch.process.processes import Interrupted
from rankbench.record import Layout, Verdict, read_json


def main() -> int:
    """0 for every typed status; 130 if interrupted, 2 if it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m rankbench.launch")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser
    cell = add("cell", help="measure a cell, and write its summary")
    cell.set_defaults(run=_run_cell)
    job = add("job", help="measure the cells of a job that agenda.json lists")
    job.set_defaults(run=_run_job)
    summary = add("summary", help="write the summary of a cell that a job has measured")
    summary.set_defaults(run=_summarise)
    for command in (cell, job, summary):
        command.add_argument("results", type=Path, help="directory with plan.json")
        command.add_argument("name", help="id of a cell, or name of a job")
        command.add_argument("--project", type=Path, default=Path())
    arguments = parser.parse_args()
    restore_job()
    status: int = arguments.run(arguments, Layout(arguments.results))
    return status


def _run_cell(arguments: argparse.Namespace, layout: Layout) -> int:
    cell, project = arguments.name, arguments.project
    out = Out(sys.stderr, layout.log(cell))
    return _report(
        cell, lambda _: out, lambda: run_cell(layout, cell, project=project, out=out)
    )


def _summarise(arguments: argparse.Namespace, layout: Layout) -> int:
    cell, project = arguments.name, arguments.project
    out = Out(sys.stderr, layout.log(cell))
    return _report(
        cell, lambda _: out, lambda: summarise_cell(layout, cell, project=project)
    )


def _run_job(arguments: argparse.Namespace, layout: Layout) -> int:
    name = arguments.name
    log = layout.job_log(name)

    def out(cell: str) -> Out:
        own = [] if cell == f"job {name}" else [layout.log(cell)]
        return Out(sys.stderr, log, *own)

    def run() -> None:
        job = read_json(layout.agenda)["jobs"][name]
        run_job(
            layout,
            name,
            job["cells"],
            at_most=job["rounds"],
            project=arguments.project,
            out=out,
        )

    return _report(f"job {name}", out, run)


def _report(
    name: str, out: Callable[[str], Out], work: Callable[[], Verdict | None]
) -> int:
    try:
        verdict = work()
    except (Interrupted, ValueError, OSError) as error:
        # The cell that was being launched, if any was.
        notes: list[str] = getattr(error, "__notes__", [])
        name = notes[0] if notes else name
        if isinstance(error, Interrupted):
            out(name).say(f"{name}  stopped: {error}; run again to continue")
            return 130
        out(name).say(f"{name}  not measured: {error}")
        return 2
    if verdict is not None and verdict.status != "ok":
        out(name).say(f"{name}  {verdict.status}: {verdict.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
