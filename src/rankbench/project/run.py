"""A run: the plan of an experiment, the chosen cells, and the lock of its results."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankbench.failures import Need
from rankbench.launch.hosts.slurm_resources import Resources
from rankbench.launch.images.store import NO_LOCKS, Image
from rankbench.matrix.own import OwnFiles
from rankbench.plan import Plan, PlannedCell
from rankbench.record import Layout, read_json
from rankbench.stopping import Rule


class InUse(ValueError):
    """Another run holds the lock of the result directory."""


class Lock:
    """The lock of a result directory: one run at a time measures into it.

    Attributes:
        handle: a process that inherits it holds the lock, too; None: not taken. The
            kernel releases the lock when the last of them has ended, however it ends.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.handle: int | None = None

    def take(self) -> None:
        """Keep other runs from measuring until this process ends or releases the lock.

        Raises:
            InUse: another run holds the lock; the message names its process.
            ValueError: the file system has no locks.
        """
        self._layout.root.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._layout.lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise InUse(
                f"{self._layout.root} is in use by {self._holder()}: wait for it or "
                "end it; `rankbench status` shows its progress"
            ) from None
        except OSError as error:
            os.close(handle)
            why = "its file system has no locks (flock)"
            if error.errno not in NO_LOCKS:
                why = error.strerror or str(error)
            raise ValueError(
                f"{self._layout.lock}: {why}: mount it with locks, or name another "
                "folder (results_dir in site.yaml)"
            ) from error
        self.handle = handle

    def release(self) -> None:
        """Let other runs take the lock; do nothing if this process does not hold it."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def _holder(self) -> str:
        try:
            agenda = read_json(self._layout.agenda)
        except (OSError, ValueError):
            return "another run"
        return f"process {agenda['pid']} on {agenda['host']} ({agenda['command']})"


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
        lock: the lock of the result directory, not acquired yet.
        resources: job -> what it requests from Slurm, if computed.
        jobs: `project.jobs.jobs_of`; None: not computed.
        needs: `project.snakefile.needs_of`; None: not computed.
    """

    plan: Plan
    layout: Layout
    chosen: list[PlannedCell]
    rerun: list[PlannedCell] = field(default_factory=list)
    more: Mapping[str, int] = field(default_factory=dict)
    known_images: Mapping[str, Image] = field(default_factory=dict)
    plots: bool = True
    own: OwnFiles = field(default_factory=OwnFiles)
    lock: Lock = field(init=False, repr=False, compare=False)
    resources: dict[str, Resources] = field(default_factory=dict, init=False)
    jobs: dict[str, Job] | None = field(default=None, compare=False)
    needs: Sequence[Need] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        self.lock = Lock(self.layout)

    def rule(self, cell_id: str) -> Rule:
        """Return how many launches a chosen cell gets."""
        experiment = self.plan.experiment["launches"]
        return Rule.read(self.more.get(cell_id, experiment))

    @property
    def data_dir(self) -> Path:
        return Path(self.plan.site["data_dir"])

    @property
    def image_dir(self) -> Path:
        return Path(self.plan.site["image_dir"])

    @property
    def feasible(self) -> list[PlannedCell]:
        """The chosen cells that can run on this site."""
        return [cell for cell in self.chosen if cell.infeasible is None]

    @property
    def image_names(self) -> list[str]:
        """The names of the images that the chosen cells run in."""
        return sorted({cell.image for cell in self.feasible if cell.image is not None})
