"""report.html and the site: one page, with the table, all plots and all sections.

Records never become markup, because the template escapes everything. report.html has no
script. On the site, the tables sort and search by DataTables, which itables brings as
one file; the policy in the head of the page allows our script by its hash, what it
starts, and no request.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from rankbench import __version__
from rankbench.cell import find_varying, spell_value
from rankbench.invocation import named_in, rankbench_command
from rankbench.record import read_json

if TYPE_CHECKING:
    from rankbench.results.numbers.result_set import ResultSet
    from rankbench.results.numbers.summary import Summary
    from rankbench.results.render.document import Document

_STATIC = files("rankbench.results.render") / "static"

# A line that ends within a sentence was broken to fit a terminal.
_WRAPPED = re.compile(r"(?<![.;:])\n")

_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def to_html(
    document: Document,
    found: ResultSet | None = None,
    beside: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The page. It needs no other file but the plots.

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
    plan = read_json(found.layout.plan) if found else {}
    return environment.get_template("page.html").render(
        document=document,
        description=plan.get("experiment", {}).get("description") or "",
        cells=_describe_cells(found, plan) if found else [],
        citation=_cite(found) if found else "",
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


def _describe_cells(found: ResultSet, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
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
                "measure it again": _rerun(summary, plan) if summary.wanted else "",
                **{
                    name: spell_value(value)
                    for name, value in own.items()
                    if name in varying
                },
            },
        }
        for summary, own in zip(found.rows, fields, strict=True)
    ]


def _rerun(summary: Summary, plan: Mapping[str, Any]) -> str:
    named = named_in(plan["experiment"])
    return rankbench_command("rerun", cells=[summary.id], **named)


def _cite(found: ResultSet) -> str:
    """An entry for BibTeX."""
    days = sorted(
        launch.record["started"][:10]
        for summary in found.rows
        for launch in summary.launches
        if "started" in launch.record
    )
    measured = " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "not yet"
    name = found.experiment
    return "\n".join(
        [
            f"@misc{{rankbench-{name},",
            f"  title = {{{name}: results of rankbench {__version__}}},",
            f"  year = {{{days[-1][:4] if days else ''}}},",
            f"  note = {{measured {measured}; rankbench: a reproducible benchmark",
            "    pipeline for distributed PyTorch training}",
            "}",
        ]
    )
