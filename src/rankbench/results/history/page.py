"""The page of a history: one file, offline, with the plot of one cell at a time.

The browser unpacks the data of a cell when the reader chooses it, so the page of many
cells opens as fast as that of a few.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from rankbench import __version__
from rankbench.record import write_atomically
from rankbench.results.elements.text import figures, show_estimate
from rankbench.results.history.figure import make_figure
from rankbench.results.history.lines import Change, History, Line
from rankbench.results.history.store import Store
from rankbench.results.history.text import (
    explain,
    explain_between,
    list_redefined,
    minute,
    verdict,
)
from rankbench.results.numbers.segments import MIN_RUNS, MIN_SERIES
from rankbench.results.numbers.statistics import median
from rankbench.results.render.html.facts import Pool, number
from rankbench.results.render.html.page import (
    dump,
    hash_script,
    join_scripts,
    pack,
    read_bokeh,
)
from rankbench.results.render.html.templates import make_plain_environment, read_style

_SCRIPTS = ("dom.js", "history.js")


def write_page(path: Path, store: Store, history: History) -> int:
    """Write the page; returns its size in bytes.

    Raises:
        OSError: it cannot be written.
    """
    page = to_page(store, history).encode()
    write_atomically(path, page)
    return len(page)


def to_page(store: Store, history: History) -> str:
    """The page of a history."""
    texts = Pool()
    blocks = {
        f"line-{place}": dump(_describe_line(line, texts))
        for place, line in enumerate(history.lines)
    }
    blocks |= {
        "data": dump(_describe(history, texts)),
        "figure": dump(make_figure()),
        "bokeh": read_bokeh(),
    }
    script = join_scripts(_SCRIPTS)
    runs = history.runs
    return (
        make_plain_environment()
        .get_template("history.html")
        .render(
            title=", ".join(sorted({run.experiment for run in runs})),
            runs=len(runs),
            period=f"{minute(runs[0].begun)} to {minute(runs[-1].begun)} UTC",
            cells=len({line.id for line in history.lines}),
            tested=history.tested,
            changes=[_show_change(change) for change in history.changes],
            redefined=[
                (name, minute(begun)) for name, begun in list_redefined(history.lines)
            ],
            damaged=store.damaged,
            level=f"{100 * history.level:g}",
            least=MIN_RUNS,
            series=MIN_SERIES,
            version=__version__,
            style=read_style(),
            own_style=read_style("history.css"),
            script=Markup(script),  # noqa: S704
            script_hash=hash_script(script),
            blocks={name: pack(text) for name, text in blocks.items()},
        )
    )


def _describe(history: History, texts: Pool) -> dict[str, Any]:
    """What the script needs of all lines: their names, and texts that they share."""
    return {
        "lines": [[line.id, line.hash, len(line.breaks)] for line in history.lines],
        "texts": texts.values,
        "latest": _latest(history),
    }


def _latest(history: History) -> int:
    """The line that the page shows first: that of the latest change."""
    keys = [(line.id, line.hash) for line in history.lines]
    if not history.changes:
        return 0
    line = history.changes[0].line
    return keys.index((line.id, line.hash))


def _describe_line(line: Line, texts: Pool) -> dict[str, Any]:
    """The points of a line as columns, its levels, and changes of its environment."""
    numbers = [median(point.cell.throughput) for point in line.points]
    return {
        "unit": f"{line.unit}/s",
        "seconds": [_seconds(point.time) for point in line.points],
        "value": [number(one.value) for one in numbers],
        "low": [number(one.low) for one in numbers],
        "high": [number(one.high) for one in numbers],
        "launches": [len(point.cell.throughput) for point in line.points],
        "run": [point.run.digest[:8] for point in line.points],
        "breaks": list(line.breaks),
        "levels": [
            [number(one.value), str(show_estimate(one)), len(part)]
            for one, part in zip(line.levels, line.segments, strict=True)
        ],
        "p": None if line.adjusted is None else f"{line.adjusted:.2g}",
        "environment": list(_find_environment(line, texts)),
    }


def _find_environment(line: Line, texts: Pool) -> Iterator[tuple[int, int]]:
    """Places of points whose environment differs from the point before, and how."""
    for place in range(1, len(line.points)):
        before, since = line.points[place - 1 : place + 1]
        if before.cell.facts != since.cell.facts:
            yield place, texts.add(explain_between(before, since))


def _seconds(moment: str) -> int:
    """Seconds since 1970 of an ISO time in UTC."""
    return calendar.timegm(time.strptime(moment[:19], "%Y-%m-%dT%H:%M:%S"))


def _show_change(change: Change) -> dict[str, str]:
    line = change.line
    ratio = show_estimate(change.ratio)
    return {
        "address": f"#{urlencode({'cell': line.id, 'definition': line.hash})}",
        "since": minute(change.since.time),
        "cell": line.id,
        "verdict": verdict(change),
        "ratio": ratio.value if ratio.interval else figures(change.ratio.value),
        "interval": ratio.interval,
        "runs": f"{change.runs[0]} → {change.runs[1]}",
        "p": f"{line.adjusted:.2g}",
        "differs": explain(change),
    }
