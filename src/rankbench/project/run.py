"""A run: the plan of an experiment, and the requested cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankbench.launch.hosts.slurm_resources import Resources
from rankbench.launch.images.store import Image
from rankbench.matrix.own import OwnFiles
from rankbench.plan import Plan, PlannedCell
from rankbench.project.lock import Lock
from rankbench.record import Layout
from rankbench.stopping import Rule


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
        known_images: images of this site; empty in a job, which needs only its plan.
        plots: whether to draw plots beside the tables.
        own: files of the user's own; empty in a job, which has copies of them.
        lock: the lock of the result directory, not acquired yet.
        resources: cell or shared job -> what it requests from Slurm, if computed.
        shared: jobs that measure several cells (`project.jobs`); None: not computed.
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
    shared: dict[str, Any] | None = field(default=None, init=False, compare=False)

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
