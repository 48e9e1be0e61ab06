"""What all commands share: how they are added and end, and how they find a run."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankbench.invocation import DEFAULT_EXPERIMENT, DEFAULT_PROFILE, rerun_command
from rankbench.project import Run, open_run
from rankbench.record import Layout

OK, FINDING, BAD_INPUT = 0, 1, 2


def add_parser(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    about: str,
    examples: str,
    json_holds: str,
) -> argparse.ArgumentParser:
    """Add a command to the parser of `rankbench`; returns its own.

    Args:
        run: does it, and returns the exit status.
        summary: a line for the list of commands.
        about: what stands above its options.
        examples: what stands below them, exit status included.
        json_holds: what `--json` prints.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help=f"print JSON: {json_holds}")
    parser.set_defaults(command=run)
    return parser


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """Options that say which experiment a command is about."""
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


def add_results(parser: argparse.ArgumentParser) -> None:
    """An experiment, or a result directory that needs none."""
    add_experiment(parser)
    parser.add_argument(
        "--results", type=Path, help="a result directory with plan.json"
    )


def plan_run(
    arguments: argparse.Namespace, *, only: str | None = None, rerun: str | None = None
) -> Run:
    """The plan of the experiment that `add_experiment` asked for.

    Raises:
        ValueError: what is wrong with the input.
    """
    config = {
        "experiment": arguments.experiment,
        "override": arguments.override,
        "only": only,
        "rerun": rerun,
    }
    given = {key: value for key, value in config.items() if value is not None}
    return open_run(given, profile=Path(arguments.profile), write=True)


def find_results(arguments: argparse.Namespace) -> Layout:
    """The result directory that is given, or that of the experiment.

    Raises:
        ValueError: there is no plan in it.
    """
    given = arguments.results
    layout = Layout(given) if given else plan_run(arguments).layout
    if not layout.plan.exists():
        raise ValueError(f"{layout.plan} is missing: no experiment was run here")
    return layout


def how_to_rerun(arguments: argparse.Namespace, cell_id: str) -> str:
    """The command that measures a cell again."""
    return rerun_command(
        cell_id,
        experiment=arguments.experiment,
        override=arguments.override,
        profile=arguments.profile,
    )


def print_json(value: Any) -> None:
    """Strict JSON, which has no infinities."""
    print(json.dumps(value, indent=1, default=str, allow_nan=False))
