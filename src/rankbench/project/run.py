"""A run: the plan of an experiment, the chosen cells, and the lock of its results."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from rankbench.cell import AUTO, PROGRAMS
from rankbench.environ import keep_job, physical_cores, read_driver
from rankbench.failures import PLAN_VARIABLE, Need
from rankbench.invocation import DEFAULT_EXPERIMENT
from rankbench.launch.hosts.base import Resources, hosts_of, take_lock
from rankbench.launch.images.store import (
    Image,
    explain_folder,
    load_images,
    reason_to_make,
)
from rankbench.launch.job.claim import Owner
from rankbench.launch.job.provenance import rank_code_hash
from rankbench.launch.site.machine import (
    choose_flavour,
    count_gpus,
    find_misfits,
    list_gpus,
    probe_machine,
)
from rankbench.matrix.catalog import CONTAINERS, Catalog, find_image, load_catalog
from rankbench.matrix.experiment import Experiment, load_experiment
from rankbench.matrix.own import OwnFiles
from rankbench.matrix.plan import make_plan
from rankbench.matrix.selection import find_cell, select_cells
from rankbench.matrix.site import (
    CONTAINER,
    NATIVE,
    Site,
    Software,
    describe_software,
    make_site,
    read_site,
)
from rankbench.plan import Plan, PlannedCell, read_plan
from rankbench.project.status import find_rerun
from rankbench.record import Layout, read_json
from rankbench.say import say
from rankbench.schedulers import SCHEDULERS, scheduler_of
from rankbench.schema import did_you_mean

CONFIG_KEYS = ("experiment", "override", "only", "rerun", "more", "plots")


def take_results(layout: Layout) -> FileIO:
    """Keep other runs from measuring into a result directory.

    Returns:
        The lock, until it is closed; a process that inherits it holds it, too.

    Raises:
        ValueError: another run holds the lock, and the message names its process; or
            the file system has no locks, or the folder is another user's.
    """
    try:
        layout.work.mkdir(parents=True, exist_ok=True)
        lock = take_lock(layout.lock)
    except OSError as error:
        why = explain_folder(error, layout.lock, "results_dir")
        raise ValueError(why) from error
    if lock is not None:
        return lock
    holder = "another run"
    with suppress(OSError, ValueError, LookupError, TypeError):
        agenda = read_json(layout.agenda)
        owner = Owner(**agenda["owner"])
        where = f"process {owner.pid} on {owner.host}"
        holder = f"{where} ({agenda['command']})"
    raise ValueError(
        f"{layout.root} is in use by {holder}: wait for it or end it; "
        f"`rankbench status {layout.root}` shows its progress"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job, which measures a group of cells.

    Attributes:
        cells: their ids.
        rounds: at most so many; None for as many as the cells need.
        after: name of the job that measures the rounds before these, or None.
        here: whether it runs where Snakemake does, though others are submitted.
    """

    cells: Sequence[str]
    rounds: int | None = None
    after: str | None = None
    here: bool = False


class Pending(NamedTuple):
    """What a cell lacks.

    Attributes:
        launches: how many.
        why: in words.
        again: whether it needs a new attempt.
        done: how many its attempt has.
        beside: how many it needs that are not measured: its gate and its profile,
            unless an earlier run has made them.
        mean: seconds of its latest launches; None if there are none.
    """

    launches: int
    why: str
    again: bool = False
    done: int = 0
    beside: int = 0
    mean: float | None = None

    @property
    def total(self) -> int:
        """All launches to come."""
        return self.launches + self.beside


@dataclass
class Run:
    """A plan, and the requested cells.

    Attributes:
        plan: every cell of the experiment on this site.
        layout: the result directory.
        chosen: the requested cells.
        rerun: the chosen cells that need a new attempt.
        more: chosen cell -> how many launches its attempt shall have in all, where that
            is another number than the experiment's.
        known_images: images of this site; empty in a reopened run, which needs only its
            plan.
        plots: whether to draw plots beside the tables.
        own: files of the user's own; empty in a reopened run, which has copies of them.
        resources: job -> what it requests from Slurm, if computed.
        pending: `project.jobs.find_pending`; None: not computed.
        jobs: `project.jobs.jobs_of`; None: not computed.
        needs: `project.jobs.needs_of`; None: not computed.
        lock: of the result directory; None: not taken.
    """

    plan: Plan
    layout: Layout
    chosen: list[PlannedCell]
    rerun: list[PlannedCell] = field(default_factory=list)
    more: Mapping[str, int] = field(default_factory=dict)
    known_images: Mapping[str, Image] = field(default_factory=dict)
    plots: bool = True
    own: OwnFiles = field(default_factory=OwnFiles)
    resources: dict[str, Resources] = field(default_factory=dict, init=False)
    pending: dict[str, Pending] | None = field(default=None, compare=False)
    jobs: dict[str, Job] | None = field(default=None, compare=False)
    needs: Sequence[Need] | None = field(default=None, compare=False)
    lock: FileIO | None = field(default=None, compare=False)

    def forget(self) -> None:
        """Compute anew what is pending, as files have changed."""
        self.pending = self.jobs = None
        self.resources.clear()

    def launches(self, cell_id: str) -> int:
        """Return how many launches a chosen cell gets."""
        return self.more.get(cell_id, int(self.plan.experiment["launches"]))

    @property
    def data_dir(self) -> Path:
        return Path(self.plan.site["data_dir"])

    @property
    def feasible(self) -> list[PlannedCell]:
        """The chosen cells that can run on this site."""
        return [cell for cell in self.chosen if cell.infeasible is None]

    @property
    def image_names(self) -> list[str]:
        """The names of the images that the chosen cells run in."""
        return sorted({cell.image for cell in self.feasible if cell.image is not None})


def open_run(
    config: Mapping[str, Any], *, profile: Path, write: bool, probe: bool = False
) -> Run:
    """Plan an experiment; change nothing in its result directory.

    Args:
        config: `experiment` (a file), `override` (the name of one of its overrides),
            `only` (a filter), `rerun` (cell ids, `failed`, `stale`), `more` (CELL=N,
            how many launches the attempt of a cell shall have), and `plots` (whether
            to draw plots).
        profile: folder with `site.yaml`.
        write: whether the facts about this machine may be cached.
        probe: whether given images that the cells need are pulled and looked into; if
            not, cells in those that were not yet cannot run.

    Raises:
        ValueError: the input is wrong, or a given image is; the message explains the
            error.
    """
    for key in config:
        if key not in CONFIG_KEYS:
            raise ValueError(
                f"--config {key}: unknown key{did_you_mean(key, CONFIG_KEYS)} "
                f"(known: {', '.join(CONFIG_KEYS)}; give an experiment file as "
                "experiment=FILE, not with --configfile)"
            )
    # Snakemake passes `false` on as a string.
    plots = str(config.get("plots", "true")).lower()
    if plots not in ("true", "false"):
        raise ValueError(f"--config plots: expected true or false, not {plots!r}")
    source = Path(str(config.get("experiment", DEFAULT_EXPERIMENT)))
    site, named = survey_site(profile / "site.yaml", write=write)
    catalog = load_catalog().for_cuda(site["cuda_flavour"]).with_images(named)
    override = config.get("override")
    experiment = load_experiment(
        source,
        catalog,
        cuda=site["device"] == "cuda",
        preferred=SCHEDULERS[site["scheduler"]].launcher,
        override=None if override is None else str(override),
        list_hosts=lambda: hosts_of(site).list_hosts(site),
    )
    _check_partitions(site, experiment)
    images = {}
    if site["software"] == CONTAINER:
        named |= experiment.values["images"]
        images = find_images(site, named, catalog, experiment, probe=probe)
        site = {**site, "images": _software_in(images, site)}
    layout = Layout(Path(site["results_dir"]) / experiment.name)
    plan = make_plan(
        experiment,
        site,
        catalog,
        code=rank_code_hash,
        source=os.fspath(source),
        images={name: image.describe() for name, image in images.items()},
        estimates=mark_measured(read_estimates(layout, rank_code_hash()), layout),
    )
    # Commands that documents print name it.
    plan.experiment["site"] = os.fspath(profile)
    given = [key for key in ("only", "rerun", "more") if config.get(key)]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)}: give one of them, not both")
    only = config.get("only")
    run = Run(
        plan,
        layout,
        select_cells(plan, None if only is None else str(only)),
        known_images=images,
        plots=plots == "true",
        own=experiment.own,
    )
    if rerun := config.get("rerun"):
        words = filter(None, re.split(r"[\s,]+", str(rerun)))
        run.chosen = run.rerun = find_rerun(plan, run.layout, words)
        if not run.chosen:
            raise ValueError(f"nothing to measure again: no cell is {rerun}")
    if more := config.get("more"):
        run.more = _read_more(plan, str(more))
        run.chosen = [plan.cells[name] for name in run.more]
    return run


def _check_partitions(site: Site, experiment: Experiment) -> None:
    """Check that Slurm has the partitions that the experiment names.

    Raises:
        ValueError: it does not have one. Nothing is known if Slurm does not answer.
    """
    named = {cell.partition for cell in experiment.cells.values()} - {None}
    if not named or not SCHEDULERS[site["scheduler"]].has_queue:
        return
    limits = hosts_of(site).limits()
    known = sorted(map(str, limits.keys() - {None}))
    for name in sorted(map(str, named)):
        if known and name not in known:
            raise ValueError(
                f"{experiment.source}: partition: {name!r} is not one of "
                f"{', '.join(known)}{did_you_mean(name, known)}"
            )


def read_estimates(layout: Layout, code: str) -> Mapping[str, Any]:
    """What this code has found of the memory of cells, by their hashes."""
    try:
        kept = read_json(layout.estimates)
        return kept["cells"] if kept["code"] == code else {}
    except (OSError, ValueError, KeyError):
        return {}


def mark_measured(
    estimates: Mapping[str, Any], layout: Layout
) -> Mapping[str, Mapping[str, Any]]:
    """Mark estimates of cells that were measured: these fit, whatever is estimated."""
    if not estimates:
        return estimates
    measured = set()
    for path in layout.records.glob("*/*/summary.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            summary = read_json(path)
            if summary["status"] == "ok":
                measured.add(summary["cell_hash"])
    return {
        digest: {**found, "measured": digest in measured}
        for digest, found in estimates.items()
    }


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
        found[cell.id] = int(count)
    return found


def survey_site(path: Path, *, write: bool) -> tuple[Site, dict[str, Any]]:
    """Read the site file, and inspect the machine.

    Args:
        path: `site.yaml` of a profile.
        write: whether the facts about this machine may be cached.

    Returns:
        The site, with no image yet, and its key `images`.

    Raises:
        ValueError: the file does not match its schema, or contradicts the machine.
    """
    facts = read_site(path)
    native = facts["software"] == NATIVE
    driver, capabilities = (None, []) if native else _gpus_of_ranks(facts)
    facts["cuda_flavour"] = choose_flavour(facts["cuda_flavour"], driver, capabilities)
    found = {
        "cores": len(physical_cores()),
        "cuda_devices": [*range(count_gpus())],
        "cuda_capability": capabilities,
    }
    if native:
        found = probe_machine(PROGRAMS, write=write)
    return make_site(facts, found, source=path), facts["images"]


def _gpus_of_ranks(site: Mapping[str, Any]) -> tuple[str | None, list[float]]:
    """Driver and compute capabilities if cells run on this machine, else nothing."""
    driver = read_driver()
    if driver is None or scheduler_of(site).has_hosts:
        return None, []
    return driver, [float(one) for one in list_gpus("compute_cap")]


def find_images(
    site: Site,
    named: Mapping[str, Any],
    catalog: Catalog,
    experiment: Experiment,
    *,
    probe: bool,
) -> dict[str, Image]:
    """Return the images that can be built for a site, and those that files name.

    Args:
        site: from `survey_site`.
        named: name -> `AUTO`, or keys of the image.
        catalog: with the images of the site.
        experiment: its cells choose the named images that are looked into.
        probe: whether to do so, where nobody has yet.

    Raises:
        ValueError: an image cannot be pulled, or is none that ranks can run in.
    """
    folder = Path(site["image_dir"])
    entries = {name: entry for name, entry in named.items() if entry != AUTO}
    images = load_images(CONTAINERS, folder, entries)
    known = catalog.with_images(experiment.values["images"]).images
    used = {find_image(cell, known)[0] for cell in experiment.cells.values()}
    for image in (images[name] for name in entries) if probe else ():
        if image.name in used and reason_to_make(image):
            # Needs spython, which a native site has not.
            from rankbench.launch.images.build import make_image

            make_image(image, lambda line: say(line, aside=True))
    return images


def _software_in(images: Mapping[str, Image], site: Site) -> dict[str, Software]:
    """Return what is known to be in each image, and whether GPUs here can run it."""
    here, found = _gpus_of_ranks(site), {}
    for name, image in images.items():
        if facts := image.facts():
            software = describe_software(facts, site["cuda_devices"], name)
            if misfit := next(find_misfits(software["torch"], name, *here), None):
                software = {**software, "no_cuda": f"this machine {misfit}"}
            found[name] = software
    return found
