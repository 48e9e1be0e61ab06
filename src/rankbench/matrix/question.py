"""A cell together with all facts that decide whether it can run."""

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
    """The argument of each rule in obstacles.py and resources.py.

    Attributes:
        image: name and flavour of the image for the ranks; None if they run natively.
        no_place: the reason why neither an image nor the machine fits, or None.
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
        """The software that ranks find; defined only if `no_place` is None."""
        return self.site.software_in(self.image)


def make_question(cell: Cell, site: Site, catalog: Catalog) -> Question:
    """Collect the facts about a cell, and choose its image."""
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
