"""How training went: time of epochs and steps, loss, accuracy by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from rankbench.results.elements.content import Section
from rankbench.results.elements.text import Grid, Text, round_figures, show_estimate
from rankbench.results.numbers.measures import Measures
from rankbench.results.numbers.statistics import Estimate, median
from rankbench.results.numbers.summary import Summary

COLUMNS = ("cell", "what", "number", "value", "value_lo", "value_hi")

TITLE = "Training"

ABOUT = (
    "Medians over launches; brackets: their 95 % interval. An epoch lasts as long as "
    "its slowest rank; later epochs: the median of all whole epochs but the first. "
    "Batch: a step of the slowest rank, the median of the steps; p95: what 95 % of "
    "them stay below. Loss: of the first and the last timed step. Classes are numbered "
    "as in the data."
)

# Of more classes the page would show numbers that nobody reads: epochs.csv has them.
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


def make_frame(summaries: Sequence[Summary]) -> pd.DataFrame:
    """The columns of epochs.csv; a row for each number of each cell that is ok.

    `what` is epoch_s, batch_ms, batch_p95_ms, loss_first, loss_last, accuracy or
    class_accuracy; `number` counts epochs from 1 and classes from 0.
    """
    rows = [
        {
            "cell": summary.row.id,
            "what": what,
            "number": number,
            "value": round_figures(found.value),
            "value_lo": None if found.low is None else round_figures(found.low),
            "value_hi": None if found.high is None else round_figures(found.high),
        }
        for summary in _measured(summaries)
        for what, number, found in _estimate(summary.measures)
    ]
    values = dict.fromkeys(("value", "value_lo", "value_hi"), "float64")
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(
        {"number": "Int64"} | values
    )


def show(summaries: Sequence[Summary]) -> Section | None:
    """Nothing where no cell is ok."""
    measured = _measured(summaries)
    if not measured:
        return None
    fields = [_overview(summary) for summary in measured]
    # A column that no row can fill says nothing.
    shown = [h for h in _HEADINGS.values() if any(h in field for field in fields)]
    overview = Grid(
        "Epochs and batches",
        {"cell": False} | dict.fromkeys(shown, True),
        [
            [Text(summary.row.id), *(field.get(name, Text("")) for name in shown)]
            for summary, field in zip(measured, fields, strict=True)
        ],
    )
    return Section(
        title=TITLE,
        about=ABOUT,
        files=("epochs.csv",),
        grids=[overview, *_show_classes(measured)],
    )


def _measured(summaries: Sequence[Summary]) -> list[Summary]:
    return [summary for summary in summaries if summary.measures]


def _estimate(
    launches: Sequence[Measures],
) -> Iterator[tuple[str, int | None, Estimate]]:
    """What, its number, and its estimate; what a launch does not know is left out."""
    for epoch in range(min(len(one.epochs_s) for one in launches)):
        yield "epoch_s", epoch + 1, median([one.epochs_s[epoch] for one in launches])
    for what, values in _totals(launches).items():
        if None not in values:
            yield what, None, median([v for v in values if v is not None])
    for number in range(min(len(one.class_accuracy) for one in launches)):
        of_class = [one.class_accuracy[number] for one in launches]
        known = [share for share in of_class if share is not None]
        if len(known) == len(of_class):
            yield "class_accuracy", number, median(known)


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
    launches = summary.measures
    found = {what: e for what, number, e in _estimate(launches) if number is None}
    epochs = min(len(one.epochs_s) for one in launches)
    if epochs:
        found["first_epoch_s"] = median([one.epochs_s[0] for one in launches])
    if epochs > 1:
        later = [median(one.epochs_s[1:]).value for one in launches]
        found["later_epochs_s"] = median(later)
    fields = {_HEADINGS[what]: show_estimate(e) for what, e in found.items()}
    return fields | ({"epochs": Text(str(epochs))} if epochs else {})


def _show_classes(measured: Sequence[Summary]) -> list[Grid]:
    """Accuracy by class, a table for each number of classes that is not too many."""
    tables: dict[int, list[list[Text]]] = {}
    for summary in measured:
        classes = min(len(one.class_accuracy) for one in summary.measures)
        found = {
            number: show_estimate(estimate)
            for what, number, estimate in _estimate(summary.measures)
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
