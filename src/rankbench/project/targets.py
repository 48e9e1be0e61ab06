"""Cells of other topologies, for predictions."""

from __future__ import annotations

from collections.abc import Sequence

from rankbench.cell import Topology
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.predicted_cells import plan_predicted
from rankbench.matrix.site import Site
from rankbench.plan import PredictedCell, read_plan
from rankbench.record import Layout


def find_targets(layout: Layout, topologies: Sequence[str]) -> list[PredictedCell]:
    """Each topology for each series of the plan, unless it is measured already.

    Raises:
        ValueError: a topology is not NODESxDEVICES, all are measured already, or the
            plan is of another version.
    """
    for topology in topologies:
        Topology.parse(topology)
    plan = read_plan(layout.plan)
    cells = {name: planned.cell for name, planned in plan.cells.items()}
    site = Site.from_dict(plan.site)
    return plan_predicted(cells, topologies, site, load_catalog().with_own(plan.own))
