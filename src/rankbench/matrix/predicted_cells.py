"""Cells of topologies that are not measured, so that they can be predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rankbench.cell import REFERENCE, Cell
from rankbench.matrix import obstacles
from rankbench.matrix.candidate import make_candidate
from rankbench.matrix.catalog import Catalog
from rankbench.matrix.site import Site
from rankbench.plan import PredictedCell

# Fields in which cells of one series differ.
_OF_PLACE = ("topology", "oversubscribe")


def plan_predicted(
    cells: Mapping[str, Cell],
    topologies: Sequence[str],
    site: Site,
    catalog: Catalog,
) -> list[PredictedCell]:
    """Each of these topologies for each series of cells that differ in topology alone.

    Cells that are measured anyway, and those of `single`, are left out.

    Args:
        cells: by id, in the order of the plan.
        topologies: as in a cell.
    """
    series: dict[str, str] = {}
    for name, cell in cells.items():
        if cell.strategy != REFERENCE:
            series[cell.workload(_OF_PLACE)] = name
    measured = {(cell.workload(_OF_PLACE), cell.topology) for cell in cells.values()}
    found = []
    for key, name in series.items():
        for topology in dict.fromkeys(topologies):
            if (key, topology) not in measured:
                found.append(_plan(name, cells[name], topology, site, catalog))
    return found


def _plan(
    name: str, like: Cell, topology: str, site: Site, catalog: Catalog
) -> PredictedCell:
    cell = replace(like, topology=topology, oversubscribe=False)
    candidate = make_candidate(cell, site, catalog)
    reasons = (ask(candidate) for ask in obstacles.RULES)
    return PredictedCell(
        id=name.replace(f".{like.topology}.", f".{topology}.", 1),
        cell=cell,
        shape=candidate.shape,
        infeasible=next((reason for reason in reasons if reason), None),
    )
