"""A cell, and all that decides whether it can run."""

from __future__ import annotations

from dataclasses import dataclass

from rankbench.cell import Cell, Shape, Topology
from rankbench.matrix.catalog import Catalog, StrategyFacts
from rankbench.matrix.site import Site


@dataclass(frozen=True, slots=True)
class Question:
    """What each rule of obstacles.py and resources.py is asked."""

    cell: Cell
    facts: StrategyFacts
    shape: Shape
    site: Site
    catalog: Catalog

    @property
    def topology(self) -> Topology:
        return Topology.parse(self.cell.topology)
