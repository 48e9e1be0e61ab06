"""Plan an experiment, or read the plan that the main process wrote."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankbench.environ import keep_job
from rankbench.failures import PLAN_VARIABLE
from rankbench.invocation import DEFAULT_EXPERIMENT
from rankbench.launch.cell.provenance import rank_code_hash
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.matrix.plan import Plan, PlannedCell, make_plan, read_plan
from rankbench.matrix.schema import did_you_mean
from rankbench.matrix.site import SLURM
from rankbench.project.jobs import read_jobs
from rankbench.project.run import Run
from rankbench.project.status import RERUN_WORDS, cells_to_rerun
from rankbench.project.survey import survey_site
from rankbench.record import Layout

CONFIG_KEYS = ("experiment", "override", "only", "rerun", "plots")


def open_run(config: Mapping[str, Any], *, profile: Path, write: bool) -> Run:
    """Plan an experiment; change nothing in its result directory.

    Args:
        config: `experiment` (a file), `override` (the name of one of its overrides),
            `only` (a filter), `rerun` (cell ids, `failed`, `stale`), and `plots`
            (whether to draw plots).
        profile: folder with `site.yaml`.
        write: whether the facts about this machine may be cached.

    Raises:
        ValueError: the input is wrong; the message explains the error.
    """
    _check_config(config)
    plots = _read_switch(config, "plots")
    source = Path(str(config.get("experiment", DEFAULT_EXPERIMENT)))
    catalog = load_catalog()
    site, images = survey_site(profile / "site.yaml", write=write)
    override = config.get("override")
    experiment = load_experiment(
        source,
        catalog,
        cuda=site.device == "cuda",
        slurm=site.scheduler == SLURM,
        override=None if override is None else str(override),
    )
    plan = make_plan(
        experiment,
        site,
        catalog,
        code=rank_code_hash(),
        source=os.fspath(source),
        images={name: image.describe() for name, image in images.items()},
    )
    layout = Layout(Path(site.results_dir) / plan.name)
    only, rerun = config.get("only"), config.get("rerun")
    if only and rerun:
        raise ValueError("only and rerun: give one of them, not both")
    if rerun:
        again = _cells_to_rerun(plan, layout, str(rerun))
        return Run(plan, layout, again, again, images, plots)
    chosen = plan.select(None if only is None else str(only))
    return Run(plan, layout, chosen, [], images, plots)


def reopen_run(environ: Mapping[str, str] = os.environ) -> Run:
    """Return the run that this job belongs to: jobs read the plan, they never plan."""
    keep_job()
    path = Path(environ[PLAN_VARIABLE])
    plan = read_plan(path)
    run = Run(plan, Layout(path.parent), list(plan.cells.values()))
    read_jobs(run)
    return run


def _check_config(config: Mapping[str, Any]) -> None:
    for key in config:
        if key not in CONFIG_KEYS:
            raise ValueError(
                f"--config {key}: unknown key{did_you_mean(key, CONFIG_KEYS)} "
                f"(known: {', '.join(CONFIG_KEYS)}; give an experiment file as "
                "experiment=FILE, not with --configfile)"
            )


def _read_switch(config: Mapping[str, Any], key: str) -> bool:
    """Return the value of a key that is true by default."""
    # Snakemake passes `false` on as a string.
    given = str(config.get(key, "true"))
    if given.lower() not in ("true", "false"):
        raise ValueError(f"--config {key}: expected true or false, not {given!r}")
    return given.lower() == "true"


def _cells_to_rerun(plan: Plan, layout: Layout, wanted: str) -> list[PlannedCell]:
    found: dict[str, PlannedCell] = {}
    for word in filter(None, re.split(r"[\s,]+", wanted)):
        if word in RERUN_WORDS:
            found |= {cell.id: cell for cell in cells_to_rerun(plan, layout, word)}
            continue
        cell = plan.find(word)
        if cell.infeasible:
            raise ValueError(f"{word} cannot run here: {cell.infeasible}")
        found[word] = cell
    if not found:
        raise ValueError(f"nothing to measure again: no cell is {wanted}")
    return list(found.values())
