"""Documents as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from rankbench.results.elements.text import Grid, Note, Text, one_line
from rankbench.results.render.document import Document, DocumentSection


def to_markdown(document: Document) -> str:
    """table.md: the answer, the table, a list of the sections, and some of them."""
    write = _Writer(document)
    table = document.table
    inline = [one for one in document.rest if not one.section.appendix]
    parts = [
        f"# {_escape(document.title)}",
        *(write.notes(one.content.before) for one in document.opening),
        write.notes(table.content.before),
        f"## {_escape(table.title)}",
        write.shared(),
        *write.body(table, "###"),
        write.notes(table.content.notes),
        write.contents(),
    ]
    for one in inline:
        parts += [f"## {_escape(one.title)}", *write.section(one, "###")]
    return _join(parts)


def section_to_markdown(document: Document, made: DocumentSection) -> str:
    """A page of its own for one section."""
    write = _Writer(document)
    title = f"{document.title}: {made.title}"
    return _join([f"# {_escape(title)}", write.shared(), *write.section(made, "##")])


class _Writer:
    """Writes the parts of a document, with short names of cells."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def shared(self) -> str:
        """What the short names leave out."""
        if not self._document.shared:
            return ""
        return f"All cells: {_escape(self._document.shared)}."

    def contents(self) -> str:
        """A line for each section: where it is, and what it is."""
        lines = []
        for one in self._document.sections:
            links = []
            if one.has_table and (one.section.appendix or one.section.order < 0):
                links.append(f"[{_escape(one.title)}]({one.name}.md)")
            elif one.has_table:
                links.append(f"[{_escape(one.title)}](#{_slug(one.title)})")
            links += [
                f"[{_escape(drawing.name)}]({quote(f'plots/{drawing.name}.svg')})"
                for drawing in one.content.drawings
            ]
            if one.error:
                lines.append(f"- {_escape(one.title)}: {_escape(one.error)}")
            elif one.has_table:
                lines.append(f"- {', plot '.join(links)}")
            elif links:
                lines.append(f"- {_escape(one.title)}: plot {', '.join(links)}")
        if not lines:
            return ""
        return "\n".join(
            [
                "Sections; all columns of the table are in [table.csv](table.csv):\n",
                *lines,
            ]
        )

    def section(self, made: DocumentSection, level: str) -> Iterator[str]:
        """Paragraphs below the title of a section."""
        if made.reading:
            yield _escape(made.reading)
        if made.has_table:
            file = f"{made.name}.csv"
            yield f"All columns: [{file}]({file})"
        yield self.notes(made.content.before)
        yield from self.body(made, level)
        yield self.notes(made.content.notes)

    def body(self, made: DocumentSection, level: str) -> Iterator[str]:
        """The tables of a section; headings within it are of this level."""
        for grid in made.grids:
            if grid.title != made.title:
                yield f"{level} {_escape(self._document.name(grid.title))}"
            yield self._grid(grid)

    def notes(self, notes: Sequence[Note]) -> str:
        """A list of terms and their explanations."""
        return "\n".join(
            f"- **{self._text(note.term)}**: {self._text(note.text)}" for note in notes
        )

    def _grid(self, grid: Grid) -> str:
        # Columns are not padded: links and long names would double the file.
        rows = [
            [_escape(column) for column in grid.columns],
            ["--:" if number else ":--" for number in grid.columns.values()],
            *([self._field(text) for text in row] for row in grid.rows),
        ]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def _field(self, text: Text) -> str:
        shown = _escape(self._document.show(text))
        href = f"cells/{text.cell}.json" if text.cell else text.href
        return f"[{shown}]({quote(href)})" if href else shown

    def _text(self, text: str) -> str:
        return _escape(self._document.name(text))


def _join(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _slug(title: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _escape(text: str) -> str:
    plain = html.escape(one_line(text), quote=False)
    # The brackets of an interval stay; only those that would make a link are escaped.
    return re.sub(r"([\\`*|]|(?<=\])\()", r"\\\1", plain)
