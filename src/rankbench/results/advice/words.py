"""The answer in words, from the values of `answer.json` alone.

`in_brief` is what people read first; `in_sentences` says all of it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rankbench.cell import REFERENCE
from rankbench.results.advice.choice import APART, EQUAL, FEW, Facts
from rankbench.results.elements.text import Note, figures, show_estimate
from rankbench.results.numbers.fit import MOST_LAUNCHES
from rankbench.results.numbers.statistics import Estimate

LINES, COLUMNS = 15, 100

# Columns of the terms, and of what follows them.
TERM = 8
_WIDTH = COLUMNS - TERM

# If more rows are as good, only the first ones are named.
_MOST_NAMED = 4

_QUESTIONS = {
    "fastest": "which is the fastest",
    "cheapest": "which is the cheapest",
    "scaling": "how far it scales",
}

# Of more reasons why rows have no numbers, the first ones are said.
_MOST_REASONS = 6

# Statuses of rows that have not failed.
_NOT_TRIED = {"unsupported", "not-run"}

# Parts of a loss, in few words and in more.
_PARTS = {
    "computation": "computation",
    "waiting": "waiting for slower ranks",
    "transfer": "transfer of bytes",
    "input": "waiting for data",
    "host": "idle GPU",
    "unexplained": "other communication",
}
_PARTS_IN_FULL = _PARTS | {
    "host": "an idle GPU",
    "unexplained": "communication that the measured bandwidth does not explain",
}


def in_brief(answer: Facts) -> list[Note]:
    """The answer for all workloads, in at most fifteen lines of a terminal.

    If there are several workloads, only the first ones fit, and only what to use.

    Args:
        answer: from `find_answer`, or read from `answer.json`.
    """
    workloads, margin = answer["workloads"], answer["margin"]
    reasons = answer.get("without_numbers", [])
    if not workloads:
        return [
            _note("USE", f"no answer: no row has numbers ({_count_rows(reasons)})"),
            _note("WHY", *map(_why, reasons[:_MOST_REASONS]), lines=2),
            _note("NEXT", _remedy(reasons), lines=2),
        ]
    if len(workloads) == 1:
        (facts,) = workloads
        before = [_open(facts), _use(facts, margin)]
        if "fastest" not in facts:
            return before
        after = list(_follow(facts, reasons))
        room = LINES - _count_lines([*before, *after])
        return [*before, *_scales(facts, answer["efficiency"], room), *after]
    notes: list[Note] = []
    for facts in workloads:
        more = [_open(facts), _use(facts, margin)]
        if _count_lines([*notes, *more]) >= LINES:
            break
        notes += more
    return [*notes, Note("MORE", "all workloads: rankbench answer --details")]


def to_lines(notes: Sequence[Note]) -> list[str]:
    """Notes as lines of a terminal: the term, and beside it what is said."""
    found = []
    for note in notes:
        first, *others = note.text.split("\n")
        found += [f"{note.term:<{TERM}}{first}", *(" " * TERM + m for m in others)]
    return found


def _follow(facts: Facts, reasons: Sequence[Facts]) -> Iterator[Note]:
    """What comes after how it scales.

    Args:
        reasons: why rows have no numbers.
    """
    names = facts["names"]
    if facts["lost"]:
        yield _note("LIMIT", _limit(facts, facts["lost"]), lines=2)
    yield _note("COST", _cost(facts, facts["cheapest"]), lines=2)
    if facts["training"]:
        yield _note("LEARNS", _learns(names, facts["training"]), lines=2)
    failed = [reason for reason in reasons if reason["status"] not in _NOT_TRIED]
    yield _note("TRUST", _weigh(facts), *map(_why, failed[:1]), lines=2)
    if facts["next"]:
        planned = facts["next"][0]
        named = [names[row["cell"]] for row in planned["cells"]]
        others = max(0, len(named) - 2)
        more = max(row["more"] for row in planned["cells"])
        rest = {0: "", 1: " and 1 more row"}.get(others, f" and {others} more rows")
        command = f"rankbench run --next {planned['settles']}"
        said = f"{command}: {more} more launches of {' and '.join(named[:2])}{rest}"
        yield _note("NEXT", said, lines=2)


def _count_lines(notes: Sequence[Note]) -> int:
    return sum(1 + note.text.count("\n") for note in notes)


def _note(term: str, *texts: str, lines: int = 1) -> Note:
    """Texts of so many lines each; what does not fit ends with dots."""
    return Note(
        term,
        "\n".join(
            line
            for text in texts
            for line in textwrap.wrap(text, _WIDTH, max_lines=lines, placeholder=" ...")
        ),
    )


def _open(facts: Facts) -> Note:
    """What was measured, where and when."""
    measured = facts["measured"]
    parts = [textwrap.shorten(facts["workload"], _WIDTH // 2, placeholder=" ...")]
    if measured["total"]:
        counts = [measured["launches"][0], measured["launches"][-1]]
        each = " to ".join(map(str, dict.fromkeys(counts)))
        hosts = "" if measured["hosts"] == 1 else f"{measured['hosts']} hosts, "
        launches = "launch" if each == "1" else "launches"
        parts.append(", ".join([f"{each} {launches}", *measured["days"][-1:]]))
        # Last, because the name of a processor may be too long for the line.
        parts.append(hosts + "; ".join(measured["machines"]))
    return _note("WHAT", " | ".join(parts))


def _count_rows(reasons: Sequence[Facts]) -> str:
    """How many rows have which status."""
    counts: dict[str, int] = {}
    for reason in reasons:
        status = reason["status"]
        counts[status] = counts.get(status, 0) + len(reason["cells"])
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _why(reason: Facts) -> str:
    """Why rows have no numbers."""
    others = len(reason["cells"]) - 1
    more = f" and {others} more" if others else ""
    return f"{reason['status']}: {reason['first']}{more}: {reason['reason']}"


def _remedy(reasons: Sequence[Facts]) -> str:
    statuses = {reason["status"] for reason in reasons}
    if failed := statuses - _NOT_TRIED:
        which = "--stale" if failed == {"stale"} else "--failed"
        return (
            "rankbench show CELL says more, and where its logs are; without the cause, "
            f"rankbench rerun {which}"
        )
    if "not-run" in statuses:
        return "rankbench run"
    return "another machine, or other cells: rankbench cells lists what can run here"


def _refuse(facts: Facts) -> str:
    """Why there is no answer, and what to do."""
    names = list(facts["names"].values())
    one = f"only {names[0] if len(names) == 1 else 'one row'}"
    return (
        f"{one if facts['rows'] else 'no row'} says how fast a strategy is, so there "
        "is nothing to choose from: measure another strategy, backend or topology."
    )


def _use(facts: Facts, margin: float) -> Note:
    if "fastest" not in facts:
        return _note("USE", _refuse(facts), lines=2)
    names, fastest = facts["names"], facts["fastest"]
    throughput = Estimate.from_json(fastest["throughput"])
    chosen = names[fastest["recommended"]]
    if not fastest.get("is_compared", True):
        why = "no two rows were launched in the same rounds: launch them together"
        return _note("USE", f"nothing is compared: {why}", lines=2)
    if fastest.get("too_noisy"):
        disturbed = facts["measured"]["disturbed"]
        cause = (
            f"{disturbed} launches were disturbed" if disturbed else "launches scatter"
        )
        remedy = "launch more, on a quiet machine"
        return _note(
            "USE", f"{chosen}: too noisy to answer ({cause}): {remedy}", lines=2
        )
    if fastest["recommended"] != fastest["cell"]:
        chosen += f", as fast as {names[fastest['cell']]}"
    unit = fastest.get("unit", "samples/s")
    said = []
    rivals = [row for row in fastest["rivals"] if row["cell"] != fastest["recommended"]]
    equal = [names[row["cell"]] for row in rivals if row["verdict"] == EQUAL]
    if equal:
        more = f" and {len(equal) - 2} more" if len(equal) > 2 else ""
        said.append(f"As fast within {margin:.0%}: {', '.join(equal[:2])}{more}.")
    if apart := [names[row["cell"]] for row in rivals if row["verdict"] == APART]:
        more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
        said.append(f"Not compared, of other rounds: {apart[0]}{more}.")
    untold = [row for row in rivals if row["verdict"] not in (EQUAL, APART)]
    if untold:
        few = " (too few launches)" if untold[0]["verdict"] == FEW else ""
        ratio = show_estimate(Estimate.from_json(untold[0]["ratio"]))
        more = f", and {len(untold) - 1} more" if len(untold) > 1 else ""
        said.append(f"Or {names[untold[0]['cell']]}: {ratio} of that{few}{more}.")
    if fastest["less"]:
        others = "1 other row" if fastest["less"] == 1 else f"{fastest['less']} others"
        said.append(f"Slower: {others}.")
    best = f"{chosen}: {show_estimate(throughput)} {unit}."
    return _note("USE", best, " ".join(said), lines=2)


def _scales(facts: Facts, wanted: float, room: int) -> Iterator[Note]:
    """The series of the row to use, by topology; else the one that goes farthest.

    Args:
        room: lines that there are.
    """
    chosen = facts["fastest"]["recommended"]
    series = max(
        facts["scaling"],
        key=lambda own: (
            chosen in [point["cell"] for point in own["points"]],
            len(own["points"]),
        ),
        default=None,
    )
    if series is None or room < 1:
        return
    largest, below = series["largest"], series["first_below"]
    if largest:
        end = "" if below else " at least"
        said = f"efficiency above {wanted:g} up to {largest['topology']}{end}"
    elif below:
        said = f"efficiency below {wanted:g} from {below['topology']} on"
    else:
        said = (
            f"whether efficiency is above {wanted:g}: too noisy to answer, launch more"
        )
    points = series["points"]
    if len(points) > room - 1:
        points = [points[0], *points[len(points) - room + 2 :]][: max(0, room - 1)]
    unit = facts["fastest"].get("unit", "samples/s")
    lines = [f"{said};" if points else said]
    for point in points:
        count = "1 device" if point["devices"] == 1 else f"{point['devices']} devices"
        name = facts["names"][point["cell"]]
        if point["cell"] == facts["base"] and name.startswith(REFERENCE):
            count = name
        rate = show_estimate(Estimate.from_json(point["per_device"]))
        efficiency = show_estimate(Estimate.from_json(point["efficiency"]))
        end = "." if point is points[-1] else ";"
        lines.append(f"{count}: {rate} {unit} of each, efficiency {efficiency}{end}")
    yield _note("SCALES", *lines)


def _limit(facts: Facts, lost: Facts) -> str:
    whole = Estimate.from_json(lost["lost_ms"])
    step = f"{show_estimate(whole)} of {figures(lost['step_ms'], 3)} ms"
    where = facts["names"][lost["cell"]]
    if whole.low is None or whole.low <= 0:
        return f"{step} lost by {where}: too noisy to tell"
    parts = sorted(lost["parts_ms"].items(), key=lambda part: -part[1]["value"])
    said = [
        f"{figures(part['value'], 2)} {_PARTS[name]}"
        for name, part in parts
        if abs(part["value"]) >= 0.05 * whole.value
    ]
    return f"{step} lost by {where}: {', '.join(said)}"


def _cost(facts: Facts, cheapest: Facts) -> str:
    names, use = facts["names"], facts.get("cost_of_use")
    epoch = "an epoch of " if cheapest.get("has_epochs", True) else ""
    samples = f"{epoch}{cheapest['samples_per_epoch']:,} samples"
    said = f"cheapest: {names[cheapest['cell']]}, {_price(cheapest)} for {samples}"
    chosen = facts["fastest"]["recommended"]
    if use is None or chosen == cheapest["cell"]:
        return said
    return f"{said}; {names[chosen]}: {_price(use)}"


def _price(facts: Facts) -> str:
    """Device time of an epoch, and what that costs."""
    time = show_device_time(Estimate.from_json(facts["device_hours_per_epoch"]))
    price = facts.get("price_per_epoch")
    return f"{time}, {figures(price['value'])} {facts['currency']}" if price else time


def _learns(names: Facts, training: Facts) -> str:
    cells = training["cells"]
    losses = [
        f"{figures(row['loss_at_equal_time']['value'], 3)} {names[row['cell']]}"
        for row in cells
        if row["loss_at_equal_time"]
    ]
    if not losses:
        return "no loss was recorded"
    said = f"loss after {figures(training['seconds'], 2)} s: {', '.join(losses)}"
    batches = dict.fromkeys(row["global_batch"] for row in cells)
    if len(batches) > 1:
        said += f"; global batches {', '.join(map(str, batches))}: tune the rate"
    return said


def _weigh(facts: Facts) -> str:
    measured, names = facts["measured"], facts["names"]
    said = []
    if measured["disturbed"]:
        said.append(
            f"{measured['disturbed']} of {measured['total']} launches disturbed, and "
            "left out"
        )
    if again := measured.get("repeated"):
        launches = "launch was" if again == 1 else "launches were"
        said.append(f"{again} disturbed {launches} repeated")
    doubts = [(doubt, row) for row in facts["trust"] for doubt in row["doubts"]]
    alike = _group(doubts, lambda pair: pair[0])
    said += [
        f"{doubt}: {', '.join(names[row['cell']] for _, row in rows[:2])}"
        for doubt, rows in alike.items()
    ]
    return "; ".join(said) or "good: nothing weakens the rows that this rests on"


def _group(values: Sequence[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Values of equal key, each in order of appearance."""
    found: dict[Any, list[Any]] = {}
    for value in values:
        found.setdefault(key(value), []).append(value)
    return found


# --- in full --------------------------------------------------------------------------


def in_sentences(answer: Facts) -> list[Note]:
    """The answer for all workloads.

    Args:
        answer: from `find_answer`, or read from `answer.json`.
    """
    workloads = answer["workloads"]
    notes = [
        Note(row["status"], f"{', '.join(row['cells'])}: {row['reason']}.")
        for row in (() if workloads else answer["without_numbers"])
    ]
    for facts in workloads:
        if len(workloads) > 1:
            notes.append(Note("workload", f"{facts['workload']}."))
        notes += _explain(facts, answer)
    return notes


def _explain(facts: Facts, answer: Facts) -> Iterator[Note]:
    if "fastest" not in facts:
        yield Note("no answer", _refuse(facts))
        return
    margin = answer["margin"]
    yield Note("fastest", _fastest(facts["fastest"], margin))
    yield Note("cheapest", _cheapest(facts["cheapest"], margin))
    if facts["scaling"]:
        series = (_scale(own, answer["efficiency"]) for own in facts["scaling"])
        yield Note("how far it scales", " ".join(series))
    if facts["lost"]:
        yield Note("why not further", _lost(facts["lost"]))
    if facts["training"]:
        yield Note("what holds for training", _training(facts["training"]))
    if facts["trust"]:
        # Rows with the same doubts are named together.
        alike = _group(facts["trust"], lambda row: "; ".join(row["doubts"]))
        named = (
            f"{', '.join(row['cell'] for row in rows)}: {said}."
            for said, rows in alike.items()
        )
        yield Note("trust", " ".join(named))
    if facts["next"]:
        said = [
            f"to tell {_QUESTIONS[plan['settles']]}, launch {_launch(plan['cells'])}: "
            f"about {show_device_time(Estimate(plan['device_hours']), rough=True)}, by "
            f"rankbench run --next {plan['settles']}."
            for plan in facts["next"]
        ]
        yield Note("next", " ".join([said[0], *(f"T{more[1:]}" for more in said[1:])]))


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
    hours = Estimate.from_json(facts["device_hours_per_epoch"])
    samples = f"{facts['samples_per_epoch']:,} samples"
    epoch = "an epoch of " if facts.get("has_epochs", True) else ""
    text = f"{facts['cell']}: {show_device_time(hours)} for {epoch}{samples}"
    if "price_per_epoch" in facts:
        text += f", {_show(facts['price_per_epoch'])} {facts['currency']}"
    return " ".join([f"{text}.", *_rivals(facts, margin, of_cost=True)])


def show_device_time(hours: Estimate, *, rough: bool = False) -> str:
    """In the largest unit in which it is 1 or more; with two digits if it is rough."""
    units = {1: "hours", 60: "minutes"}
    factor = next((n for n in units if hours.value * n >= 1), 3600)
    shown = hours.scaled(factor)
    digits = figures(shown.value, 2) if rough else show_estimate(shown)
    return f"{digits} device-{units.get(factor, 'seconds')}"


def _rivals(facts: Facts, margin: float, *, of_cost: bool = False) -> Iterator[str]:
    """A sentence for each row that may be as good, up to a few."""
    rivals = facts["rivals"]
    for rival in rivals[:_MOST_NAMED]:
        if rival["verdict"] == APART:
            yield f"{rival['cell']} was launched in other rounds: nobody compares them."
            continue
        ratio = Estimate.from_json(rival["ratio"])
        more, less = "faster", "slower"
        said = f"{rival['cell']} has {show_estimate(ratio)} of that: "
        if of_cost:
            ratio, more, less = ratio.inverse(), "dearer", "cheaper"
            said = f"{rival['cell']} costs {show_estimate(ratio)} times as much: "
        if rival["verdict"] == EQUAL:
            yield f"{said}equal within {margin:.0%}."
        elif rival["verdict"] == FEW:
            yield f"{said}too few launches to tell."
        else:
            count = rival["launches"] or f"not even {MOST_LAUNCHES}"
            settled = f"{count} launches of both would settle it"
            yield f"{said}{_either(ratio, more, less)}; {settled}."
    others = len(rivals) - _MOST_NAMED
    if others > 0:
        yield f"{others} more rows cannot be told apart from it, either."


def _either(ratio: Estimate, more: str, less: str) -> str:
    """How far the ratio may be from 1, upwards and downwards."""
    assert ratio.low is not None
    assert ratio.high is not None
    ways = []
    if ratio.high > 1:
        ways.append(f"{figures(100 * (ratio.high - 1), 2)} % {more}")
    if ratio.low < 1:
        ways.append(f"{figures(100 * (1 - ratio.low), 2)} % {less}")
    return f"it may be up to {' or '.join(ways)}" if ways else "it may be equal"


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
    lost = Estimate.from_json(facts["lost_ms"])
    text = (
        f"a step of {facts['cell']} takes {figures(facts['step_ms'])} ms, "
        f"{figures(facts['promised_ms'])} ms would be efficiency 1"
    )
    if lost.low is None or lost.low <= 0:
        return f"{text}. That it loses anything cannot be told."
    words = dict(_PARTS_IN_FULL)
    if not facts["is_separate"]:
        words["computation"] += " and communication, which its phases do not separate"
    if facts["late_rank"] is not None:
        rank, phase = facts["late_rank"], facts["late_phase"]
        words["waiting"] += f", most for rank {rank} in {phase}"
    parts = sorted(facts["parts_ms"].items(), key=lambda part: -part[1]["value"])
    said = ", ".join(
        f"{_show(part)} ms of {words[name]}"
        for name, part in parts
        if abs(part["value"]) >= 0.01 * lost.value
    )
    return f"{text}. It loses {show_estimate(lost)} ms: {said}."


def _training(facts: Facts) -> str:
    cells = facts["cells"]

    def each(name: str) -> str:
        return ", ".join(
            f"{row['cell']} {_show(row[name]) if row[name] else 'unknown'}"
            for row in cells
        )

    parts = []
    if any(row["accuracy"] for row in cells):
        parts.append(f"accuracy at the end: {each('accuracy')}.")
    parts += [
        f"Loss after {facts['samples']:,} samples: {each('loss_at_equal_samples')}.",
        f"Loss after {figures(facts['seconds'])} s: {each('loss_at_equal_time')}.",
    ]
    if len({row["global_batch"] for row in cells}) > 1:
        named = ", ".join(f"{row['cell']} {row['global_batch']}" for row in cells)
        parts.append(
            f"Samples in a step: {named}. Under weak scaling more devices train with "
            "a larger global batch, which may need another learning rate."
        )
    text = " ".join(parts)
    return text[0].lower() + text[1:]


def _launch(cells: Sequence[Facts]) -> str:
    """Rows that get equally many launches are named together."""
    said = []
    alike = _group(cells, lambda row: (row["more"], row["launches"]))
    for (more, launches), rows in alike.items():
        named = ", ".join(row["cell"] for row in rows[:_MOST_NAMED])
        rest = len(rows) - _MOST_NAMED
        named += f" and {rest} more rows" if rest > 0 else ""
        times = "once more" if more == 1 else f"{more} more times"
        each = " each" if len(rows) > 1 else ""
        said.append(f"{named} {times}{each} (to {launches})")
    return "; ".join(said)


def _show(facts: Facts) -> str:
    """Value and interval; an interval without width says nothing."""
    if facts["low"] == facts["high"]:
        return figures(facts["value"])
    return str(show_estimate(Estimate.from_json(facts)))
