"""Everything that was read of a result directory: sections are made from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rankbench.record import Layout
from rankbench.results.numbers.series import Panel, make_panels
from rankbench.results.numbers.summary import Summary, summarise
from rankbench.results.read.rows import Results, load


@dataclass(frozen=True, kw_only=True)
class ResultSet(Results):
    """Plan and records of a result directory, measured and compared.

    Attributes:
        rows: the cells of the plan with their launches and numbers, in its order.
        layout: the result directory.
        strict: whether a damaged file is an error; else its cell says so.
    """

    rows: Sequence[Summary]
    layout: Layout
    strict: bool = False

    @cached_property
    def measured(self) -> list[Summary]:
        """The rows that are ok."""
        return [summary for summary in self.rows if summary.measures]

    @cached_property
    def reasons(self) -> dict[tuple[str, str], list[str]]:
        """Status and reason -> ids of the rows that have no numbers because of that."""
        found: dict[tuple[str, str], list[str]] = {}
        for one in self.rows:
            if not one.measures:
                key = (one.status, one.reason or "")
                found.setdefault(key, []).append(one.id)
        return found

    @cached_property
    def panels(self) -> list[Panel]:
        """The rows that are ok, grouped by what may be compared."""
        return make_panels(self.rows)


def read(layout: Layout, *, strict: bool = False) -> ResultSet:
    """Read plan and records, measure the launches, and compare the rows.

    Args:
        layout: the result directory.
        strict: whether a damaged record, or damaged steps, are an error, as in a
            bundle; else the row of its cell is stale and names the file.

    Raises:
        ValueError: the plan is damaged, or, if strict, another file; the message names
            it.
    """
    results = load(layout)
    rows = summarise(results)
    for row in rows:
        if strict and row.damage:
            raise row.damage
    return ResultSet(**vars(results) | {"rows": rows}, layout=layout, strict=strict)
