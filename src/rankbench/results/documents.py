"""Tables as CSV, as Markdown and as LaTeX."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

import pandas as pd

from rankbench.record import first_line
from rankbench.results.notes import Note
from rankbench.results.text import SHOWN, Grid, Text, figures
from rankbench.results.utilisation import ABOUT, Usage

# The notes have the whole reason.
_REASON_WIDTH = 60


def to_csv(table: pd.DataFrame) -> str:
    """A table as text that two machines write alike."""
    text: str = table.to_csv(index=False, float_format=_figures, lineterminator="\n")
    return text


def _figures(value: object) -> str:
    assert isinstance(value, float)
    return figures(value)


def to_markdown(
    title: str,
    rows: Sequence[dict[str, Text]],
    notes: Sequence[Note],
    usage: Sequence[Usage] = (),
) -> str:
    """A page with the table, its notes, and who was busy."""
    frame = _frame(rows, list(SHOWN))
    frame["reason"] = [first_line(text, _REASON_WIDTH) for text in frame["reason"]]
    table = _markdown_table(frame, [name is not None for name in SHOWN.values()])
    listed = _markdown_list(notes)
    busy = _usage_in_markdown(usage) if usage else ""
    return f"# {_escape_markdown(title)}\n\n{table}\n\n{listed}\n{busy}"


def grids_to_markdown(
    title: str,
    grids: Sequence[Grid],
    *,
    before: Sequence[Note] = (),
    after: Sequence[Note] = (),
) -> str:
    """A page of several tables, with notes before and after them."""
    parts = [f"# {_escape_markdown(title)}", _markdown_list(before)]
    for grid in grids:
        frame = pd.DataFrame(
            [[str(text) for text in row] for row in grid.rows],
            columns=list(grid.columns),
            dtype=object,
        )
        parts.append(f"## {_escape_markdown(grid.title)}")
        parts.append(_markdown_table(frame, list(grid.columns.values())))
    parts.append(_markdown_list(after))
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(frame: pd.DataFrame, numbers: Sequence[bool]) -> str:
    align = ["right" if number else "left" for number in numbers]
    escaped = frame.map(_escape_markdown)
    text: str = escaped.to_markdown(index=False, disable_numparse=True, colalign=align)
    return text


def _markdown_list(notes: Sequence[Note]) -> str:
    return "\n".join(
        f"- **{_escape_markdown(note.term)}**: {_escape_markdown(note.text)}"
        for note in notes
    )


def _usage_in_markdown(usage: Sequence[Usage]) -> str:
    frame = pd.DataFrame(usage, dtype=object).map(_escape_markdown)
    return f"\n## Utilisation\n\n{ABOUT}\n\n{frame.to_markdown(index=False)}\n"


def to_latex(title: str, rows: Sequence[dict[str, Text]], notes: Sequence[Note]) -> str:
    r"""A fragment for ``\input``; the table is wide, so reasons stand below it."""
    shown = {column: name for column, name in SHOWN.items() if column != "reason"}
    frame = _frame(rows, list(shown)).map(_escape_latex)
    frame.columns = frame.columns.map(_escape_latex)
    align = "".join("l" if name is None else "r" for name in shown.values())
    table = frame.style.hide(axis="index").to_latex(column_format=align, hrules=True)
    listed = "\n".join(
        rf"\item[{_escape_latex(note.term)}] {_escape_latex(note.text)}"
        for note in notes
    )
    return (
        f"% {' '.join(title.split())}: needs the packages booktabs and graphicx.\n"
        f"\\resizebox{{\\textwidth}}{{!}}{{%\n{table}}}\n"
        f"\\begin{{description}}\n{listed}\n\\end{{description}}\n"
    )


def _frame(rows: Sequence[dict[str, Text]], columns: list[str]) -> pd.DataFrame:
    texts = [{column: str(row[column]) for column in columns} for row in rows]
    return pd.DataFrame(texts, columns=columns, dtype=object)


def _escape_markdown(text: str) -> str:
    plain = html.escape(" ".join(text.split()), quote=False)
    # An interval keeps its brackets; only those of a link are broken.
    return re.sub(r"([\\`*|]|(?<=\])\()", r"\\\1", plain)


_LATEX = {
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


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in " ".join(text.split()))
