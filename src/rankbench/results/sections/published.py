"""Published numbers beside measured ones, each against its own side's base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import Note, figures
from rankbench.results.numbers.hardware import find_rates
from rankbench.results.numbers.result_set import OF_LAUNCHES, ResultSet, Summary
from rankbench.results.numbers.statistics import CONFIDENCE, Estimate, Fit, mean

# Values that a source may have published, and whether the ratio to the base says more
# than the value itself.
QUANTITIES = {
    **dict.fromkeys(("throughput", "step_ms", "epoch_s", "total_s"), True),
    **dict.fromkeys(("load_ms", "update_ms", "memory_mib"), True),
    **dict.fromkeys(("mfu_pct", "accuracy"), False),
}

# A row of the study as the plan has it: label, cell, note, and published numbers.
Published = Mapping[str, Any]


def make(found: ResultSet) -> Content | None:
    """The published numbers are another machine's, and often another software's:
    compare no absolute value across the two sides. Compare the ratios: each side is
    divided by its own base, so that the machine cancels out as far as it can.
    """
    study, peaks = found.study, found.peaks
    if study is None:
        return None
    published, source = study["rows"], study["source"]
    cells = {summary.id: summary for summary in found.rows}
    base = next((row for row in published if row["label"] == source.get("base")), None)
    lines = [
        _compare(row, name, base, cells, peaks)
        for row in published
        for name in QUANTITIES
        if name in row
    ]
    about = [Note(key, text) for key, text in source.items() if key != "base"]
    if override := study["override"]:
        text = f"{override}: what was measured is smaller than what was published"
        about.append(Note("override", f"{text}; the cells say how."))
    if base:
        about.append(Note("base", f"{base['label']}: {base['cell']}"))
    without = [row for row in published if not QUANTITIES.keys() & row.keys()]
    return Content(
        rows=[*(_describe(row, cells[row["cell"]]) for row in without), *lines],
        before=about,
        notes=[Note(row["label"], row["note"]) for row in published if row.get("note")],
    )


def _compare(
    row: Published,
    name: str,
    base: Published | None,
    cells: Mapping[str, Summary],
    peaks: Mapping[str, float],
) -> dict[str, Any]:
    """A published number beside what was measured in its place.

    Each has its ratio to the base of the same side, if there is one.
    """
    line = _describe(row, cells[row["cell"]]) | {"quantity": name}
    each, summary = _list(row[name]), cells[row["cell"]]
    # The largest counts where there is one for each device.
    line["published"] = theirs = max(each)
    if len(each) > 1:
        line["published_each"] = " ".join(map(figures, each))
    if name == "mfu_pct":
        mfu = find_rates(summary, peaks).get(name)
        line["measured"] = mfu and Estimate(mfu)
    elif values := summary.counted[name].dropna().tolist():
        line["measured"] = OF_LAUNCHES.get(name, mean)(values)
    if base and QUANTITIES[name]:
        line["ratio"] = _ratio(cells[row["cell"]], cells[base["cell"]], name)
        if name in base:
            line["published_ratio"] = theirs / max(_list(base[name]))
            line["base"] = base["label"]
    return line


def _ratio(row: Summary, base: Summary, name: str) -> Estimate | None:
    """The ratio of two rows within rounds; None without enough common ones."""
    sides = {
        one.id: [*zip(one.counted["turn"], one.counted[name], strict=True)]
        for one in (row, base)
    }
    if not all(own and min(value for _, value in own) > 0 for own in sides.values()):
        return None
    if row is base:
        return Estimate(1.0)
    found = Fit(sides).ratio(row.id, base.id)
    return None if found is None else found.bracket(CONFIDENCE)


def _list(number: float | Sequence[float]) -> Sequence[float]:
    return [number] if isinstance(number, int | float) else number


def _describe(row: Published, summary: Summary) -> dict[str, Any]:
    return {
        "label": row["label"],
        "cell": row["cell"],
        "status": summary.status,
        "reason": summary.reason,
        "marks": " ".join(summary.marks) or None,
        "note": row.get("note") or None,
    }


SECTION = Section(
    title="Published numbers",
    order=10,
    make=make,
    columns={
        "label": (str, "published row"),
        **{name: (str, name) for name in ("cell", "status", "reason", "marks")},
        "quantity": (str, "quantity"),
        "measured": (Estimate, "measured"),
        "published": (float, "published"),
        "published_each": (str, "published, each"),
        "ratio": (Estimate, "measured / its base"),
        "published_ratio": (float, "published / its base"),
        "base": str,
        "note": str,
    },
)
