"""Every launch behind the table, in the order in which they began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankbench.results.elements.section import Content, Section

if TYPE_CHECKING:
    from rankbench.results.numbers.measures import Measures
    from rankbench.results.numbers.result_set import ResultSet
    from rankbench.results.numbers.summary import Summary
    from rankbench.results.read.launches import Launch


# What throughput counts -> its column.
_RATES = {"samples": "throughput", "tokens": "tokens_per_s"}


def make(found: ResultSet) -> Content | None:
    """A row for each launch of each cell that is ok."""
    rows = [
        _row(summary, launch, measures)
        for summary in found.measured
        for launch, measures in zip(summary.row.launches, summary.measures, strict=True)
    ]
    rows.sort(key=lambda row: row["started"] or "")
    return Content(rows=rows) if rows else None


def _row(summary: Summary, launch: Launch, measures: Measures) -> dict[str, Any]:
    record = launch.record
    return {
        "started": record.get("started"),
        "cell": summary.row.id,
        "attempt": summary.row.attempt,
        "launch": launch.number,
        _RATES[summary.row.cell.unit]: measures.throughput,
        "step_ms": measures.step_ms,
        "memory_mib": measures.memory_mib,
        "warmup_steps": measures.warmup,
        "steady": "yes" if measures.steady else "no",
    }


SECTION = Section(
    name="launches",
    title="Launches",
    reading=(
        "Every launch behind the table, in the order in which they began. If the "
        "numbers of a cell rise or fall from its first launch to its last, the "
        "machine changed meanwhile. Steady: step times settled at a level before the "
        "end of the timed window."
    ),
    order=45,
    make=make,
    columns={
        "started": (str, "started"),
        "cell": (str, "cell"),
        "attempt": int,
        "launch": (int, "launch"),
        "throughput": (float, "throughput (samples/s)"),
        "tokens_per_s": (float, "throughput (tokens/s)"),
        "step_ms": (float, "step (ms)"),
        "memory_mib": (float, "memory (MiB)"),
        "warmup_steps": (int, "warm-up (steps)"),
        "steady": (str, "steady"),
    },
    optional=["tokens_per_s"],
)
