"""Tables as CSV and as Markdown."""

from __future__ import annotations

import html
import re
import urllib.parse
from collections.abc import Sequence

import pandas as pd

from rankbench.record import first_line
from rankbench.results.elements.content import Section
from rankbench.results.elements.notes import Note
from rankbench.results.elements.text import SHOWN, Grid, Text, figures, one_line

# How a field begins that a spreadsheet computes.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

# The notes have the whole reason.
_REASON_WIDTH = 60


def to_csv(table: pd.DataFrame) -> str:
    """A table as text that two machines write alike, and no program runs."""
    words = table.select_dtypes(exclude="number")
    safe = {str(name): column.map(_defuse) for name, column in words.items()}
    text: str = table.assign(**safe).to_csv(
        index=False, float_format=_figures, lineterminator="\n"
    )
    return text


def _defuse(value: object) -> object:
    """What a spreadsheet would take for a formula becomes a text."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def _figures(value: object) -> str:
    assert isinstance(value, float)
    return figures(value)


def to_markdown(
    title: str,
    rows: Sequence[dict[str, Text]],
    notes: Sequence[Note],
    sections: Sequence[Section] = (),
) -> str:
    """A page with the table, its notes, and what else is told of the cells."""
    frame = _frame(rows, list(SHOWN))
    frame["reason"] = [first_line(text, _REASON_WIDTH) for text in frame["reason"]]
    table = _markdown_table(
        frame.map(_escape_markdown), [name is not None for name in SHOWN.values()]
    )
    parts = [f"# {_escape_markdown(title)}", table, _markdown_list(notes)]
    for section in sections:
        parts.append(f"## {_escape_markdown(section.title)}")
        parts += _markdown_section(section, "###")
    return _join(parts)


def section_to_markdown(title: str, section: Section) -> str:
    """A page of its own."""
    heading = f"# {_escape_markdown(f'{title}: {section.title.lower()}')}"
    return _join([heading, *_markdown_section(section, "##")])


def _markdown_section(section: Section, level: str) -> list[str]:
    """Paragraphs below its title; the headings within it are of that level."""
    parts = [_escape_markdown(section.about)]
    if section.files:
        links = ", ".join(f"[{name}]({_quote(name)})" for name in section.files)
        parts.append(f"All columns: {links}")
    parts.append(_markdown_list(section.before))
    for grid in section.grids:
        if grid.title != section.title:
            parts.append(f"{level} {_escape_markdown(grid.title)}")
        parts.append(_markdown_grid(grid))
    return [*parts, _markdown_list(section.notes)]


def _markdown_grid(grid: Grid) -> str:
    frame = pd.DataFrame(
        [[_markdown_field(text) for text in row] for row in grid.rows],
        columns=[_escape_markdown(column) for column in grid.columns],
        dtype=object,
    )
    return _markdown_table(frame, list(grid.columns.values()))


def _markdown_field(text: Text) -> str:
    shown = _escape_markdown(str(text))
    return f"[{shown}]({_quote(text.href)})" if text.href else shown


def _markdown_table(escaped: pd.DataFrame, numbers: Sequence[bool]) -> str:
    align = ["right" if number else "left" for number in numbers]
    text: str = escaped.to_markdown(index=False, disable_numparse=True, colalign=align)
    return text


def _markdown_list(notes: Sequence[Note]) -> str:
    return "\n".join(
        f"- **{_escape_markdown(note.term)}**: {_escape_markdown(note.text)}"
        for note in notes
    )


def _join(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _quote(path: str) -> str:
    """A relative path as the address of a link."""
    return urllib.parse.quote(path)


def _frame(rows: Sequence[dict[str, Text]], columns: list[str]) -> pd.DataFrame:
    texts = [{column: str(row[column]) for column in columns} for row in rows]
    return pd.DataFrame(texts, columns=columns, dtype=object)


def _escape_markdown(text: str) -> str:
    plain = html.escape(one_line(text), quote=False)
    # An interval keeps its brackets; only those of a link are broken.
    return re.sub(r"([\\`*|]|(?<=\])\()", r"\\\1", plain)
