"""An attempt of a cell: what its launches share, and what each of them is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankbench.cell import Cell, Shape
from rankbench.environ import job_id
from rankbench.launch.cell.provenance import describe_code
from rankbench.launch.cell.requests import Request
from rankbench.launch.hosts.base import Hosts
from rankbench.launch.hosts.slurm import find_slurm_job
from rankbench.launch.hosts.slurm_queue import comment_of
from rankbench.launch.hosts.slurm_resources import plan_array
from rankbench.launch.hosts.this_machine import ThisMachine
from rankbench.launch.images.checks import check_runs
from rankbench.launch.images.verify import check_file, read_image
from rankbench.launch.launchers import find_launcher, is_array
from rankbench.launch.outcome.judge_gate import has_gate
from rankbench.launch.process.container import check_binds
from rankbench.launch.process.scratch import scratch_of
from rankbench.launch.task import Task
from rankbench.record import (
    GATE,
    Layout,
    Verdict,
    judge,
    judge_attempt,
    read_attempt,
    why_stale,
)

Entry = dict[str, Any]

MEASURE = "measure"


class Attempt:
    """The wanted attempt of a cell, with everything that its launches share."""

    def __init__(
        self, layout: Layout, plan: Entry, entry: Entry, request: Request, project: Path
    ) -> None:
        self.directory = layout.attempt(entry["id"], request.attempt)
        self.request = request
        # Seed of the random order of cells that take turns, if they do.
        self.turns_seed: int | None = None
        name = entry["image"]
        self.image = None if name is None else dict(plan["images"][name])
        self._no_image: str | None = None
        if self.image is not None:
            try:
                self.image = read_image(self.image)
            except ValueError as error:
                # Only this host has the fault, and a record will name it.
                self.image["sha256"], self._no_image = None, str(error)
        self._image_is_good = self.image is None
        cell = Cell.from_dict(entry["cell"])
        self.has_gate = plan["experiment"]["gate"] and has_gate(cell)
        self._plan, self._entry, self._project = plan, entry, project
        self._hosts = _find_hosts(cell, plan, entry)
        # Time in the queue counts as well.
        self.time_limit = plan["experiment"]["time_limit"] + self._hosts.start_within
        self._code = describe_code()

    def check_image(self) -> None:
        """Check once that the image is unchanged and starts here, with its binds.

        Raises:
            ValueError: it is not, or does not.
        """
        if self._image_is_good or self.image is None:
            return
        if self._no_image:
            raise ValueError(self._no_image)
        check_binds(self._plan["site"]["binds"])
        check_file(self.image)
        check_runs(Path(self.image["file"]))
        self._image_is_good = True

    def why_stale(self) -> str | None:
        """Why new launches would not belong to the attempt; None if they would."""
        return why_stale(
            read_attempt(self.directory),
            cell_hash=self._entry["hash"],
            image=self.image,
            asked_hash=self.request.cell_hash,
        )

    def verdict(self) -> Verdict:
        return judge_attempt(self.directory, self.request.launches)

    def series(self, purpose: str) -> Series:
        if purpose == MEASURE:
            return Series(self, purpose, self.directory, self.request.launches)
        return Series(self, purpose, self.directory / purpose, 1)

    def gate(self) -> dict[str, Any] | None:
        """The result of the gate; None if there was none or if it failed."""
        found: dict[str, Any] | None = None
        for record in read_attempt(self.directory / GATE):
            found = record.get("gate") or found
        return found

    def task(self, series: Series, number: int, directory: Path) -> Task:
        entry, site = self._entry, self._plan["site"]
        shape = Shape(**entry["shape"])
        return Task(
            experiment=self._plan["experiment"]["name"],
            cell_id=entry["id"],
            cell_hash=entry["hash"],
            cell=Cell.from_dict(entry["cell"]),
            shape=shape,
            phases=entry["phases"],
            marks=entry["marks"],
            attempt=self.request.attempt,
            number=number,
            wanted=series.wanted,
            directory=directory.resolve(),
            data_dir=(self._project / site["data_dir"]).resolve(),
            time_limit=self.time_limit,
            threads=_threads(shape, site),
            backend_logs=self._plan["experiment"]["backend_logs"],
            save_model=self._plan["experiment"]["save_model"],
            collectives=self._plan["experiment"]["collectives"],
            heartbeat_grace=site["heartbeat_grace"],
            turns_seed=self.turns_seed,
            code=self._code,
            purpose=series.purpose,
            gate=self.gate(),
            image=self.image,
            hosts=self._hosts,
            interface=site["interface"],
            scratch=self._scratch_of(directory),
            env=site["env"],
            binds=[Path(path) for path in site["binds"]],
        )

    def _scratch_of(self, directory: Path) -> Path | None:
        """The scratch folder of a launch; None if its hosts are not known yet."""
        if not self._hosts.names:
            return None
        return scratch_of(self._plan["site"]["scratch"], job_id(), directory)


@dataclass(frozen=True, slots=True)
class Series:
    """The launches of an attempt that serve one purpose."""

    attempt: Attempt
    purpose: str
    directory: Path
    wanted: int

    def verdict(self) -> Verdict:
        return judge(read_attempt(self.directory), self.wanted)

    def task(self, number: int, directory: Path) -> Task:
        return self.attempt.task(self, number, directory)


def _find_hosts(cell: Cell, plan: Entry, entry: Entry) -> Hosts:
    """Return the hosts on which the launches of a cell run.

    Raises:
        ValueError: the site has Slurm, and its job lacks what the cell needs.
    """
    shape, experiment = Shape(**entry["shape"]), plan["experiment"]
    if is_array(find_launcher(cell.launcher)):
        return plan_array(
            cell,
            shape,
            plan["site"],
            time_limit=experiment["time_limit"],
            start_within=experiment["start_within"],
            comment=comment_of(experiment["name"], entry["id"]),
        )
    if plan["site"]["scheduler"] == "slurm":
        return find_slurm_job(shape)
    return ThisMachine()


def _threads(shape: Shape, site: Entry) -> int:
    """CPU threads of a rank: one per core of its device, or its share of the host."""
    share = max(1, site["cores"] // shape.ranks_per_node)
    return int(shape.cores_per_rank or site["cpu_threads_per_gpu"] or share)
