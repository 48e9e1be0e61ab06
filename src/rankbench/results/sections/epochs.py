"""How training went: time of epochs and steps, loss, accuracy by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import Grid, Text, show_estimate
from rankbench.results.numbers.measures import Measures
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate, mean
from rankbench.results.numbers.summary import Summary

# With more classes than this, only the CSV lists them.
_MOST_CLASSES = 20

_HEADINGS = {
    "epochs": "epochs",
    "first_epoch_s": "first epoch (s)",
    "later_epochs_s": "later epochs (s)",
    "batch_ms": "batch (ms)",
    "batch_p95_ms": "batch p95 (ms)",
    "loss_first": "first loss",
    "loss_last": "last loss",
    "accuracy": "accuracy",
}


def make(found: ResultSet) -> Content | None:
    """A row for each number of each cell that is ok.

    `what` is epoch_s, batch_ms, batch_p95_ms, loss_first, loss_last, accuracy or
    class_accuracy; `number` counts epochs from 1 and classes from 0.
    """
    # Nobody knows the epochs of a script.
    measured = [one for one in found.measured if one.row.cell.script is None]
    if not measured:
        return None
    rows = [
        {"cell": summary.row.id, "what": what, "number": number, "value": estimate}
        for summary in measured
        for what, number, estimate in _estimate(summary.counted)
    ]
    fields = [_overview(summary) for summary in measured]
    # Columns without any value are left out.
    shown = [h for h in _HEADINGS.values() if any(h in field for field in fields)]
    overview = Grid(
        "Epochs and batches",
        {"cell": False} | dict.fromkeys(shown, True),
        [
            [Text(summary.row.id), *(field.get(name, Text("")) for name in shown)]
            for summary, field in zip(measured, fields, strict=True)
        ],
    )
    return Content(rows=rows, grids=[overview, *_show_classes(measured)])


def _estimate(
    launches: Sequence[Measures],
) -> Iterator[tuple[str, int | None, Estimate]]:
    """Kind, number and estimate; a value that one of the launches lacks is left out."""
    for epoch in range(min(len(one.epochs_s) for one in launches)):
        yield "epoch_s", epoch + 1, mean([one.epochs_s[epoch] for one in launches])
    for what, values in _totals(launches).items():
        if None not in values:
            yield what, None, mean([v for v in values if v is not None])
    for number in range(min(len(one.class_accuracy) for one in launches)):
        of_class = [one.class_accuracy[number] for one in launches]
        known = [share for share in of_class if share is not None]
        if len(known) == len(of_class):
            yield "class_accuracy", number, mean(known)


def _totals(launches: Sequence[Measures]) -> dict[str, list[float | None]]:
    return {
        "batch_ms": [one.step_ms for one in launches],
        "batch_p95_ms": [one.step_p95_ms for one in launches],
        "loss_first": [one.loss[0] for one in launches],
        "loss_last": [one.loss[1] for one in launches],
        "accuracy": [one.accuracy for one in launches],
    }


def _overview(summary: Summary) -> dict[str, Text]:
    """Fields of a row by heading."""
    launches = summary.counted
    found = {what: e for what, number, e in _estimate(launches) if number is None}
    epochs = min(len(one.epochs_s) for one in launches)
    if epochs:
        found["first_epoch_s"] = mean([one.epochs_s[0] for one in launches])
    if epochs > 1:
        later = [mean(one.epochs_s[1:]).value for one in launches]
        found["later_epochs_s"] = mean(later)
    fields = {_HEADINGS[what]: show_estimate(e) for what, e in found.items()}
    return fields | ({"epochs": Text(str(epochs))} if epochs else {})


def _show_classes(measured: Sequence[Summary]) -> list[Grid]:
    """Accuracy by class, a table for each number of classes that is not too many."""
    tables: dict[int, list[list[Text]]] = {}
    for summary in measured:
        classes = min(len(one.class_accuracy) for one in summary.counted)
        found = {
            number: show_estimate(estimate)
            for what, number, estimate in _estimate(summary.counted)
            if what == "class_accuracy"
        }
        if found and classes <= _MOST_CLASSES:
            row = [found.get(number, Text("")) for number in range(classes)]
            tables.setdefault(classes, []).append([Text(summary.row.id), *row])
    return [
        Grid(
            "Accuracy by class" + (f" ({count} classes)" if len(tables) > 1 else ""),
            {"cell": False} | {str(number): True for number in range(count)},
            rows,
        )
        for count, rows in tables.items()
    ]


SECTION = Section(
    name="epochs",
    title="Training",
    reading=(
        "Means over launches, in brackets their 95 % interval. An epoch lasts as "
        "long as its slowest rank; later epochs: the mean of all whole epochs but "
        "the first. Batch: a step of the slowest rank, mean over the steps; p95: "
        "95 % of the steps are shorter. Loss: at the first and the last timed step. "
        "Classes have the numbers of the data set."
    ),
    order=50,
    make=make,
    columns={"cell": str, "what": str, "number": int, "value": Estimate},
)
