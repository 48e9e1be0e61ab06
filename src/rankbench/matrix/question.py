"""A cell, and all that decides whether it can run."""

from __future__ import annotations

from dataclasses import dataclass

from rankbench.cell import Cell, Shape, Topology
from rankbench.matrix.catalog import Catalog, StrategyFacts
from rankbench.matrix.images import AUTO, find_image
from rankbench.matrix.shape import shape_of
from rankbench.matrix.site import CONTAINER, Site
from rankbench.matrix.software import Software


@dataclass(frozen=True, slots=True)
class Question:
    """What each rule of obstacles.py and resources.py is asked.

    Attributes:
        image: what its ranks run in, with its flavour; None for none.
        no_place: why they can run nowhere, or None.
    """

    cell: Cell
    facts: StrategyFacts
    shape: Shape
    site: Site
    catalog: Catalog
    image: str | None
    no_place: str | None

    @property
    def topology(self) -> Topology:
        return Topology.parse(self.cell.topology)

    @property
    def software(self) -> Software:
        """What its ranks find; ask `no_place` first."""
        return self.site.software_in(self.image)


def make_question(cell: Cell, site: Site, catalog: Catalog) -> Question:
    """Find out where the ranks of a cell would run."""
    facts = catalog.strategies[cell.strategy]
    image, reason = None, None
    if site.software == CONTAINER:
        image, reason = find_image(cell, catalog.images)
    elif cell.image != AUTO:
        reason = (
            f"the cell names the image {cell.image}; here ranks run in none "
            "(software: container in the site file)"
        )
    shape = shape_of(cell, facts)
    return Question(cell, facts, shape, site, catalog, image, reason)
