"""A table and its notes in each format of a file: CSV, Markdown, LaTeX, HTML.

`commands/_terminal.py` prints the same tables.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import re
import shlex
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import pandas as pd
from markupsafe import Markup

from rankbench.cell import find_varying, spell_value
from rankbench.invocation import rankbench_command
from rankbench.results.elements.text import Grid, Note, figures, one_line

if TYPE_CHECKING:
    from rankbench.results.numbers.result_set import ResultSet
    from rankbench.results.render.files import Document

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

_STATIC = files("rankbench.results.render") / "static"

# A line that ends within a sentence was broken to fit a terminal.
_WRAPPED = re.compile(r"(?<![.;:])\n")

_NUMBER = re.compile(r"-?\d+(\.\d+)?")

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
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"## {escape_markdown(grid.title)}", "", *lines])


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
        *(rf"\paragraph{{{escape_latex(grid.title)}}}", ""),
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


# --- one page: report.html and the site ----------------------------------------------


def to_html(
    document: Document,
    found: ResultSet | None = None,
    beside: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The page: the table, all plots and all sections. It needs no file but the plots.

    Records never become markup, because the template escapes everything. report.html
    has no script. On the site, the tables sort and search by DataTables, which itables
    brings as one file; the policy in the head of the page allows our script by its
    hash, what it starts, and no request.

    Args:
        document: the sections.
        found: what was read of a result directory; None: the page lists no cells.
        beside: of a site, whose tables sort and search by a script, what lies beside
            the page: `downloads`, name of a file -> its bytes; `logs`, id of a cell ->
            names of its logs.
    """
    environment = _make_environment()
    environment.filters["short"] = document.name
    environment.tests["cell"] = lambda text: text in document.names
    library = script = digest = ""
    if beside is not None:
        import itables.options

        bundle = Path(itables.options.dt_bundle).read_bytes()
        library = b64encode(gzip.compress(bundle, mtime=0)).decode()
        script = (_STATIC / "page.js").read_text()
        digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        document=document,
        description=found.description if found else "",
        cells=_describe_cells(found) if found else [],
        beside=beside,
        style=Markup((_STATIC / "style.css").read_text()),  # noqa: S704
        library=library,
        script=Markup(script),  # noqa: S704
        script_hash=digest,
    )


@cache
def _make_environment() -> jinja2.Environment:
    """It compiles the template once for all pages."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (_STATIC / name).read_text()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    # The number that a field begins with; blank fields come last.
    environment.filters["sort_value"] = lambda text: (
        number[0] if (number := _NUMBER.match(text)) else "-inf"
    )
    environment.filters["unwrap"] = lambda text: _WRAPPED.sub(" ", text)
    # Known when the template is compiled; each page has its own.
    environment.filters["short"] = str
    environment.tests["cell"] = lambda _: False
    return environment


def _describe_cells(found: ResultSet) -> list[dict[str, Any]]:
    """What is said of each cell: what it is, unlike others, and how to measure it."""
    fields = [summary.cell.fields for summary in found.rows]
    varying = find_varying(fields)
    return [
        {
            "id": summary.id,
            "status": summary.status,
            "facts": {
                "reason": summary.reason,
                "marks": ", ".join(summary.marks),
                "launches": f"{summary.ok}/{summary.wanted}",
                "command": "".join(
                    shlex.join(record["launcher"].get("argv", ()))
                    for record in summary.records[:1]
                ),
                "measure it again": rankbench_command(
                    "rerun", cells=[summary.id], **found.source
                )
                if summary.wanted
                else "",
                **{
                    name: spell_value(value)
                    for name, value in own.items()
                    if name in varying
                },
            },
        }
        for summary, own in zip(found.rows, fields, strict=True)
    ]
