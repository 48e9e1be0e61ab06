"""Access of the commands to a run or to results; its commands as text."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankbench.environ import require
from rankbench.invocation import (
    DEFAULT_EXPERIMENT,
    DEFAULT_PROFILE,
    named_in,
    rankbench_command,
    snakemake_argv,
)
from rankbench.plan import PLAN_VERSION, parse_plan, read_plan
from rankbench.record import RECORD_VERSION, Layout
from rankbench.say import say
from rankbench.schedulers import scheduler_of

# Results need neither the matrix nor launchers, which a project imports.
if TYPE_CHECKING:
    from rankbench.project.run import Run
    from rankbench.project.status import State

# Members that every record has, and that states and pages of cells are made of.
_OF_RECORDS = ("launch", "started", "cell_hash", "image")


def plan_run(
    arguments: argparse.Namespace, *, write: bool = True, probe: bool = False
) -> Run:
    """Return the run that EXPERIMENT, --override, --site and --only choose.

    Experiment and site are set to their defaults if they were not given. A command may
    set `rerun` or `more`, as for `project.open_run`; they choose cells in place of
    --only.

    Args:
        write, probe: as for `project.open_run`.

    Raises:
        ValueError: the input is wrong; the message explains the error.
    """
    arguments.experiment = resolve(arguments.experiment or DEFAULT_EXPERIMENT)
    folder = Path(arguments.experiment)
    if folder.is_dir():
        if not (plan := Layout(folder).plan).exists():
            raise ValueError(f"{folder} is no result folder: it has no plan.json")
        # Of the experiment that they are results of; options come before its own.
        of = named_in(read_plan(plan).experiment)
        given = {key: v for key in of if (v := getattr(arguments, key)) is not None}
        vars(arguments).update({**of, **given, "experiment": of["experiment"]})
    site = find_profile(arguments)
    config = _config_of(arguments)
    from rankbench.project.run import open_run

    run = open_run(config, profile=site, write=write, probe=probe)
    if folder.is_dir() and run.layout.root.resolve() != folder.resolve():
        raise ValueError(
            f"{folder}: a run of its experiment, {arguments.experiment}, has its "
            f"results in {run.layout.root}: name the file"
        )
    return run


def find_profile(arguments: argparse.Namespace) -> Path:
    """The folder of the profile; --site is set to the default if it was not given.

    Raises:
        ValueError: it has no site.yaml; the message names folders that do.
    """
    named = os.environ.get("SNAKEMAKE_PROFILE")
    source = "" if arguments.site or not named else ", which SNAKEMAKE_PROFILE names,"
    arguments.site = arguments.site or named or DEFAULT_PROFILE
    site = Path(arguments.site)
    if not (site / "site.yaml").exists():
        there = sorted(str(path.parent) for path in Path().glob("*/site.yaml"))
        raise ValueError(
            f"{site}{source} is not a profile: it has no site.yaml (profiles here: "
            f"{', '.join(there) or 'none; `rankbench init` writes two'})"
        )
    return site


def _only(arguments: argparse.Namespace) -> str | None:
    """Return the filter as `project.open_run` takes it; None for all cells."""
    return " ".join(getattr(arguments, "only", None) or ()) or None


def _config_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of a command as `project.open_run` and Snakemake take them."""
    rerun, more = (getattr(arguments, key, None) or None for key in ("rerun", "more"))
    config = {
        "experiment": arguments.experiment,
        "override": arguments.override,
        "only": None if rerun or more else _only(arguments),
        "rerun": rerun,
        "more": more,
        "plots": "false" if getattr(arguments, "no_plots", False) else None,
    }
    return {key: value for key, value in config.items() if value is not None}


def argv_for(arguments: argparse.Namespace, *words: str) -> list[str]:
    """Return the command of Snakemake for the options of a command.

    Args:
        words: targets, and further options of Snakemake.
    """
    return snakemake_argv(_config_of(arguments), arguments.site, *words)


def require_workflow(run: Run, *extras: str) -> None:
    """Check that Snakemake is installed, and its Slurm plugin if the site needs it.

    Args:
        extras: further extras of rankbench that are needed.

    Raises:
        ValueError: a package is missing.
    """
    executor = scheduler_of(run.plan.site).extra
    require("workflow", *([executor] if executor else []), *extras)


def resolve(given: str) -> str:
    """The experiment file, result folder or bundle that somebody means.

    Such as mine.yaml by `mine`, results/mine by `mine`, or by a file in that folder.

    Raises:
        ValueError: there is none; the message names those that are there.
    """
    path, has_suffix = Path(given), given.endswith((".yaml", ".yml", ".zst"))
    if path.is_dir() or (has_suffix and path.exists()):
        return given
    results = [folder for folder in path.parents if (folder / "plan.json").exists()]
    folders = filter(Path.is_dir, [Path("results", given), *results[:1]])
    meant = [Path(f"{given}.yaml"), *folders]
    if found := [each for each in meant if each.exists()]:
        return str(found[0])
    from rankbench.schema import did_you_mean

    if path.is_file():
        how = "; `rankbench run FILE` measures a training script"
        raise ValueError(
            f"{given} is no experiment (YAML), result folder or bundle"
            + (how if path.suffix == ".py" else "")
        )
    results = sorted(plan.parent for plan in Path().glob("results/*/plan.json"))
    here = [str(path) for path in (*sorted(Path().glob("[!.]*.yaml")), *results)]
    none = "none; `rankbench init FOLDER` makes a project"
    raise ValueError(
        f"{given} does not exist{did_you_mean(given, here)} "
        f"(experiments and results here: {', '.join(here) or none})"
    )


def shift_experiment(arguments: argparse.Namespace, rest: str) -> None:
    """Move the first positional argument to the others if it is one of them.

    Args:
        rest: destination of the others: `cells`, whose ids have dots, or `name`.

    Raises:
        ValueError: it is neither; or ids of cells and --only are given.
    """
    if (first := arguments.experiment) is not None:
        try:
            resolve(first)
        except ValueError:
            if first.endswith((".yaml", ".yml", ".zst")) or "/" in first:
                raise
            if rest == "cells" and "." not in first:
                raise
            setattr(arguments, rest, [first, *getattr(arguments, rest)])
            arguments.experiment = None
    if rest == "cells" and arguments.cells and arguments.only:
        raise ValueError("ids of cells and --only: give one of them, not both")


def names_results(arguments: argparse.Namespace) -> bool:
    """Whether WHAT is a result folder or a bundle, and not an experiment.

    Raises:
        ValueError: it does not exist; or it is, but an option of an experiment is given
            as well.
    """
    if arguments.experiment is None:
        return False
    what = arguments.experiment = resolve(arguments.experiment)
    if not (Path(what).is_dir() or what.endswith(".zst")):
        return False
    options = ("override", "site")
    if given := [f"--{o}" for o in options if getattr(arguments, o) is not None]:
        raise ValueError(f"{what} has its experiment: leave out {', '.join(given)}")
    return True


@contextmanager
def open_results(arguments: argparse.Namespace) -> Iterator[Layout]:
    """The results that WHAT names: a result folder, a bundle, or of an experiment.

    A bundle is unpacked into a temporary folder. It is not verified.

    Raises:
        ValueError: there is no plan.
    """
    if names_results(arguments):
        from rankbench.results.read.archive import open_results as open_path

        with open_path(Path(arguments.experiment)) as root:
            yield Layout(root)
        return
    layout = plan_run(arguments).layout
    if not layout.plan.exists():
        how = rankbench_command("run", **of_experiment(arguments))
        raise ValueError(f"{layout.plan} is missing: measure first ({how})")
    yield layout


@contextmanager
def open_cells(
    arguments: argparse.Namespace,
) -> Iterator[tuple[Run, Mapping[str, Any]]]:
    """The cells that WHAT and --only name, and their jobs in the queue.

    Results have no queue. `arguments` get `damaged`: cell -> what is wrong with a
    record; and `unpacked`: the folder of a bundle, or None.
    """
    from rankbench.matrix.selection import select_cells
    from rankbench.project.run import Run
    from rankbench.project.status import find_jobs

    arguments.damaged = {}
    if not names_results(arguments):
        run, jobs = plan_run(arguments), {}
        try:
            jobs = find_jobs(run.plan, run.layout, Path())
        except ValueError as error:
            say(f"which jobs wait or run is not known: {error}", aside=True)
        yield run, jobs
        return
    from rankbench.results.read.records import read_checked

    is_packed = not Path(arguments.experiment).is_dir()
    with open_results(arguments) as layout:
        # It may come from anywhere.
        value = read_checked(layout.plan, "plan", version=PLAN_VERSION)
        plan = parse_plan(value, layout.plan)
        arguments.unpacked = layout.root if is_packed else None
        cells = select_cells(plan, _only(arguments))
        for cell in cells:
            try:
                # Unlike rglob, it stands folders that go meanwhile.
                for folder, _, names in os.walk(layout.records / cell.id):
                    if "record.json" not in names:
                        continue
                    path = Path(folder, "record.json")
                    record = read_checked(path, "record", version=RECORD_VERSION)
                    if missing := [key for key in _OF_RECORDS if key not in record]:
                        lacks = f"it lacks {', '.join(missing)}"
                        raise ValueError(f"{path} is damaged: {lacks}")
            except ValueError as error:
                arguments.damaged[cell.id] = error
        yield Run(plan, layout, cells), {}


def how_to_continue(arguments: argparse.Namespace) -> str:
    """Return the command that measures the pending launches after an interruption.

    It is `rankbench run` for a rerun, too: a second rerun would begin a new attempt.
    """
    options = ["--no-plots"] if getattr(arguments, "no_plots", False) else []
    options += ["--only", *arguments.only] if arguments.only else []
    if (question := getattr(arguments, "next", None)) is not None:
        options += ["--next", *([question] if question else [])]
    if flags := getattr(arguments, "snakemake", ()):
        options += ["--", *flags]
    return rankbench_command("run", **of_experiment(arguments), options=options)


def of_experiment(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `rankbench_command` that name the same experiment."""
    return {key: getattr(arguments, key) for key in ("experiment", "override", "site")}


def describe_states(
    run: Run, states: Mapping[str, State], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """The states of cells for JSON, each with its log and the command to rerun it."""
    named = named_in(run.plan.experiment)
    return [
        {
            "cell": cell,
            **asdict(state),
            "log": name_path(run.layout.log(cell), arguments) if state.where else None,
            "rerun": rankbench_command("rerun", **named, cells=[cell]),
        }
        for cell, state in states.items()
    ]


def name_path(path: Path, arguments: argparse.Namespace) -> Path:
    """A path as people find it: within the bundle if `open_cells` has unpacked that."""
    unpacked = getattr(arguments, "unpacked", None)
    return path.relative_to(unpacked) if unpacked else path
