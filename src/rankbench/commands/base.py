"""Common parts of all commands: options, exit statuses, and access to a run."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankbench.extras import require
from rankbench.invocation import (
    DEFAULT_EXPERIMENT,
    DEFAULT_PROFILE,
    rerun_command,
    run_command,
    snakemake_argv,
)
from rankbench.project import Run, open_run
from rankbench.record import Layout
from rankbench.schedulers import scheduler_of

DEFAULT_CLUSTER = "slurm_profile"

OK, FINDING, BAD_INPUT, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 130


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
    """Add a command to the parser of `rankbench`; return the command's parser.

    Args:
        run: the function that executes the command and returns the exit status.
        summary: a line for the list of commands.
        about: the text above the options.
        examples: the text below the options: examples and exit statuses.
        json_holds: the contents of the JSON output.
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


def add_experiment(
    parser: argparse.ArgumentParser, *, profile: str = DEFAULT_PROFILE
) -> None:
    """Add the options that choose an experiment and its site.

    Args:
        profile: the default of `--profile`.
    """
    parser.add_argument(
        "--experiment",
        metavar="FILE",
        default=DEFAULT_EXPERIMENT,
        help=f"experiment file ({DEFAULT_EXPERIMENT})",
    )
    parser.add_argument(
        "--override",
        metavar="NAME",
        help="name of an override in the experiment file",
    )
    profile = os.environ.get("SNAKEMAKE_PROFILE", profile)
    parser.add_argument(
        "--profile",
        metavar="DIR",
        default=profile,
        help=f"folder of a profile, with site.yaml in it ({profile})",
    )


def add_only(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses a part of the matrix."""
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="KEY=VALUE",
        help="only cells that match all of these (KEY=A,B matches A or B)",
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a result directory, by path or by experiment."""
    add_experiment(parser)
    # `find_results` must know which options were given; it fills in the defaults.
    parser.set_defaults(experiment=None, profile=None)
    parser.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        help="a result directory with plan.json, instead of an experiment",
    )


def plan_run(
    arguments: argparse.Namespace,
    *,
    rerun: str | None = None,
    more: str | None = None,
    write: bool = True,
) -> Run:
    """Return the run that the options of `add_experiment` and `add_only` choose.

    Args:
        rerun, more: as for `project.open_run`.
        write: whether the facts about this machine may be cached.

    Raises:
        ValueError: the input is wrong; the message explains the error.
    """
    config = {
        "experiment": arguments.experiment,
        "override": arguments.override,
        # The cells to rerun are chosen already.
        "only": None if rerun or more else _only(arguments),
        "rerun": rerun,
        "more": more,
    }
    given = {key: value for key, value in config.items() if value is not None}
    _check_profile(Path(arguments.profile))
    return open_run(given, profile=Path(arguments.profile), write=write)


def _only(arguments: argparse.Namespace) -> str | None:
    """Return the filter as `project.open_run` takes it; None for all cells."""
    given: list[str] | None = getattr(arguments, "only", None)
    return " ".join(given) if given else None


def _check_profile(profile: Path) -> None:
    """Raise ValueError if the folder is not a profile; the message lists profiles."""
    if (profile / "site.yaml").exists():
        return
    there = sorted(str(path.parent) for path in Path().glob("*/site.yaml"))
    raise ValueError(
        f"{profile} is not a profile: it has no site.yaml "
        f"(profiles here: {', '.join(there) or 'none; `rankbench init` writes two'})"
    )


def argv_for(
    arguments: argparse.Namespace,
    *,
    rerun: str | None = None,
    more: str | None = None,
    targets: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> list[str]:
    """Return the command of Snakemake for the options of a command."""
    return snakemake_argv(
        experiment=arguments.experiment,
        override=arguments.override,
        profile=arguments.profile,
        only=None if rerun or more else _only(arguments),
        plots=not getattr(arguments, "no_plots", False),
        rerun=rerun,
        more=more,
        targets=targets,
        flags=flags,
    )


def require_workflow(run: Run, *extras: str) -> None:
    """Check that Snakemake is installed, and its Slurm plugin if the site needs it.

    Args:
        extras: further extras of rankbench that are needed.

    Raises:
        ValueError: a package is missing.
    """
    executor = ["slurm"] if scheduler_of(run.plan.site).has_queue else []
    require("workflow", *executor, *extras)


def find_results(arguments: argparse.Namespace) -> Layout:
    """Return the given result directory, or that of the experiment.

    Raises:
        ValueError: both are given, or the directory contains no plan.
    """
    if arguments.results is not None:
        _refuse_experiment(arguments)
        layout = Layout(arguments.results)
    else:
        arguments.experiment = arguments.experiment or DEFAULT_EXPERIMENT
        arguments.profile = arguments.profile or os.environ.get(
            "SNAKEMAKE_PROFILE", DEFAULT_PROFILE
        )
        layout = plan_run(arguments).layout
    if not layout.plan.exists():
        raise ValueError(f"{layout.plan} is missing: no experiment was run here")
    return layout


def _refuse_experiment(arguments: argparse.Namespace) -> None:
    """Raise ValueError if both a result directory and an experiment are given."""
    options = ("experiment", "override", "profile")
    if given := [f"--{o}" for o in options if getattr(arguments, o) is not None]:
        raise ValueError(
            f"--results and {', '.join(given)}: a result directory needs no "
            "experiment; give only one of the two"
        )


def how_to_rerun(arguments: argparse.Namespace, cell_id: str) -> str:
    """Return the command that measures a cell again."""
    return rerun_command(
        cell_id,
        experiment=arguments.experiment,
        override=arguments.override,
        profile=arguments.profile,
    )


def how_to_continue(arguments: argparse.Namespace) -> str:
    """Return the command that measures the pending launches after an interruption.

    It is `rankbench run` for a rerun, too: a second rerun would begin a new attempt.
    """
    return run_command(
        experiment=arguments.experiment,
        override=arguments.override,
        profile=arguments.profile,
        only=arguments.only or (),
        plots=not getattr(arguments, "no_plots", False),
        flags=getattr(arguments, "snakemake", ()),
    )


def print_json(value: Any) -> None:
    """Print a value as strict JSON, which has no infinities."""
    print(json.dumps(value, indent=1, default=str, allow_nan=False))
