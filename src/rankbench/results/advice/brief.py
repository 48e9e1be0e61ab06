"""The answer in at most fifteen lines, from the values of `answer.json` alone.

`sentences.py` says all of them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rankbench.results.advice.choice import EQUAL, FEW
from rankbench.results.advice.facts import Facts, from_json
from rankbench.results.advice.sentences import show_device_time
from rankbench.results.elements.text import Note, figures, show_estimate
from rankbench.results.numbers.statistics import Estimate

LINES, COLUMNS = 15, 100

# Columns of the terms, and of what follows them.
TERM = 8
_WIDTH = COLUMNS - TERM

# Of a value: an interval that is wider says nothing.
_TOO_NOISY = 0.5


def in_brief(answer: Facts) -> list[Note]:
    """The answer for all workloads, in lines of a terminal.

    If there are several workloads, only the first ones fit, and only what to use.

    Args:
        answer: from `find_answer`, or read from `answer.json`.
    """
    workloads, margin = answer["workloads"], answer["margin"]
    if len(workloads) == 1:
        (facts,) = workloads
        before = [_open(facts), _use(facts, margin)]
        if "fastest" not in facts:
            return before
        after = list(_of_workload(facts))
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
        found += [f"{note.term:<{TERM}}{first}", *(" " * TERM + one for one in others)]
    return found


def _of_workload(facts: Facts) -> Iterator[Note]:
    """What comes after how it scales."""
    if facts["lost"]:
        yield _note("LIMIT", _limit(facts, facts["lost"]), lines=2)
    yield _note("COST", _cost(facts, facts["cheapest"]))
    if facts["training"]:
        yield _note("LEARNS", _learns(facts, facts["training"]), lines=2)
    yield _note("TRUST", _trust(facts))
    if facts["next"]:
        yield _note("NEXT", _next(facts, facts["next"][0]), lines=2)


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
    parts = [facts["workload"]]
    if measured["total"]:
        counts = [measured["launches"][0], measured["launches"][-1]]
        each = " to ".join(map(str, dict.fromkeys(counts)))
        hosts = "" if measured["hosts"] == 1 else f"{measured['hosts']} hosts, "
        launches = "launch" if each == "1" else "launches"
        parts.append(", ".join([f"{each} {launches}", *measured["days"][-1:]]))
        # Last, because the name of a processor may be too long for the line.
        parts.append(hosts + "; ".join(measured["machines"]))
    return _note("WHAT", " | ".join(parts))


def _use(facts: Facts, margin: float) -> Note:
    if "fastest" not in facts:
        count = "only one row says" if facts["rows"] else "no row says"
        why = f"{count} how fast a strategy is, so there is nothing to choose from"
        remedy = "measure another strategy, backend or topology"
        return _note("USE", f"{why}: {remedy}.", lines=2)
    names, fastest = facts["names"], facts["fastest"]
    throughput = from_json(fastest["throughput"])
    chosen = names[fastest["recommended"]]
    if _is_noisy(throughput):
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
    rivals = [one for one in fastest["rivals"] if one["cell"] != fastest["recommended"]]
    equal = [names[one["cell"]] for one in rivals if one["verdict"] == EQUAL]
    if equal:
        more = f" and {len(equal) - 2} more" if len(equal) > 2 else ""
        said.append(f"As fast within {margin:.0%}: {', '.join(equal[:2])}{more}.")
    untold = [one for one in rivals if one["verdict"] != EQUAL]
    if untold:
        few = " (too few launches)" if untold[0]["verdict"] == FEW else ""
        ratio = show_estimate(from_json(untold[0]["ratio"]))
        more = f", and {len(untold) - 1} more" if len(untold) > 1 else ""
        said.append(f"Or {names[untold[0]['cell']]}: {ratio} of that{few}{more}.")
    if fastest["less"]:
        others = "1 other row" if fastest["less"] == 1 else f"{fastest['less']} others"
        said.append(f"Slower: {others}.")
    return _note(
        "USE", f"{chosen}: {show_estimate(throughput)} {unit}.", " ".join(said)
    )


def _is_noisy(number: Estimate) -> bool:
    if number.low is None or number.high is None:
        return False
    return number.high - number.low > _TOO_NOISY * number.value


def _scales(facts: Facts, wanted: float, room: int) -> Iterator[Note]:
    """The series of the row to use, by topology; else the one that goes farthest.

    Args:
        room: lines that there are.
    """
    chosen = facts["fastest"]["recommended"]
    series = max(
        facts["scaling"],
        key=lambda one: (
            chosen in [point["cell"] for point in one["points"]],
            len(one["points"]),
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
        rate = show_estimate(from_json(point["per_device"]))
        efficiency = show_estimate(from_json(point["efficiency"]))
        end = "." if point is points[-1] else ";"
        lines.append(f"{count}: {rate} {unit} of each, efficiency {efficiency}{end}")
    yield _note("SCALES", *lines)


# Parts of a loss in few words.
_PARTS = {
    "computation": "computation",
    "waiting": "waiting for slower ranks",
    "transfer": "transfer of bytes",
    "input": "waiting for data",
    "host": "idle GPU",
    "unexplained": "other communication",
}


def _limit(facts: Facts, lost: Facts) -> str:
    step = f"{show_estimate(from_json(lost['lost_ms']))} of {lost['step_ms']:.3g} ms"
    where = facts["names"][lost["cell"]]
    whole = from_json(lost["lost_ms"])
    if whole.low is None or whole.low <= 0:
        return f"{step} lost by {where}: too noisy to tell whether anything is"
    parts = sorted(lost["parts_ms"].items(), key=lambda part: -part[1]["value"])
    said = [
        f"{_short(part['value'])} {_PARTS[name]}"
        for name, part in parts
        if abs(part["value"]) >= 0.05 * whole.value
    ]
    return f"{step} lost by {where}: {', '.join(said)}"


def _short(value: float) -> str:
    return f"{value:.2g}"


def _cost(facts: Facts, cheapest: Facts) -> str:
    hours = from_json(cheapest["device_hours_per_epoch"])
    samples = f"{cheapest['samples_per_epoch']:,} samples"
    price = cheapest.get("price_per_epoch")
    money = f", {figures(price['value'])} {cheapest['currency']}" if price else ""
    name = facts["names"][cheapest["cell"]]
    return f"cheapest: {name}, {show_device_time(hours)} for {samples}{money}"


def _learns(facts: Facts, training: Facts) -> str:
    names, cells = facts["names"], training["cells"]
    losses = [
        f"{one['loss_at_equal_time']['value']:.3g} {names[one['cell']]}"
        for one in cells
        if one["loss_at_equal_time"]
    ]
    if not losses:
        return "no loss was recorded"
    said = f"loss after {_short(training['seconds'])} s: {', '.join(losses)}"
    batches = dict.fromkeys(one["global_batch"] for one in cells)
    if len(batches) > 1:
        said += f"; global batches {', '.join(map(str, batches))}: tune the rate"
    return said


def _trust(facts: Facts) -> str:
    measured, doubts = facts["measured"], facts["trust"]
    said = []
    if measured["disturbed"]:
        said.append(
            f"{measured['disturbed']} of {measured['total']} launches disturbed, and "
            "left out"
        )
    if again := measured.get("repeated"):
        said.append(f"{again} disturbed launches were repeated")
    alike: dict[str, list[str]] = {}
    for one in doubts:
        for doubt in one["doubts"]:
            alike.setdefault(doubt, []).append(facts["names"][one["cell"]])
    said += [f"{', '.join(names[:2])}: {doubt}" for doubt, names in alike.items()]
    return "; ".join(said) or "good: nothing weakens the rows that this rests on"


def _next(facts: Facts, planned: Facts) -> str:
    names = [facts["names"][one["cell"]] for one in planned["cells"]]
    more = max(one["more"] for one in planned["cells"])
    rest = f" and {len(names) - 2} more rows" if len(names) > 2 else ""
    command = f"rankbench run --next {planned['settles']}"
    return f"{command}: {more} more launches of {' and '.join(names[:2])}{rest}"
