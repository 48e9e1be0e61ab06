"""The command line. Exit status: 0 well, 1 a finding, 2 bad input."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rankbench import __version__, comparing, publishing, verifying
from rankbench.invocation import DEFAULT_EXPERIMENT, DEFAULT_PROFILE, rerun_command
from rankbench.project import Run, open_run
from rankbench.record import Layout, read_attempt
from rankbench.status import State, cells_to_rerun, find_jobs, find_state

OK, FINDING, BAD_INPUT = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; what is wrong with the input is said without a trace."""
    arguments = build_parser().parse_args(argv)
    try:
        status: int = arguments.command(arguments)
    except BrokenPipeError:
        # Whoever read this has seen enough; Python's own flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (ValueError, OSError) as error:
        print(f"rankbench: {error}", file=sys.stderr)
        return BAD_INPUT
    return status


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rankbench",
        description="Look at, rerun and tabulate the cells of an experiment.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    cells = commands.add_parser("cells", help="the matrix: what runs here, and why not")
    _add_experiment(cells)
    cells.add_argument("--only", help="key=value,value ...: part of the matrix")
    cells.set_defaults(command=list_cells)

    rerun = commands.add_parser("rerun", help="measure cells again, and the table")
    _add_experiment(rerun)
    rerun.add_argument("cell", nargs="*", help="id of a cell (`rankbench cells`)")
    rerun.add_argument("--failed", action="store_true", help="all that have failed")
    rerun.add_argument(
        "--stale",
        action="store_true",
        help="all that were measured as another cell, or in another image",
    )
    rerun.set_defaults(command=rerun_cells)

    status = commands.add_parser("status", help="the state of every cell")
    _add_experiment(status)
    status.set_defaults(command=show_status)

    show = commands.add_parser("show", help="everything that is known of one cell")
    _add_experiment(show)
    show.add_argument("cell", help="id of a cell")
    show.add_argument("--json", action="store_true", help="print its latest record")
    show.set_defaults(command=show_cell)

    table = commands.add_parser("table", help="tables and plots from plan and records")
    _add_experiment(table)
    table.add_argument("--results", type=Path, help="a result directory with plan.json")
    table.set_defaults(command=write_table)

    comparing.add_command(commands)
    _add_experiment(publishing.add_command(commands, find_results=_find_results))
    verifying.add_command(commands)

    differ = commands.add_parser(
        "diff-models", help="which tensors of two trained models differ, and how much"
    )
    differ.add_argument(
        "model",
        nargs="+",
        type=Path,
        help="a model file, or the folder of a launch; one folder compares its ranks",
    )
    differ.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        help="largest difference of an element that does not count (%(default)s)",
    )
    differ.set_defaults(command=diff_models)
    return parser


def _add_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--experiment", default=DEFAULT_EXPERIMENT, help="experiment file (%(default)s)"
    )
    parser.add_argument(
        "--override", help="one of the overrides that the experiment file names"
    )
    parser.add_argument(
        "--profile",
        default=os.environ.get("SNAKEMAKE_PROFILE", DEFAULT_PROFILE),
        help="folder of the profile with site.yaml (%(default)s)",
    )


def list_cells(arguments: argparse.Namespace) -> int:
    """Print the cells, and what a run would do."""
    run = _open(arguments, only=arguments.only)
    for cell in run.chosen:
        note = f"  unsupported: {cell.infeasible}" if cell.infeasible else ""
        print(f"{cell.id}{note}")
    print(run.preview().lines()[0], file=sys.stderr)
    return OK


def rerun_cells(arguments: argparse.Namespace) -> int:
    """Measure cells again: by Snakemake, so that there is one way to do it."""
    words = [word for word in ("failed", "stale") if getattr(arguments, word)]
    wanted = [*arguments.cell, *words]
    if not wanted:
        raise ValueError("which cells? Give their ids, --failed or --stale")
    if words == wanted:
        run = _open(arguments)
        if not any(cells_to_rerun(run.plan, run.layout, word) for word in words):
            print(f"nothing to measure again: no cell is {' or '.join(words)}")
            return OK
    cells = ",".join(wanted)
    run = _open(arguments, rerun=cells)
    config = [f"experiment={arguments.experiment}", f"rerun={cells}"]
    if arguments.override is not None:
        config.append(f"override={arguments.override}")
    command = [sys.executable, "-m", "snakemake", "--profile", arguments.profile]
    done = subprocess.run([*command, "--config", *config], check=False)
    if done.returncode:
        return FINDING
    states = [find_state(run.plan, run.layout, cell) for cell in run.rerun]
    return OK if all(state.status == "ok" for state in states) else FINDING


def show_status(arguments: argparse.Namespace) -> int:
    """Print what state every cell is in; 1 if a cell has failed.

    A line for each, and for those that were started two more: where, with the log, and
    the command that measures it again.
    """
    run = _open(arguments)
    jobs = find_jobs(run.plan, Path())
    failed = False
    for cell in run.chosen:
        state = find_state(run.plan, run.layout, cell, jobs.get(cell.id))
        failed = failed or state.has_failed
        reason = f"  {state.reason}" if state.reason else ""
        print(f"{state.status:<12} {state.launches:>5}  {cell.id}{reason}")
        if state.where:
            print(f"{'':18}  {state.where}; log: {run.layout.log(cell.id)}")
            print(f"{'':18}  again: {_rerun_command(arguments, cell.id)}")
    return FINDING if failed else OK


def show_cell(arguments: argparse.Namespace) -> int:
    """Print what a cell is, its attempts, and where its logs lie."""
    run = _open(arguments)
    cell = run.plan.find(arguments.cell)
    layout = run.layout
    attempts = {
        n: read_attempt(layout.attempt(cell.id, n)) for n in layout.attempts(cell.id)
    }
    if arguments.json:
        records = [record for found in attempts.values() for record in found]
        if not records:
            raise ValueError(f"{cell.id} has no record yet")
        print(json.dumps(records[-1], indent=1))
        return OK
    state = _state_of(run, cell.id)
    print(
        f"{cell.id}\n  status    {state.status} {state.launches}"
        + (f": {state.reason}" if state.reason else "")
    )
    if state.where:
        print(f"  where     {state.where}")
    print(f"  hash      {cell.hash}")
    for key, value in cell.cell.to_dict().items():
        print(f"  {key:<16} {value}")
    for attempt, records in attempts.items():
        for record in records:
            window = max((r["window_s"] for r in record.get("ranks", [])), default=None)
            speed = f"{record['samples'] / window:.1f} samples/s" if window else ""
            print(
                f"  attempt {attempt} launch {record['launch']}: {record['status']} "
                f"{record['reason'] or speed}  ({record['started']})"
            )
    print(f"  records   {layout.records / cell.id}")
    print(f"  log       {layout.log(cell.id)}")
    print(f"  rerun     {_rerun_command(arguments, cell.id)}")
    return OK


def write_table(arguments: argparse.Namespace) -> int:
    """Write tables and plots; needs nothing but plan.json and the records."""
    from rankbench.results import plots, summary, table

    layout = _find_results(arguments)
    found = summary.read(layout)
    table.build(layout, found)
    plots.build(layout, found)
    print(layout.table("md").read_text())
    return OK


def diff_models(arguments: argparse.Namespace) -> int:
    """Compare the first model with each of the others; 1 if one differs."""
    from rankbench.rank import saving

    paths = [path for given in arguments.model for path in saving.find_models(given)]
    if len(paths) < 2:
        raise ValueError(
            f"{paths[0]} is one model: give another one, or the folder of a launch "
            "that was measured with `save_model: per_rank`"
        )
    first = saving.load_model(paths[0])
    same = True
    for path in paths[1:]:
        found = saving.compare_models(
            first, saving.load_model(path), tolerance=arguments.tolerance
        )
        print(f"{paths[0]}\n{path}")
        for one in found:
            if one.largest is None:
                missing = one.what in ("first", "second")
                where = f"missing in the {one.what}" if missing else f"other {one.what}"
                print(f"  {one.name}: {where}")
            else:
                much = f"up to {one.largest:.3g}, relative {one.relative:.3g}"
                print(f"  {one.name}: {much}")
        count = f"{len(found)} differ" if found else "all are equal"
        print(f"  {len(first)} tensors, {count}")
        same = same and not found
    return OK if same else FINDING


def _open(
    arguments: argparse.Namespace, *, only: str | None = None, rerun: str | None = None
) -> Run:
    config = {
        "experiment": arguments.experiment,
        "override": arguments.override,
        "only": only,
        "rerun": rerun,
    }
    given = {key: value for key, value in config.items() if value is not None}
    return open_run(given, profile=Path(arguments.profile), write=True)


def _find_results(arguments: argparse.Namespace) -> Layout:
    """The result directory that is given, or that of the experiment."""
    given = arguments.results
    layout = Layout(given) if given else _open(arguments).layout
    if not layout.plan.exists():
        raise ValueError(f"{layout.plan} is missing: no experiment was run here")
    return layout


def _state_of(run: Run, cell_id: str) -> State:
    job = find_jobs(run.plan, Path()).get(cell_id)
    return find_state(run.plan, run.layout, run.plan.cells[cell_id], job)


def _rerun_command(arguments: argparse.Namespace, cell_id: str) -> str:
    return rerun_command(
        cell_id,
        experiment=arguments.experiment,
        override=arguments.override,
        profile=arguments.profile,
    )


if __name__ == "__main__":
    sys.exit(main())
