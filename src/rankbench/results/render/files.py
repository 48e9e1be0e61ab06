"""The document of a result directory, and the files that people read.

All are functions of plan and records.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from rankbench.record import Layout, first_line, write_atomically, write_if_changed
from rankbench.results.elements.plotting import load_seaborn
from rankbench.results.elements.section import Content, Drawing, Section
from rankbench.results.elements.text import Grid, Note, replace_ids, shorten
from rankbench.results.numbers.result_set import ResultSet, read
from rankbench.results.read.archive import open_results
from rankbench.results.render import formats
from rankbench.results.sections import load_sections

# The first plot of these that there is stands beside the answer.
_BESIDE_ANSWER = ("per_device", "throughput")

# What `write_results` makes, as patterns below the result directory. All else there is
# measured, or says what to measure.
MADE = (
    *("README.md", "answer.json", "answer.md", "report.html"),
    *(f"table.{suffix}" for suffix in ("csv", "html", "md", "tex")),
    *("sections/*.csv", *(f"plots/*.{suffix}" for suffix in ("png", "svg"))),
)

# Inches: narrow, so that letters can be read on a telephone.
_WIDTH = 5.6
_DPI = 150

# Fonts and the ids of SVG elements would differ from machine to machine.
_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "svg.hashsalt": "rankbench",
    "figure.dpi": 100,
    "font.size": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "0.9",
    # A dollar sign in a name does not start a formula.
    "text.parse_math": False,
}

_README = """\
{title}: results of rankbench

- [answer.md](answer.md): what to use, and how sure that is; `answer.json` for programs.
- [table.md](table.md): every row; also as `.html`, `.tex`, and `.csv` (all columns).
- [report.html](report.html): answer, table, all sections and plots on one page.
- `plots/`, `sections/`: the plots, and the numbers of each section.
- `plan.json`, `requests/`, `records/`: what was planned and measured. All files above
  follow from these: `rankbench table FOLDER` writes them anew.
"""


@dataclass(frozen=True)
class DocumentSection:
    """A section with its content.

    Attributes:
        section: what the file declares; if it could not be made, its reading says why.
        content: empty if the section could not be made.
        grids: its tables for readers.
        frame: its CSV; None if it has none.
    """

    section: Section
    content: Content
    grids: Sequence[Grid] = ()
    frame: pd.DataFrame | None = None


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
    def drawings(self) -> list[Drawing]:
        """All plots."""
        return [one for made in self.sections for one in made.content.drawings]

    @property
    def beside_answer(self) -> list[Drawing]:
        """The plot that stands beside the answer: what each device does."""
        drawings = {drawing.name: drawing for drawing in self.drawings}
        shown = (drawings.get(name) for name in _BESIDE_ANSWER)
        return [drawing for drawing in shown if drawing][:1]

    def name(self, text: str) -> str:
        """The text with short names instead of ids."""
        return replace_ids(text, self.names)


def make_document(found: ResultSet, *, only: Collection[str] = ()) -> Document:
    """Make the sections.

    Args:
        found: what was read of a result directory.
        only: names of sections to make; all by default.

    Raises:
        ValueError: a record is damaged, and `found` is strict; the message names it.
    """
    made = [
        one
        for section in load_sections().values()
        if not only or section.name in only
        if (one := _make(section, found))
    ]
    ids = [summary.id for summary in found.rows]
    ids += [target.id for target in found.targets]
    names, shared = shorten(ids)
    (table,) = (one for one in made if one.section.name == "table")
    sections = [one for one in made if one is not table]
    return Document(found.experiment, names, shared, table, sections)


def _make(section: Section, found: ResultSet) -> DocumentSection | None:
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
            print(f"section {section.name}:", file=sys.stderr)
            traceback.print_exc()
        said = f"This section could not be made: {said}"
        return DocumentSection(replace(section, reading=said), Content())


def load_table(folder: str | PathLike[str]) -> pd.DataFrame:
    """As `rankbench.load`."""
    with open_results(Path(folder)) as root:
        section, found = load_sections()["table"], read(Layout(root))
        content = section.make(found)
        assert content is not None
        return section.frame(content)


def write_results(
    found: ResultSet, *, into: Layout | None = None, plots: bool = True
) -> Document:
    """Write what is in `MADE`; files that earlier results had, and these lack, go.

    Args:
        found: what was read of a result directory.
        into: where they are written; None: there.
        plots: whether they are drawn.

    Raises:
        ValueError: a record or its steps are damaged; the message names it.
    """
    document = make_document(found)
    layout = into or found.layout
    written = dict(_make_texts(layout, document, found))
    readme = layout.readme
    if readme.exists() and readme.read_text().startswith(written[readme]):
        written[readme] = readme.read_text()  # That of a bundle says more below.
    for path, text in written.items():
        write_if_changed(path, text.encode())
    if plots:
        draw_plots(layout, document.drawings)
    names = {drawing.name for drawing in document.drawings}
    for pattern in MADE:
        for path in layout.root.glob(pattern):
            is_plot = path.parent.name == "plots"
            if path.stem not in names if is_plot else path not in written:
                path.unlink()
    return document


def _make_texts(
    layout: Layout, document: Document, found: ResultSet
) -> Iterator[tuple[Path, str]]:
    """Each file but plots, and its text."""
    table, name = document.table, document.name
    title = f"# {formats.escape_markdown(document.title)}"
    # What the short names of cells leave out.
    shared = f"All cells: {document.shared}." if document.shared else ""
    yield layout.readme, _README.format(title=title)
    assert table.frame is not None
    yield layout.table("csv"), formats.to_csv(table.frame)
    yield (
        layout.table("md"),
        _join(
            title,
            formats.notes_to_markdown(table.content.before, name),
            shared,
            *(formats.to_markdown(grid, name) for grid in table.grids),
            formats.notes_to_markdown(table.content.notes, name),
            "All columns: [table.csv](table.csv). What they say: "
            "[answer.md](answer.md), [report.html](report.html).",
        ),
    )
    yield (
        layout.table("tex"),
        _join(
            "% needs the packages booktabs and graphicx",
            formats.escape_latex(shared),
            *(formats.to_latex(grid, name) for grid in table.grids),
            formats.notes_to_latex(table.content.notes, name),
        ),
    )
    yield layout.table("html"), formats.to_html(replace(document, sections=()))
    yield layout.report, formats.to_html(document, found)
    for made in document.sections:
        if made.frame is not None:
            yield layout.section(made.section.name), formats.to_csv(made.frame)
        if made.content.facts is not None:
            facts = json.dumps(made.content.facts, indent=1, allow_nan=False)
            before, more = (
                formats.notes_to_markdown(notes, name)
                for notes in (made.content.before, made.content.notes)
            )
            yield layout.answer("json"), f"{facts}\n"
            parts = title, before, "## More" if more else "", shared, more
            yield layout.answer("md"), _join(*parts)


def _join(*parts: str) -> str:
    return "\n\n".join(filter(None, parts)) + "\n"


def draw_plots(layout: Layout, drawings: Iterable[Drawing]) -> None:
    """Write plots/NAME.svg and .png."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    matplotlib.use("Agg")
    with matplotlib.rc_context():
        # A user's own matplotlibrc must not change a published plot.
        matplotlib.rcdefaults()
        load_seaborn().set_theme("paper", "whitegrid", rc=_RC)
        for drawing in drawings:
            figure = drawing.draw(_WIDTH)
            figure.set_dpi(_DPI)
            # Not by `savefig`, which draws everything once more before it draws. PNG
            # first: at the few pixels of SVG, hinting makes text too narrow for the
            # layout of both.
            png, svg = io.BytesIO(), io.StringIO()
            FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})
            # Computing the layout takes longest, so it is done once.
            figure.set_layout_engine("none")
            FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})
            write_if_changed(layout.plot(drawing.name, "png"), png.getvalue())
            write_if_changed(layout.plot(drawing.name, "svg"), svg.getvalue().encode())
            # The memory is freed now, not when the garbage collector runs.
            figure.clear()


def write_page(
    path: Path, title: str, notes: Sequence[Note], table: Grid, drawing: Drawing
) -> None:
    """Write FILE.html about several runs, and its plot into plots/ beside it.

    Raises:
        OSError: a file cannot be written.
    """

    def part(order: int, name: str, heading: str, content: Content) -> DocumentSection:
        made = Section(
            name=name, title=heading, reading="", order=order, make=lambda _: content
        )
        return DocumentSection(made, content, content.grids or ())

    opening = part(-1, "sides", title, Content(before=notes))
    rows = part(0, "rows", table.title, Content(grids=[table]))
    plots = part(1, "plot", drawing.question, Content(drawings=[drawing]))
    document = Document(title, {}, "", rows, [opening, plots])
    write_atomically(path, formats.to_html(document).encode())
    draw_plots(Layout(path.parent), [drawing])
