"""How much of a step waits for data, and what would help."""

from __future__ import annotations

from rankbench.record import Record
from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import Note
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate, mean

# If loading takes more than this share of a step, it limits how fast a cell trains.
DOMINATES = 0.5

PARTS = ("load_ms", "transfer_ms", "compute_ms", "load_share")


def make(found: ResultSet) -> Content | None:
    """A row for each cell that is ok; a note if most of its time goes into loading."""
    rows, notes = [], []
    for summary in found.measured:
        cell, counted = summary.cell, summary.counted
        parts = {name: mean(counted[name].to_numpy()) for name in PARTS}
        settings = {"augment": cell.augment, "num_workers": cell.num_workers}
        rows.append({"cell": summary.id, **settings, **parts})
        share = parts["load_share"].value
        if share >= DOMINATES:
            workers = cell.num_workers
            said = f"loading takes {share:.0%} of the step with num_workers {workers}"
            remedy = _remedy(summary.records[0], workers)
            notes.append(Note(summary.id, f"{said}: {remedy}"))
    return Content(rows=rows, notes=notes) if rows else None


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
