"""Everything that was read of a result directory: sections are made from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rankbench.record import Layout
from rankbench.results.numbers.series import Panel, make_panels
from rankbench.results.numbers.summary import Summary, summarise
from rankbench.results.read.rows import Results, load


@dataclass(frozen=True)
class ResultSet:
    """Plan and records of a result directory, measured and compared.

    Attributes:
        layout: the result directory.
        results: the rows of the plan, with their launches.
        summaries: the same rows with their numbers.
    """

    layout: Layout
    results: Results
    summaries: Sequence[Summary]

    @cached_property
    def measured(self) -> list[Summary]:
        """The rows that are ok."""
        return [summary for summary in self.summaries if summary.measures]

    @cached_property
    def reasons(self) -> dict[tuple[str, str], list[str]]:
        """Status and reason -> ids of the rows that have no numbers because of that."""
        found: dict[tuple[str, str], list[str]] = {}
        for one in self.summaries:
            if not one.measures:
                key = (one.row.status, one.row.reason or "")
                found.setdefault(key, []).append(one.row.id)
        return found

    @cached_property
    def panels(self) -> list[Panel]:
        """The rows that are ok, grouped by what may be compared."""
        return make_panels(self.summaries)


def read(layout: Layout) -> ResultSet:
    """Read plan and records, measure the launches, and compare the rows.

    Args:
        layout: the result directory.

    Raises:
        ValueError: the plan, a record or its steps are damaged; the message names it.
    """
    results = load(layout)
    return ResultSet(layout, results, summarise(results))
