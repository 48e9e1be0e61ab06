r"""Documents as fragments of LaTeX, for ``\input``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rankbench.results.elements.text import Grid, Note, one_line
from rankbench.results.render.document import Document, DocumentSection

_SPECIAL = {
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


def to_latex(document: Document, made: DocumentSection) -> str:
    """The tables of a section, each below its heading, and their notes."""
    name = document.name
    title = one_line(f"{document.title}: {made.title}")
    needs = f"% {title}: needs the packages booktabs and graphicx."
    parts = [needs, _escape(made.reading)]
    if document.shared:
        parts.append(_escape(f"All cells: {document.shared}."))
    parts += _list(made.content.before, name)
    for grid in made.grids:
        if grid.title != made.title:
            parts.append(rf"\paragraph{{{_escape(name(grid.title))}}}")
        parts.append(_table(document, grid))
    parts += _list(made.content.notes, name)
    return "\n".join(filter(None, parts)) + "\n"


def _table(document: Document, grid: Grid) -> str:
    rows = [[document.show(text) for text in row] for row in grid.rows]
    header, *body = (
        " & ".join(map(_escape, row)) + r" \\" for row in [[*grid.columns], *rows]
    )
    align = "".join("r" if number else "l" for number in grid.columns.values())
    lines = [
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        header,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        "}",
    ]
    return "\n".join(lines)


def _list(notes: Sequence[Note], name: Callable[[str], str]) -> Iterator[str]:
    """A description list; LaTeX refuses one without items."""
    if notes:
        items = [
            rf"\item[{_escape(name(note.term))}] {_escape(name(note.text))}"
            for note in notes
        ]
        yield "\n".join([r"\begin{description}", *items, r"\end{description}"])


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(char, char) for char in one_line(text))
