"""An experiment on disk: what the Snakefile and the command line do with it.

With `survey`, `status` and `cli` it is all that knows more than one room.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rankbench.environ import keep_job
from rankbench.failures import DATA, IMAGE, PLAN_VARIABLE, Wanted
from rankbench.invocation import DEFAULT_EXPERIMENT
from rankbench.launch.cell.provenance import freeze_code, rank_code_hash
from rankbench.launch.cell.requests import ensure_request, raise_request, read_request
from rankbench.launch.hosts.slurm_queue import CellJob, wait_for_lost_jobs
from rankbench.launch.hosts.slurm_resources import (
    Resources,
    check_resources,
    job_resources,
    job_seconds,
)
from rankbench.launch.images.store import Image, reason_to_make, request_image
from rankbench.launch.outcome.judge_gate import has_gate
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.matrix.plan import Plan, PlannedCell, make_plan, read_plan
from rankbench.matrix.preview import Preview
from rankbench.matrix.schema import did_you_mean
from rankbench.matrix.site import NATIVE, SLURM
from rankbench.record import (
    Layout,
    read_json,
    write_if_changed,
    write_json,
)
from rankbench.status import RERUN_WORDS, cells_to_rerun, find_jobs
from rankbench.survey import survey_site

CONFIG_KEYS = ("experiment", "override", "only", "rerun", "plots")


class InUse(ValueError):
    """Another run is at work in the result directory."""


@dataclass
class Run:
    """A plan, and the part of it that was asked for.

    Attributes:
        plan: every cell of the experiment on this site.
        layout: its result directory.
        chosen: the cells that this run is about.
        rerun: those among them of which a new attempt is wanted.
        known_images: images of this site; a job knows those of its plan only.
        plots: whether there are to be any beside the tables.
    """

    plan: Plan
    layout: Layout
    chosen: list[PlannedCell]
    rerun: list[PlannedCell] = field(default_factory=list)
    known_images: Mapping[str, Image] = field(default_factory=dict)
    plots: bool = True
    _lock: FileLock | None = None
    _resources: dict[str, Resources] = field(default_factory=dict)

    @property
    def data_dir(self) -> Path:
        return Path(self.plan.site["data_dir"])

    @property
    def image_dir(self) -> Path:
        return Path(self.plan.site["image_dir"])

    @property
    def feasible(self) -> list[PlannedCell]:
        return [cell for cell in self.chosen if cell.infeasible is None]

    def summaries(self) -> list[str]:
        """The files that say that the chosen cells have been measured."""
        return [str(self.layout.summary(cell.id)) for cell in self.feasible]

    def job_arrays(self) -> list[str]:
        """Cells whose hosts are tasks of a job array: they have no job of their own."""
        launchers = load_catalog().launchers
        return [
            cell.id
            for cell in self.plan.feasible
            if launchers[cell.cell.launcher]["per"] == "array"
        ]

    def prepared_data(self) -> list[str]:
        """Data files that the chosen cells read."""
        return self._data_of(self.feasible)

    def _data_of(self, cells: Sequence[PlannedCell]) -> list[str]:
        catalog = load_catalog()
        names = {cell.cell.data for cell in cells}
        return [
            str(self.data_dir / f"{name}.npz")
            for name in sorted(names)
            if catalog.data[name]["prepared"]
        ]

    def inputs_of(self, cell_id: str) -> dict[str, Any]:
        """What the job of a cell reads: its request, and its data and image.

        Where launches take turns, the first job measures all cells.
        """
        request = self.layout.request(cell_id)
        taking_turns = self.plan.experiment["interleave"]
        cells = self.feasible if taking_turns else [self.plan.cells[cell_id]]
        images = {cell.image for cell in cells if cell.image is not None}
        return {
            # Made by the main process before any job; a dry run makes none.
            "request": [str(request)] if request.exists() else [],
            "data": self._data_of(cells),
            "image": [self.plan.images[name]["sidecar"] for name in sorted(images)],
        }

    def images(self) -> list[str]:
        """The files that say that the images of the chosen cells are there.

        Raises:
            ValueError: this site has no images.
        """
        if self.plan.site["software"] == NATIVE:
            raise ValueError(
                "no cell runs in an image here: software: native in the site file "
                "(container runs each in the image of its backend)"
            )
        return [self.plan.images[name]["sidecar"] for name in self.image_names()]

    def resources_of(self, cell_id: str) -> Resources:
        """What the job of a cell asks of Slurm; nothing where there is none."""
        # Snakemake asks again and again, for each resource.
        if cell_id not in self._resources:
            self._resources[cell_id] = self._find_resources(cell_id)
        return self._resources[cell_id]

    def check_resources(self) -> Resources:
        """What the job that looks at the hosts of this site asks for."""
        return check_resources(self.plan.site)

    def image_input(self, name: str) -> list[str]:
        """What the job that makes an image reads: which one is wanted."""
        request = self.plan.images[name]["request"]
        # As with the request of a cell, a dry run makes none.
        return [request] if Path(request).exists() else []

    def pending(self) -> dict[str, int]:
        """Launches to come for each chosen cell that is not measured yet."""
        again = {cell.id for cell in self.rerun}
        wanted = self.plan.experiment["launches"]
        found = {}
        for cell in self.feasible:
            if cell.id in again or not self._is_measured(cell.id):
                found[cell.id] = wanted
            elif self.plan.experiment["profile"] and not self._has_profile(cell.id):
                found[cell.id] = 0
        return found

    def preview(self) -> Preview:
        """What this run would do."""
        pending = self.pending()
        known = {cell_id: self._launch_seconds(cell_id) for cell_id in pending}
        seconds = {cell_id: mean for cell_id, mean in known.items() if mean is not None}
        limit = self.plan.experiment["time_limit"]
        gate, profile = (self.plan.experiment[key] for key in ("gate", "profile"))
        beside = {
            cell_id: (gate and launches > 0 and has_gate(self.plan.cells[cell_id].cell))
            + profile
            for cell_id, launches in pending.items()
        }
        images = {
            name: reason
            for name in self.image_names()
            if (reason := reason_to_make(self.known_images[name]))
        }
        jobs = {
            cell_id: self.resources_of(cell_id).get("runtime") for cell_id in pending
        }
        minutes = {cell_id: int(time) for cell_id, time in jobs.items() if time}
        return Preview(self.chosen, pending, seconds, limit, beside, images, minutes)

    def begin(self, *, measures: bool = True) -> None:
        """Take the lock, write the plan and the requests: jobs may start.

        Args:
            measures: whether jobs may be submitted. If not, Slurm need not answer.

        Raises:
            InUse: another run is at work in this result directory.
        """
        self.lock()
        try:
            self._wait_for_lost_jobs()
        except ValueError as error:
            if measures:
                raise
            _tell(f"{error}; this run submits no job, so it goes on")
        write_if_changed(self.layout.plan, self.plan.to_json())
        source = Path(self.plan.experiment["file"])
        write_if_changed(self.layout.experiment, source.read_bytes())
        pending = self.pending()
        again = {cell.id for cell in self.rerun}
        profile = self.plan.experiment["profile"]
        for cell in self.feasible:
            if cell.id in again:
                ask = raise_request
            elif profile or not self.layout.request(cell.id).exists():
                ask = ensure_request
            else:
                continue
            ask(
                self.layout,
                cell.id,
                launches=self.plan.experiment["launches"],
                cell_hash=cell.hash,
                profile=profile,
            )
        for name in self.image_names():
            request_image(self.known_images[name])
        self._forget_failures()
        # Snakemake's own child processes, also those in Slurm jobs, inherit both.
        os.environ[PLAN_VARIABLE] = str(self.layout.plan)
        frozen = freeze_code(self.layout.root.absolute() / "code") / "src"
        others = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{frozen}:{others}" if others else str(frozen)
        agenda = {**_myself(), "launches": pending}
        write_json(self.layout.agenda, agenda)

    def lock(self) -> None:
        """Keep others from measuring into this result directory while this lives.

        The kernel gives the lock up with the process that holds it, however it ends.
        """
        self.layout.root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.layout.lock, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            holder = _holder(self.layout)
            raise InUse(
                f"{self.layout.root} is in use by {holder}: wait for it or end it; "
                "`rankbench status` shows how far it is"
            ) from None
        self._lock = lock

    def unlock(self) -> None:
        """Give up what `lock` took."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _wait_for_lost_jobs(self) -> None:
        """Whoever submitted them held the lock, so it has ended without them."""
        chosen = {cell.id for cell in self.chosen}

        def look() -> list[CellJob]:
            jobs = find_jobs(self.plan, Path()).values()
            return [job for job in jobs if job.cell in chosen]

        if wait_for_lost_jobs(look, say=_tell):
            _tell(self.preview().lines()[0])

    def _forget_failures(self) -> None:
        """This run makes anew what could not be made before."""
        wanted = [Wanted(IMAGE, name) for name in self.image_names()]
        wanted += [Wanted(DATA, name) for name in {c.cell.data for c in self.feasible}]
        for one in wanted:
            one.file(self.layout).unlink(missing_ok=True)

    def image_names(self) -> list[str]:
        """Images that the chosen cells run in."""
        return sorted({cell.image for cell in self.feasible if cell.image is not None})

    def _find_resources(self, cell_id: str) -> Resources:
        planned = self.plan.cells[cell_id]
        experiment = self.plan.experiment
        beside = (experiment["gate"] and has_gate(planned.cell)) + experiment["profile"]
        seconds = job_seconds(
            experiment["launches"] + beside,
            time_limit=experiment["time_limit"],
            mean=self._launch_seconds(cell_id),
        )
        site = self.plan.site
        return job_resources(planned.cell, planned.shape, site, seconds=seconds)

    def _launch_seconds(self, cell_id: str) -> float | None:
        """Mean seconds of a cell's launches in its latest records; None without any."""
        summary = self.layout.summary(cell_id)
        if not summary.exists():
            return None
        mean: float | None = read_json(summary)["launch_seconds"]
        return mean

    def _has_profile(self, cell_id: str) -> bool:
        request = read_request(self.layout, cell_id)
        return request is not None and request.profile

    def _is_measured(self, cell_id: str) -> bool:
        summary, request = self.layout.summary(cell_id), self.layout.request(cell_id)
        try:
            return summary.stat().st_mtime >= request.stat().st_mtime
        except FileNotFoundError:
            return False


def open_run(config: Mapping[str, Any], *, profile: Path, write: bool) -> Run:
    """Plan an experiment.

    Args:
        config: `experiment` (a file), `override` (one of those that it names), `only`
            (a filter), `rerun` (cell ids, `failed`, `stale`); `plots` is whether there
            are to be any.
        profile: folder with `site.yaml`.
        write: whether what a look at the machine found may be kept.

    Raises:
        ValueError: everything that is wrong with the input, in words.
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
    if config.get("rerun"):
        if config.get("only"):
            raise ValueError("only and rerun: give one of them, not both")
        rerun = _cells_to_rerun(plan, layout, config["rerun"])
        return Run(plan, layout, rerun, rerun, images, plots)
    only = config.get("only")
    chosen = plan.select(None if only is None else str(only))
    return Run(plan, layout, chosen, [], images, plots)


def reopen_run(environ: Mapping[str, str] = os.environ) -> Run:
    """The run that this job belongs to: jobs read the plan, they never plan."""
    keep_job()
    path = Path(environ[PLAN_VARIABLE])
    plan = read_plan(path)
    return Run(plan, Layout(path.parent), list(plan.cells.values()))


def _check_config(config: Mapping[str, Any]) -> None:
    for key in config:
        if key not in CONFIG_KEYS:
            raise ValueError(
                f"--config {key}: unknown key{did_you_mean(key, CONFIG_KEYS)} "
                f"(known: {', '.join(CONFIG_KEYS)}; an experiment file is given as "
                "experiment=FILE, not by --configfile)"
            )


def _read_switch(config: Mapping[str, Any], key: str) -> bool:
    """A key that is on unless it is said otherwise; Snakemake leaves `false` a word."""
    given = str(config.get(key, "true"))
    if given.lower() not in ("true", "false"):
        raise ValueError(f"--config {key}: expected true or false, not {given!r}")
    return given.lower() == "true"


def _words(value: Any) -> Sequence[str]:
    return [word for word in re.split(r"[\s,]+", str(value)) if word]


def _cells_to_rerun(plan: Plan, layout: Layout, wanted: Any) -> list[PlannedCell]:
    found: dict[str, PlannedCell] = {}
    for word in _words(wanted):
        if word in RERUN_WORDS:
            found |= {cell.id: cell for cell in cells_to_rerun(plan, layout, word)}
        else:
            found[word] = _feasible(plan, word)
    if not found:
        raise ValueError(f"nothing to measure again: no cell is {wanted}")
    return list(found.values())


def _feasible(plan: Plan, name: str) -> PlannedCell:
    cell = plan.find(name)
    if cell.infeasible:
        raise ValueError(f"{name} cannot run here: {cell.infeasible}")
    return cell


def _myself() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": " ".join([_program(Path(sys.argv[0])), *sys.argv[1:]]),
    }


def _program(path: Path) -> str:
    """Name of a program; of `python -m NAME` that of the module."""
    return path.parent.name if path.name == "__main__.py" else path.name


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _holder(layout: Layout) -> str:
    try:
        agenda = read_json(layout.agenda)
    except (OSError, ValueError):
        return "another run"
    return f"process {agenda['pid']} on {agenda['host']} ({agenda['command']})"
