"""A table and its notes in each format of a file: CSV, Markdown, LaTeX.

HTML is in `static/page.html`; `commands/_terminal.py` prints the same tables.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence

import pandas as pd

from rankbench.results.elements.text import Grid, Note, figures, one_line

# Spreadsheets evaluate fields that begin with these characters.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

_LATEX = {
    **{char: rf"\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    # A bare bracket would end the argument of \item, or become an argument of \\.
    "[": "{[}",
    "]": "{]}",
}

# Text with ids of cells -> the same with their short names.
Shorten = Callable[[str], str]


def to_csv(table: pd.DataFrame) -> str:
    """A table as text that is the same on every machine and safe for spreadsheets.

    Numbers have 4 significant digits.
    """
    words = table.select_dtypes(exclude="number")
    safe = {str(name): _defuse(column) for name, column in words.items()}
    text: str = table.assign(**safe).to_csv(
        index=False, float_format=_figures, lineterminator="\n"
    )
    return text


def _figures(value: object) -> str:
    assert isinstance(value, float)
    return figures(value)


def _defuse(column: pd.Series) -> pd.Series:
    """Make text of formulas; look at each text once, because most occur often."""
    return column.map(
        {
            value: f"'{value}"
            if isinstance(value, str) and value.startswith(_FORMULA)
            else value
            for value in column.unique()
        }
    )


def to_markdown(grid: Grid, shorten: Shorten) -> str:
    """Columns are not padded: long names would double the file."""
    rows = [
        map(escape_markdown, grid.columns),
        ["--:" if number else ":--" for number in grid.columns.values()],
        *(
            [escape_markdown(shorten(text.value), text.interval) for text in row]
            for row in grid.rows
        ),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def notes_to_markdown(notes: Sequence[Note], shorten: Shorten) -> str:
    """A list of terms and their explanations."""
    return "\n".join(
        f"- **{escape_markdown(shorten(note.term))}**: "
        f"{escape_markdown(shorten(note.text))}"
        for note in notes
    )


def escape_markdown(*texts: str) -> str:
    """The texts as one line without markup."""
    plain = html.escape(one_line(" ".join(filter(None, texts))), quote=False)
    # The brackets of an interval stay; only those that would make a link are escaped.
    return re.sub(r"([\\`*|]|(?<=\])\()", r"\\\1", plain)


def to_latex(grid: Grid, shorten: Shorten) -> str:
    r"""A fragment for ``\input``, which needs the packages booktabs and graphicx."""
    rows = [[f"{shorten(t.value)} {t.interval}" for t in row] for row in grid.rows]
    header, *body = (
        " & ".join(map(escape_latex, row)) + r" \\" for row in [[*grid.columns], *rows]
    )
    align = "".join("r" if number else "l" for number in grid.columns.values())
    lines = [
        rf"\resizebox{{\textwidth}}{{!}}{{\begin{{tabular}}{{{align}}}",
        *(r"\toprule", header, r"\midrule", *body, r"\bottomrule"),
        r"\end{tabular}}",
    ]
    return "\n".join(lines)


def notes_to_latex(notes: Sequence[Note], shorten: Shorten) -> str:
    """A description list; LaTeX refuses one without items."""
    if not notes:
        return ""
    items = [
        rf"\item[{escape_latex(shorten(note.term))}] {escape_latex(shorten(note.text))}"
        for note in notes
    ]
    return "\n".join([r"\begin{description}", *items, r"\end{description}"])


def escape_latex(text: str) -> str:
    """The text as one line without commands."""
    return "".join(_LATEX.get(char, char) for char in one_line(text))
