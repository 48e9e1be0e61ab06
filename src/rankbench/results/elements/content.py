"""A section of the page and of table.md: what it has, not how it looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankbench.results.elements.notes import Note
from rankbench.results.elements.text import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Tables and plots under one heading, in plain text; what is empty is left out.

    Attributes:
        title: the heading.
        about: what the reader must know first.
        files: of the result directory, with all columns.
        before: more of that, as a list.
        plots: name below `plots/`, and caption; the page alone shows them.
        grids: the tables; one with the title of the section has no heading of its own.
        notes: below the tables.
    """

    title: str
    about: str = ""
    files: Sequence[str] = ()
    before: Sequence[Note] = ()
    plots: Sequence[tuple[str, str]] = ()
    grids: Sequence[Grid] = ()
    notes: Sequence[Note] = ()
