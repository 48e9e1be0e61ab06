"""Plan an experiment, or read the plan that the main process wrote."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankbench.cores import physical_cores
from rankbench.environ import keep_job
from rankbench.failures import PLAN_VARIABLE, Need
from rankbench.invocation import DEFAULT_EXPERIMENT
from rankbench.launch.images.store import Image, load_images
from rankbench.launch.job.provenance import rank_code_hash
from rankbench.launch.site.machine import count_gpus, probe_machine
from rankbench.matrix.catalog import CONTAINERS, load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.matrix.plan import make_plan
from rankbench.matrix.schema import did_you_mean
from rankbench.matrix.selection import find_cell, select_cells
from rankbench.matrix.site import (
    NATIVE,
    PROGRAMS,
    Site,
    cuda_devices_of,
    describe_software,
    make_site,
    read_site,
    why_no_cuda,
)
from rankbench.plan import Plan, PlannedCell, read_plan
from rankbench.project.run import Job, Run
from rankbench.project.status import RERUN_WORDS, cells_to_rerun
from rankbench.record import Layout, read_json
from rankbench.schedulers import SCHEDULERS, scheduler_of

CONFIG_KEYS = ("experiment", "override", "only", "rerun", "more", "plots")


def open_run(config: Mapping[str, Any], *, profile: Path, write: bool) -> Run:
    """Plan an experiment; change nothing in its result directory.

    Args:
        config: `experiment` (a file), `override` (the name of one of its overrides),
            `only` (a filter), `rerun` (cell ids, `failed`, `stale`), `more` (CELL=N,
            how many launches the attempt of a cell shall have), and `plots` (whether
            to draw plots).
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
        slurm=SCHEDULERS[site.scheduler].has_queue,
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
    known: dict[str, Any] = {
        "known_images": images,
        "plots": plots,
        "own": experiment.own,
    }
    given = [key for key in ("only", "rerun", "more") if config.get(key)]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)}: give one of them, not both")
    if rerun := config.get("rerun"):
        again = _cells_to_rerun(plan, layout, str(rerun))
        return Run(plan, layout, again, rerun=again, **known)
    if more := config.get("more"):
        wanted = _read_more(plan, str(more))
        chosen = [plan.cells[name] for name in wanted]
        return Run(plan, layout, chosen, more=wanted, **known)
    only = config.get("only")
    chosen = select_cells(plan, None if only is None else str(only))
    return Run(plan, layout, chosen, **known)


def reopen_run(environ: Mapping[str, str] = os.environ) -> Run:
    """Return the run of this process, which reads the plan and never makes one."""
    keep_job()
    path = Path(environ[PLAN_VARIABLE])
    plan, layout = read_plan(path), Layout(path.parent)
    agenda = read_json(layout.agenda)
    return Run(
        plan,
        layout,
        list(plan.cells.values()),
        more=agenda["more"],
        plots=agenda["plots"],
        jobs={name: Job(**job) for name, job in agenda["jobs"].items()},
        needs=[Need(**need) for need in agenda["needs"]],
    )


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


def _read_more(plan: Plan, given: str) -> dict[str, int]:
    """Return how many launches each of these cells shall have.

    Raises:
        ValueError: an entry is not CELL=N, or names no cell that can run here.
    """
    found = {}
    for word in given.split():
        name, _, count = word.rpartition("=")
        if not (name and count.isdecimal()):
            raise ValueError(f"more: {word!r}: expected CELL=N, the launches in all")
        cell = find_cell(plan, name)
        if cell.infeasible:
            raise ValueError(f"{name} cannot run here: {cell.infeasible}")
        found[name] = int(count)
    return found


def _cells_to_rerun(plan: Plan, layout: Layout, wanted: str) -> list[PlannedCell]:
    found: dict[str, PlannedCell] = {}
    for word in filter(None, re.split(r"[\s,]+", wanted)):
        if word in RERUN_WORDS:
            found |= {cell.id: cell for cell in cells_to_rerun(plan, layout, word)}
            continue
        cell = find_cell(plan, word)
        if cell.infeasible:
            raise ValueError(f"{word} cannot run here: {cell.infeasible}")
        found[word] = cell
    if not found:
        raise ValueError(f"nothing to measure again: no cell is {wanted}")
    return list(found.values())


def survey_site(path: Path, *, write: bool) -> tuple[Site, dict[str, Image]]:
    """Read the site file, and inspect the machine or its images.

    Args:
        path: `site.yaml` of a profile.
        write: whether the facts about this machine may be cached.

    Returns:
        The site, and its images by name and flavour ({} if native).

    Raises:
        ValueError: the file does not match its schema, or contradicts the machine.
    """
    facts = read_site(path)
    if facts["software"] == NATIVE:
        return native_site(facts, probe_machine(PROGRAMS, write=write), source=path), {}
    gpus = cuda_devices_of(facts, found=count_gpus())
    images = load_images(CONTAINERS, Path(facts["image_dir"]), facts["images"])
    software = {
        name: describe_software(image.facts(), gpus, name)
        for name, image in images.items()
    }
    site = make_site(
        facts,
        source=path,
        cores=len(physical_cores()),
        cuda_devices=gpus,
        no_cuda="this machine shows no NVIDIA GPU",
        images=software,
    )
    return site, images


def native_site(
    facts: Mapping[str, Any], probe: Mapping[str, Any], *, source: Path
) -> Site:
    """Return a site whose ranks run in the environment that the probe describes."""
    gpus = cuda_devices_of(facts, found=len(probe["cuda_devices"]))
    return make_site(
        facts,
        source=source,
        cores=probe["cores"],
        cuda_devices=gpus,
        no_cuda=why_no_cuda(probe, f"this torch ({probe['torch']})"),
        native=describe_software(probe, gpus),
        memory_gib=None if scheduler_of(facts).has_hosts else _find_memory(probe),
    )


def _find_memory(probe: Mapping[str, Any]) -> float | None:
    """GiB of the smallest GPU of this machine; without GPUs, of the machine."""
    if probe["cuda_devices"]:
        return min(probe.get("cuda_memory_gib") or (), default=None)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
