"""The sections of one experiment, made and ready to be written in any format."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from rankbench.record import first_line
from rankbench.results.elements.section import Content, Drawing, Section
from rankbench.results.elements.text import Grid, replace_ids, shorten
from rankbench.results.sections import load_sections

if TYPE_CHECKING:
    from rankbench.results.numbers.result_set import ResultSet

# The first plot of these that there is stands beside the answer.
_BESIDE_ANSWER = ("per_device", "throughput")


@dataclass(frozen=True)
class DocumentSection:
    """A section with its content.

    Attributes:
        section: what the file declares.
        content: empty if the section could not be made.
        grids: its tables for readers.
        frame: its CSV; None if it has none.
        error: why it could not be made; None if it was.
    """

    section: Section
    content: Content
    grids: Sequence[Grid] = ()
    frame: pd.DataFrame | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        return self.section.name

    @property
    def title(self) -> str:
        return self.section.title

    @property
    def reading(self) -> str:
        """How to read it, or why there is nothing to read."""
        return self.error or self.section.reading


@dataclass(frozen=True)
class Document:
    """Everything that there is to show of one experiment.

    Attributes:
        title: name of the experiment.
        names: id of each cell, measured or predicted -> its short name.
        shared: parts of the ids that the short names leave out.
        table: the section of all cells.
        sections: the other sections, in their order.
    """

    title: str
    names: dict[str, str]
    shared: str
    table: DocumentSection
    sections: Sequence[DocumentSection]

    @property
    def opening(self) -> list[DocumentSection]:
        """The sections that come before the table."""
        return [one for one in self.sections if one.section.order < 0]

    @property
    def rest(self) -> list[DocumentSection]:
        """The sections that come after the table."""
        return [one for one in self.sections if one.section.order >= 0]

    @property
    def beside_answer(self) -> list[Drawing]:
        """The plot that stands beside the answer: what each device does."""
        drawings = {d.name: d for made in self.sections for d in made.content.drawings}
        shown = (drawings.get(name) for name in _BESIDE_ANSWER)
        return [drawing for drawing in shown if drawing][:1]

    def name(self, text: str) -> str:
        """The text with short names instead of ids."""
        return replace_ids(text, self.names)


def make_document(
    found: ResultSet,
    *,
    only: Collection[str] = (),
    report: Callable[[str], None] = print,
) -> Document:
    """Make the sections.

    Args:
        found: what was read of a result directory.
        only: names of sections to make; all by default.
        report: gets the traceback of a section that could not be made.

    Raises:
        ValueError: a record is damaged, and `found` is strict; the message names it.
    """
    made = [
        one
        for section in load_sections().values()
        if not only or section.name in only
        if (one := _make(section, found, report))
    ]
    ids = [summary.id for summary in found.rows]
    ids += [target.id for target in found.targets]
    names, shared = shorten(ids)
    (table,) = (one for one in made if one.name == "table")
    sections = [one for one in made if one is not table]
    return Document(found.experiment, names, shared, table, sections)


def _make(
    section: Section, found: ResultSet, report: Callable[[str], None]
) -> DocumentSection | None:
    """Make a section, or a line in its place that says why it could not be made."""
    try:
        content = section.make(found)
        if content is None:
            return None
        frame = section.frame(content) if section.columns else None
        return DocumentSection(section, content, section.grids(content), frame)
    except Exception as error:
        root = f"{found.layout.root}/"
        said = f"{type(error).__name__}."
        if isinstance(error, ValueError) and root in str(error):
            # A file is damaged, and the message names it.
            if found.strict:
                raise
            said = first_line(str(error).replace(root, ""))
        else:
            report(f"section {section.name}:\n{traceback.format_exc()}")
        said = f"This section could not be made: {said}"
        return DocumentSection(section, Content(), error=said)
