r"""Tables as fragments of LaTeX, for ``\input``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from rankbench.results.elements.content import Section
from rankbench.results.elements.notes import Note
from rankbench.results.elements.text import SHOWN, Text, one_line

_SPECIAL = {
    **{char: rf"\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    # A bare bracket ends the argument of \item, or becomes one of \\.
    "[": "{[}",
    "]": "{]}",
}


def to_latex(title: str, rows: Sequence[dict[str, Text]], notes: Sequence[Note]) -> str:
    """The table; it is wide, so reasons stand below it."""
    shown = {column: name for column, name in SHOWN.items() if column != "reason"}
    fields = [[row[column] for column in shown] for row in rows]
    numbers = {column: name is not None for column, name in shown.items()}
    frame = pd.DataFrame(fields, columns=list(shown), dtype=object)
    return _join([_needs(title), _table(frame, list(numbers.values())), *_list(notes)])


def section_to_latex(title: str, section: Section) -> str:
    """The tables of a section, each below its heading, and what is told of them."""
    parts = [_needs(f"{title}: {section.title.lower()}"), _escape(section.about)]
    parts += _list(section.before)
    for grid in section.grids:
        if grid.title != section.title:
            parts.append(rf"\paragraph{{{_escape(grid.title)}}}")
        frame = pd.DataFrame(grid.rows, columns=list(grid.columns), dtype=object)
        parts.append(_table(frame, list(grid.columns.values())))
    return _join([*parts, *_list(section.notes)])


def _needs(title: str) -> str:
    return f"% {one_line(title)}: needs the packages booktabs and graphicx."


def _table(texts: pd.DataFrame, numbers: Sequence[bool]) -> str:
    frame = texts.map(lambda text: _escape(str(text)))
    frame.columns = frame.columns.map(_escape)
    align = "".join("r" if number else "l" for number in numbers)
    table = frame.style.hide(axis="index").to_latex(column_format=align, hrules=True)
    return f"\\resizebox{{\\textwidth}}{{!}}{{%\n{table}}}"


def _list(notes: Sequence[Note]) -> Iterator[str]:
    """LaTeX refuses a list without an item."""
    if notes:
        items = [rf"\item[{_escape(note.term)}] {_escape(note.text)}" for note in notes]
        yield "\n".join([r"\begin{description}", *items, r"\end{description}"])


def _join(parts: Sequence[str]) -> str:
    return "\n".join(part for part in parts if part) + "\n"


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(char, char) for char in one_line(text))
