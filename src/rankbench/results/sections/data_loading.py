"""How much of a step waits for data, and what would help."""

from __future__ import annotations

from collections.abc import Iterator

from rankbench.record import Record
from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import Note
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate, mean
from rankbench.results.numbers.summary import Summary

# If loading takes more than this share of a step, it limits how fast a cell trains.
DOMINATES = 0.5

PARTS = ("load_ms", "transfer_ms", "compute_ms", "load_share")


def make(found: ResultSet) -> Content | None:
    """A row for each cell that is ok."""
    if not found.measured:
        return None
    rows = [
        {
            "cell": summary.row.id,
            "augment": summary.row.cell.augment,
            "num_workers": summary.row.cell.num_workers,
            **estimate_parts(summary),
        }
        for summary in found.measured
    ]
    return Content(rows=rows, notes=list(explain(found)))


def estimate_parts(summary: Summary) -> dict[str, Estimate]:
    """Milliseconds of a step by part, and the share of loading, over the launches."""
    return {
        name: mean([getattr(launch, name) for launch in summary.counted])
        for name in PARTS
    }


def explain(found: ResultSet) -> Iterator[Note]:
    """A note for each row that spends most of its time on loading."""
    for summary in found.measured:
        share = estimate_parts(summary)["load_share"].value
        if share >= DOMINATES:
            workers = summary.row.cell.num_workers
            said = f"loading takes {share:.0%} of the step with num_workers {workers}"
            remedy = _remedy(summary.row.launches[0].record, workers)
            yield Note(summary.row.id, f"{said}: {remedy}")


def _remedy(record: Record, workers: int) -> str:
    host = record["hosts"][0]
    ranks = sum(rank["host"] == host["host"] for rank in record["ranks"])
    if ranks * (1 + workers) < host["cores"]:
        return "more workers would help, more devices would not."
    return (
        f"ranks and workers have all {host['cores']} cores already; cheaper loading "
        "would help, more devices would not."
    )


SECTION = Section(
    name="loading",
    title="Loading",
    reading=(
        "Milliseconds of a step, mean over ranks, steps and launches: "
        "waiting for data, copying it to the device, and computing. Communication "
        "counts as computing."
    ),
    order=60,
    make=make,
    columns={
        "cell": (str, "cell"),
        "num_workers": (int, "num_workers"),
        "augment": (str, "augment"),
        "load_ms": (Estimate, "load (ms)"),
        "transfer_ms": (Estimate, "transfer (ms)"),
        "compute_ms": (Estimate, "compute (ms)"),
        "load_share": (Estimate, "load / step"),
    },
)
