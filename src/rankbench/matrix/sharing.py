"""Which cells are measured by one job: their launches can take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.site import Site
from rankbench.schedulers import SCHEDULERS, scheduler_of
from rankbench.stopping import BEST, Rule

if TYPE_CHECKING:
    from rankbench.plan import Plan, PlannedCell

# Values of `order`.
ROUNDS = "rounds"
# Values of `allocation`.
CELL, TOPOLOGY, EXPERIMENT = "cell", "topology", "experiment"

ON_THIS_MACHINE = "this-machine"


def check_sharing(values: Mapping[str, Any], site: Site) -> None:
    """Check that the keys of an experiment about jobs fit each other and the site.

    Args:
        values: of the experiment.
        site: the machine.

    Raises:
        ValueError: they do not; the message names the key and what to do.
    """
    allocation = values["allocation"]
    has_queue = SCHEDULERS[site.scheduler].has_queue
    if not has_queue and allocation != CELL:
        raise ValueError(
            f"allocation: {allocation} needs a cluster, and this site has no Slurm "
            f"(scheduler: {site.scheduler}): remove the key; launches of all cells "
            "take turns anyway"
        )
    together = allocation == EXPERIMENT if has_queue else values["order"] == ROUNDS
    if values["order"] == ROUNDS and together:
        return
    remedy = "allocation: experiment" if has_queue else "order: rounds"
    if values["order"] != ROUNDS:
        remedy = "order: rounds"
    if Rule.read(values["launches"]).kind == BEST:
        raise ValueError(
            "launches.best compares all cells of a workload in the same rounds: it "
            f"needs {remedy}"
        )
    if values["budget"] is not None:
        raise ValueError(
            f"budget ends the rounds of all cells at the same time: it needs {remedy}"
        )


def group_cells(
    plan: Plan, cells: Sequence[PlannedCell]
) -> dict[str, list[PlannedCell]]:
    """Group cells that one job measures; those with jobs of their own are in no group.

    Args:
        plan: the plan.
        cells: cells of it that can run here.

    Returns:
        Name of each group -> its cells.
    """
    experiment = plan.experiment
    if not scheduler_of(plan.site).has_queue:
        if experiment["order"] != ROUNDS or not cells:
            return {}
        return {ON_THIS_MACHINE: list(cells)}
    groups: dict[str, list[PlannedCell]] = {}
    for cell in cells:
        if experiment["allocation"] == CELL or is_apart(cell):
            continue
        by_topology = experiment["allocation"] == TOPOLOGY
        name = cell.cell.topology if by_topology else EXPERIMENT
        groups.setdefault(name, []).append(cell)
    return groups


def is_apart(cell: PlannedCell) -> bool:
    """Whether its hosts are tasks of a job array, which no other cell can use."""
    return bool(load_catalog().launchers[cell.cell.launcher]["per"] == "array")
