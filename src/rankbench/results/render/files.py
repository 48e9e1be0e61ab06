"""The files of a result directory that people read: functions of plan and records."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from rankbench.record import Layout, write_atomically, write_if_changed
from rankbench.results.elements.section import Content, Drawing, Section
from rankbench.results.elements.text import Grid, Note, figures
from rankbench.results.render.document import (
    Document,
    DocumentSection,
    make_document,
)
from rankbench.results.render.html import to_html
from rankbench.results.render.latex import to_latex
from rankbench.results.render.markdown import section_to_markdown, to_markdown
from rankbench.results.render.plots import draw_plots
from rankbench.results.sections import load_sections

if TYPE_CHECKING:
    from rankbench.results.numbers.result_set import ResultSet

# Spreadsheets evaluate fields that begin with these characters.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

SUFFIXES = ("csv", "md", "tex", "json")


def write_results(
    found: ResultSet,
    *,
    plots: bool = True,
    draw: bool = True,
) -> Document:
    """Write table.{csv,md,html,tex}, the files of each section, and the plots.

    Files of a section that has nothing to show are removed.

    Args:
        found: what was read of a result directory.
        plots: whether to write the plots and their data.
        draw: whether they are drawn, and not only their data written.

    Raises:
        ValueError: a record or its steps are damaged; the message names it.
    """
    document = make_document(found, report=lambda text: print(text, file=sys.stderr))
    layout = found.layout
    texts = {
        "csv": to_csv(document.table.section.frame(document.table.content)),
        "md": to_markdown(document),
        "html": to_html(document, found),
        "tex": to_latex(document, document.table),
    }
    for suffix, text in texts.items():
        write_if_changed(layout.table(suffix), text.encode())
    _write_sections(layout, document)
    if plots:
        drawings = [d for made in document.sections for d in made.content.drawings]
        for drawing in drawings:
            text = to_csv(drawing.frame())
            write_if_changed(layout.plot(drawing.name, "csv"), text.encode())
        if draw:
            draw_plots(layout, drawings)
        _remove_others(layout, {drawing.name for drawing in drawings})
    return document


def write_page(
    path: Path, title: str, notes: Sequence[Note], table: Grid, drawing: Drawing
) -> None:
    """Write FILE.html about several runs, and its plot into plots/ beside it.

    Raises:
        OSError: a file cannot be written.
    """
    rows, plots = (
        DocumentSection(
            Section(name=name, title=title, reading="", order=0, make=lambda _: None),
            content,
        )
        for name, title, content in (
            ("rows", table.title, Content(grids=[table], before=notes)),
            ("plot", drawing.question, Content(drawings=[drawing])),
        )
    )
    document = Document(title, names={}, shared="", table=rows, sections=[plots])
    write_atomically(path, to_html(document).encode())
    draw_plots(Layout(path.parent), [drawing])


def _write_sections(layout: Layout, document: Document) -> None:
    written = set()
    for made in document.sections:
        if not made.has_table:
            continue
        written.add(made.name)
        texts = {
            "csv": to_csv(made.section.frame(made.content)),
            "md": section_to_markdown(document, made),
            "tex": to_latex(document, made),
        }
        if made.content.facts is not None:
            facts = json.dumps(made.content.facts, indent=1, allow_nan=False)
            texts["json"] = f"{facts}\n"
        for suffix, text in texts.items():
            write_if_changed(layout.table(suffix, made.name), text.encode())
    for name, section in load_sections().items():
        if section.columns and name not in {"table", *written}:
            for suffix in SUFFIXES:
                layout.table(suffix, name).unlink(missing_ok=True)


def _remove_others(layout: Layout, there: set[str]) -> None:
    """Remove plots of earlier results that have nothing to show any more."""
    families = [name for one in load_sections().values() for name in one.plots]
    for family in families:
        for pattern in (f"{family}.*", f"{family}-*.*"):
            for path in (layout.root / "plots").glob(pattern):
                if path.stem not in there and path.suffix in (".svg", ".png", ".csv"):
                    path.unlink()


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


def _figures(value: object) -> str:
    assert isinstance(value, float)
    return figures(value)
