"""The sections of one experiment, made and ready to be written in any format."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rankbench.record import first_line
from rankbench.results.elements.names import replace_ids, shorten
from rankbench.results.elements.section import Content, Drawing, Section
from rankbench.results.elements.text import Grid, Note, Text
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
        error: why it could not be made; None if it was.
    """

    section: Section
    content: Content
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

    @cached_property
    def grids(self) -> Sequence[Grid]:
        return self.section.grids(self.content)

    @property
    def has_table(self) -> bool:
        """Whether it has files of its own beside its plots."""
        return bool(self.section.columns) and self.error is None


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

    def show(self, text: Text) -> str:
        """A field with its interval."""
        return str(text._replace(value=self.name(text.value)))


def make_document(
    found: ResultSet, *, report: Callable[[str], None] = print
) -> Document:
    """Make the sections.

    Args:
        found: what was read of a result directory.
        report: gets the traceback of a section that could not be made.

    Raises:
        ValueError: a record is damaged, and `found` is strict; the message names it.
    """
    made = [
        one
        for section in load_sections().values()
        if (one := _make(section, found, report))
    ]
    ids = [summary.row.id for summary in found.summaries]
    ids += [target.id for target in found.results.targets]
    names, shared = shorten(ids)
    (table,) = (one for one in made if one.name == "table")
    sections = [one for one in made if one is not table]
    return Document(found.results.experiment, names, shared, table, sections)


def _make(
    section: Section, found: ResultSet, report: Callable[[str], None]
) -> DocumentSection | None:
    """Make a section, without cells whose records it cannot use; it then names them."""
    try:
        return _try(section, found)
    except Exception as error:
        said = f"{type(error).__name__}."
        if isinstance(error, ValueError) and str(found.layout.root) in str(error):
            # A file is damaged, and the message names it.
            if found.strict:
                raise
            said = _shorten(error, found)
        else:
            report(f"section {section.name}:\n{traceback.format_exc()}")
        odd = _find_odd(section, found)
        rest = _leave_out(found, odd)
        try:
            made = _try(section, rest) if odd else None
        except Exception:
            made = None
        if made is None:
            said = f"This section could not be made: {said}"
            return DocumentSection(section, Content(), error=said)
    left_out = [Note(name, f"not computed ({why}).") for name, why in odd.items()]
    return replace(
        made, content=replace(made.content, notes=[*left_out, *made.content.notes])
    )


def _try(section: Section, found: ResultSet) -> DocumentSection | None:
    content = section.make(found)
    if content is None:
        return None
    made = DocumentSection(section, content)
    made.grids  # noqa: B018
    section.frame(content)
    return made


def _find_odd(section: Section, found: ResultSet) -> dict[str, str]:
    """Cells for which a section fails even without all others -> the error."""
    names = [summary.row.id for summary in found.measured]
    odd = {}
    for name in names:
        try:
            _try(
                section, _leave_out(found, [other for other in names if other != name])
            )
        except Exception as error:
            odd[name] = f"{type(error).__name__}: {_shorten(error, found)}"
    return odd


def _shorten(error: Exception, found: ResultSet) -> str:
    """Its message in one line, which names files as they lie in the results."""
    said = str(error).replace(f"{found.layout.root}/", "")
    return first_line(said) or "no message"


def _leave_out(found: ResultSet, names: Collection[str]) -> ResultSet:
    """The results without the numbers of these cells."""
    reason = "its records cannot be shown; the notes say why"
    lost: dict[str, Any] = {"status": "crashed", "reason": reason, "launches": ()}
    summaries = [
        replace(
            one, row=replace(one.row, **lost), measures=(), disturbed=(), numbers={}
        )
        if one.row.id in names
        else one
        for one in found.summaries
    ]
    rows = tuple(summary.row for summary in summaries)
    return replace(
        found, results=replace(found.results, rows=rows), summaries=summaries
    )
