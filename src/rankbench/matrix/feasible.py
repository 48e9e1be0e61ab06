"""Why a cell cannot run on a site, and what is known of its row beforehand."""

from __future__ import annotations

from rankbench.cell import Cell
from rankbench.matrix import obstacles, resources
from rankbench.matrix.catalog import Catalog
from rankbench.matrix.question import Question
from rankbench.matrix.shape import is_oversubscribed, shape_of
from rankbench.matrix.site import Site


def find_obstacle(cell: Cell, site: Site, catalog: Catalog) -> str | None:
    """Why the cell cannot run on the site, or None.

    The first reason counts: what the strategy is, then what the machine has.
    """
    facts = catalog.strategies[cell.strategy]
    question = Question(cell, facts, shape_of(cell, facts), site, catalog)
    for ask in (*obstacles.RULES, *resources.RULES):
        reason = ask(question)
        if reason:
            return reason
    return None


def marks_of(cell: Cell, site: Site, catalog: Catalog) -> list[str]:
    """Marks that are known before the cell runs."""
    facts = catalog.strategies[cell.strategy]
    marks = []
    normalises = catalog.models[cell.model]["batch_statistics"]
    lossy = any(cell.options[o] in values for o, values in facts.approximate.items())
    splits = facts.needs["splits_batch"]
    if isinstance(splits, str):
        splits = cell.options[splits] > 1
    if lossy or (splits and normalises):
        marks.append("approximate")
    if cell.device == "cpu" and facts.needs["logical_on_cpu"]:
        marks.append("functional")
    if is_oversubscribed(cell, site):
        marks.append("oversubscribed")
    return marks
