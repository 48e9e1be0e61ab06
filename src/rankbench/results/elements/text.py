"""Numbers and rows as text, the same in every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Base, Summary

# The columns for readers, with the estimate that each shows, if any.
SHOWN = {
    "cell": None,
    "status": None,
    "launches": None,
    "throughput (samples/s)": "throughput",
    "step (ms)": "step_ms",
    "speedup": "speedup",
    "efficiency": "efficiency",
    "memory (MiB)": "memory_mib",
    "accuracy": "accuracy",
    "marks": None,
    "reason": None,
}


# Beside a speedup: the cell and its base cannot be told apart.
ALIKE = "="


@dataclass(frozen=True, slots=True)
class Grid:
    """A table for readers.

    Attributes:
        title: of the table.
        columns: heading -> whether its fields are numbers.
        rows: as many fields as there are columns.
    """

    title: str
    columns: Mapping[str, bool]
    rows: Sequence[Sequence[Text]]

    @property
    def numbers(self) -> set[int]:
        """Places of the columns that hold numbers."""
        return {i for i, number in enumerate(self.columns.values()) if number}


class Text(NamedTuple):
    """What stands in one field of the table.

    Attributes:
        href: a file below the result directory that the field leads to.
    """

    value: str
    interval: str = ""
    href: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.interval}".strip()


def round_figures(value: float) -> float:
    """The value with 4 significant digits."""
    return float(f"{value:.4g}")


def figures(value: float) -> str:
    """The value with 4 significant digits, never in scientific notation."""
    return str(np.format_float_positional(round_figures(value), trim="-"))


def show_estimate(number: Estimate | None) -> Text:
    """``812.3`` and ``[801, 820.5]``; the latter only where there is an interval."""
    if number is None:
        return Text("")
    if number.low is None or number.high is None:
        return Text(figures(number.value))
    interval = f"[{figures(number.low)}, {figures(number.high)}]"
    return Text(figures(number.value), interval)


def describe_base(base: Base) -> str:
    """``single.none.1x1.convnet.digits = 812.3/s``."""
    return f"{base.id} = {figures(base.throughput.value)}/s"


def show_rows(summaries: Sequence[Summary]) -> list[dict[str, Text]]:
    """Every row by the columns of `SHOWN`."""
    return [_show(summary) for summary in summaries]


def _show(summary: Summary) -> dict[str, Text]:
    row = summary.row
    texts = {
        "cell": row.id,
        "status": row.status,
        "launches": f"{row.ok}/{row.wanted}" if row.wanted else "",
        "marks": ", ".join(summary.marks),
        "reason": row.reason or "",
    }
    shown = {
        column: Text(texts[column])
        if name is None
        else show_estimate(summary.numbers.get(name))
        for column, name in SHOWN.items()
    }
    speedup = summary.numbers.get("speedup")
    if speedup and speedup.may_be(1.0):
        value, interval, _ = shown["speedup"]
        shown["speedup"] = Text(value, f"{interval} {ALIKE}")
    return shown


def one_line(text: str) -> str:
    """Without what a terminal would obey, or a reader would not see."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())
