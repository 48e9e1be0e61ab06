"""The answer in words, from the values of `answer.json` alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankbench.results.advice.choice import EQUAL, FEW, MOST_LAUNCHES
from rankbench.results.advice.facts import Facts, from_json
from rankbench.results.elements.text import Note, figures, show_estimate
from rankbench.results.numbers.statistics import Estimate

# If more rows are as good, only the first ones are named.
_MOST_NAMED = 4

_QUESTIONS = {
    "fastest": "which is the fastest",
    "cheapest": "which is the cheapest",
    "scaling": "how far it scales",
}

_PARTS = {
    "computation": "computation",
    "waiting": "waiting for slower ranks",
    "transfer": "transfer of bytes",
    "input": "waiting for data",
    "host": "an idle GPU",
    "unexplained": "communication that the measured bandwidth does not explain",
}


def in_sentences(answer: Facts) -> list[Note]:
    """The answer for all workloads.

    Args:
        answer: from `find_answer`, or read from `answer.json`.
    """
    workloads = answer["workloads"]
    notes = []
    for facts in workloads:
        if len(workloads) > 1:
            notes.append(Note("workload", f"{facts['workload']}."))
        notes += _of_workload(facts, answer)
    return notes


def _of_workload(facts: Facts, answer: Facts) -> Iterator[Note]:
    if "fastest" not in facts:
        count = "only one row says" if facts["rows"] else "no row says"
        yield Note(
            "no answer",
            f"{count} how fast a strategy is, so there is nothing to choose from: "
            "measure another strategy, backend or topology.",
        )
        return
    margin = answer["margin"]
    yield Note("fastest", _fastest(facts["fastest"], margin))
    yield Note("cheapest", _cheapest(facts["cheapest"], margin))
    if facts["scaling"]:
        yield Note(
            "how far it scales", _scaling(facts["scaling"], answer["efficiency"])
        )
    if facts["lost"]:
        yield Note("why not further", _lost(facts["lost"]))
    if facts["training"]:
        yield Note("what holds for training", _training(facts["training"]))
    if facts["trust"]:
        yield Note("trust", _trust(facts["trust"]))
    if facts["next"]:
        yield Note("next", _next(facts["next"]))


def _fastest(facts: Facts, margin: float) -> str:
    unit = facts.get("unit", "samples/s")
    parts = [f"{facts['cell']}: {_show(facts['throughput'])} {unit}."]
    parts += _rivals(facts, margin)
    if facts["less"]:
        others = "row is" if facts["less"] == 1 else "rows are"
        parts.append(f"{facts['less']} other {others} slower.")
    if facts["recommended"] != facts["cell"]:
        parts.append(
            f"Use {facts['recommended']}: it is as fast within {margin:.0%}, and needs "
            "fewer devices, processes or packages."
        )
    return " ".join(parts)


def _cheapest(facts: Facts, margin: float) -> str:
    hours = from_json(facts["device_hours_per_epoch"])
    samples = f"{facts['samples_per_epoch']:,} samples"
    epoch = "an epoch of " if facts.get("has_epochs", True) else ""
    text = f"{facts['cell']}: {show_device_time(hours)} for {epoch}{samples}"
    if "price_per_epoch" in facts:
        text += f", {_show(facts['price_per_epoch'])} {facts['currency']}"
    parts = [f"{text}."]
    parts += _rivals(facts, margin, of_cost=True)
    return " ".join(parts)


def show_device_time(hours: Estimate) -> str:
    """In the largest unit in which it is 1 or more."""
    factor, unit = _unit(hours.value)
    return f"{show_estimate(hours.scaled(factor))} {unit}"


def _about(hours: float) -> str:
    """As `show_device_time`, but a rough number."""
    factor, unit = _unit(hours)
    return f"{figures(float(f'{hours * factor:.2g}'))} {unit}"


def _unit(hours: float) -> tuple[int, str]:
    for factor, unit in ((1, "device-hours"), (60, "device-minutes")):
        if hours * factor >= 1:
            return factor, unit
    return 3600, "device-seconds"


def _rivals(facts: Facts, margin: float, *, of_cost: bool = False) -> Iterator[str]:
    """A sentence for each row that may be as good, up to a few."""
    rivals = facts["rivals"]
    for rival in rivals[:_MOST_NAMED]:
        ratio = from_json(rival["ratio"])
        if of_cost:
            ratio = _inverse(ratio)
            said = f"{rival['cell']} costs {show_estimate(ratio)} times as much: "
        else:
            said = f"{rival['cell']} has {show_estimate(ratio)} of that: "
        if rival["verdict"] == EQUAL:
            yield f"{said}equal within {margin:.0%}."
        elif rival["verdict"] == FEW:
            yield f"{said}too few launches to tell."
        else:
            more, less = ("dearer", "cheaper") if of_cost else ("faster", "slower")
            yield f"{said}{_either(ratio, more, less)}; {_settled_by(rival)}."
    others = len(rivals) - _MOST_NAMED
    if others > 0:
        yield f"{others} more rows cannot be told apart from it, either."


def _inverse(ratio: Estimate) -> Estimate:
    if ratio.low is None or ratio.high is None:
        return Estimate(1 / ratio.value)
    return Estimate(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)


def _either(ratio: Estimate, more: str, less: str) -> str:
    """How far the ratio may be from 1, upwards and downwards."""
    assert ratio.low is not None
    assert ratio.high is not None
    ways = []
    if ratio.high > 1:
        ways.append(f"{_percent(ratio.high - 1)} {more}")
    if ratio.low < 1:
        ways.append(f"{_percent(1 - ratio.low)} {less}")
    return f"it may be up to {' or '.join(ways)}" if ways else "it may be equal"


def _settled_by(rival: Facts) -> str:
    if rival["launches"] is None:
        return f"not even {MOST_LAUNCHES} launches of both would settle it"
    return f"{rival['launches']} launches of both would settle it"


def _scaling(series: Sequence[Facts], wanted: float) -> str:
    return " ".join(_scale(one, wanted) for one in series)


def _scale(facts: Facts, wanted: float) -> str:
    largest, below, untold = facts["largest"], facts["first_below"], facts["untold"]
    said = []
    if largest:
        said.append(f"efficiency is above {wanted:g} up to {_topology(largest)}")
    if below:
        said.append(f"it is below from {_topology(below)} on")
    if untold:
        named = ", ".join(map(_topology, untold[:_MOST_NAMED]))
        said.append(f"it cannot be told at {named}")
    return f"{facts['series']}: {'; '.join(said)}."


def _topology(point: Facts) -> str:
    return f"{point['topology']} ({_show(point['efficiency'])})"


def _lost(facts: Facts) -> str:
    lost = from_json(facts["lost_ms"])
    text = (
        f"a step of {facts['cell']} takes {figures(facts['step_ms'])} ms, "
        f"{figures(facts['promised_ms'])} ms would be efficiency 1"
    )
    if lost.low is None or lost.low <= 0:
        return f"{text}. That it loses anything cannot be told."
    parts = sorted(facts["parts_ms"].items(), key=lambda one: -one[1]["value"])
    said = ", ".join(
        f"{_show(part)} ms of {_describe_part(name, facts)}"
        for name, part in parts
        if abs(part["value"]) >= 0.01 * lost.value
    )
    return f"{text}. It loses {show_estimate(lost)} ms: {said}."


def _describe_part(name: str, facts: Facts) -> str:
    if name == "computation" and not facts["is_separate"]:
        return "computation and communication, which its phases do not separate"
    if name == "waiting" and facts["late_rank"] is not None:
        rank, phase = facts["late_rank"], facts["late_phase"]
        return f"{_PARTS[name]}, most for rank {rank} in {phase}"
    return _PARTS[name]


def _training(facts: Facts) -> str:
    cells = facts["cells"]
    parts = []
    if any(one["accuracy"] for one in cells):
        parts.append(f"accuracy at the end: {_each(cells, 'accuracy')}.")
    parts += [
        f"Loss after {facts['samples']:,} samples: "
        f"{_each(cells, 'loss_at_equal_samples')}.",
        f"Loss after {figures(facts['seconds'])} s: "
        f"{_each(cells, 'loss_at_equal_time')}.",
    ]
    batches = {one["global_batch"] for one in cells}
    if len(batches) > 1:
        named = ", ".join(f"{one['cell']} {one['global_batch']}" for one in cells)
        parts.append(
            f"Samples in a step: {named}. Under weak scaling more devices train with "
            "a larger global batch, which may need another learning rate."
        )
    text = " ".join(parts)
    return text[0].lower() + text[1:]


def _each(cells: Sequence[Facts], name: str) -> str:
    return ", ".join(
        f"{one['cell']} {_show(one[name]) if one[name] else 'unknown'}" for one in cells
    )


def _trust(weak: Sequence[Facts]) -> str:
    """Rows with the same doubts are named together."""
    alike: dict[str, list[str]] = {}
    for one in weak:
        alike.setdefault("; ".join(one["doubts"]), []).append(one["cell"])
    return " ".join(f"{', '.join(names)}: {said}." for said, names in alike.items())


def _next(planned: Sequence[Facts]) -> str:
    said = [
        f"to tell {_QUESTIONS[one['settles']]}, launch {_launch(one['cells'])}: about "
        f"{_about(one['device_hours'])}, by "
        f"rankbench run --next {one['settles']}."
        for one in planned
    ]
    return " ".join([said[0], *(f"T{one[1:]}" for one in said[1:])])


def _launch(cells: Sequence[Facts]) -> str:
    """Rows that get equally many launches are named together."""
    alike: dict[tuple[int, int], list[str]] = {}
    for one in cells:
        alike.setdefault((one["more"], one["launches"]), []).append(one["cell"])
    said = []
    for (more, launches), names in alike.items():
        named = ", ".join(names[:_MOST_NAMED])
        rest = len(names) - _MOST_NAMED
        named += f" and {rest} more rows" if rest > 0 else ""
        times = "once more" if more == 1 else f"{more} more times"
        each = " each" if len(names) > 1 else ""
        said.append(f"{named} {times}{each} (to {launches})")
    return "; ".join(said)


def _show(facts: Facts) -> str:
    """Value and interval; an interval without width says nothing."""
    if facts["low"] == facts["high"]:
        return figures(facts["value"])
    return str(show_estimate(from_json(facts)))


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
