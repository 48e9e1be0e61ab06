"""Decides whether a cell can run on a site, and which marks its row will have."""

from __future__ import annotations

from rankbench.cell import is_lossy
from rankbench.matrix import obstacles, resources
from rankbench.matrix.question import Question
from rankbench.matrix.shape import is_oversubscribed


def find_obstacle(question: Question) -> str | None:
    """The reason why the cell cannot run on the site; None if it can.

    Only the first reason is given. Limits of the strategy come before those of the
    site.
    """
    for ask in (*obstacles.RULES, *resources.RULES):
        reason = ask(question)
        if reason:
            return reason
    return None


def marks_of(question: Question) -> list[str]:
    """Marks that are known before the cell runs."""
    cell, facts = question.cell, question.facts
    marks = []
    normalises = question.catalog.models[cell.model]["batch_statistics"]
    lossy = is_lossy(cell.options, facts.approximate, facts.options)
    splits = facts.needs["splits_batch"]
    if isinstance(splits, str):
        splits = cell.options[splits] > 1
    if lossy or (splits and normalises):
        marks.append("approximate")
    if cell.device == "cpu" and facts.needs["logical_on_cpu"]:
        marks.append("functional")
    if question.catalog.models[cell.model]["emulated"]:
        marks.append("emulated")
    if is_oversubscribed(cell, question.site):
        marks.append("oversubscribed")
    return marks
