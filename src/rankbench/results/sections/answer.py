"""The answer in words: ten lines that people read first, and further findings."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rankbench.invocation import rankbench_command
from rankbench.record import minutes
from rankbench.results.advice.answer import find_answer
from rankbench.results.advice.findings import (
    APART,
    EQUAL,
    FEW,
    LESS,
    UNTOLD,
    Answer,
    Choice,
    NextLaunches,
    Scaling,
    Without,
    Workload,
    choose_unit,
    to_json,
)
from rankbench.results.elements.section import Content, Row, Section
from rankbench.results.elements.text import Note, figures, show_estimate
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate

LINES, COLUMNS = 10, 100

# Columns of the terms, and of what follows them.
TERM = 10
_WIDTH = COLUMNS - TERM

# Of more workloads, the ten lines have the first ones.
_MOST_WORKLOADS = 4

_QUESTIONS = {
    "fastest": "which is the fastest",
    "cheapest": "which is the cheapest",
    "scaling": "how far it scales",
}

# Statuses of rows that have not failed.
_NOT_TRIED = {"unsupported", "not-run", "cancelled"}

# Part of a loss -> what it is, and what may help.
_PARTS = {
    "computation": ("slower computation", "a larger batch_size"),
    "waiting": ("waiting for slower ranks", "devices that nothing else uses"),
    "transfer": ("moving bytes", "a larger batch_size: fewer bytes for a sample"),
    "input": ("waiting for data", "more num_workers"),
    "host": ("an idle GPU", "compile: true"),
    "unexplained": (
        "overhead of messages",
        "another backend, or a larger batch_size: fewer messages for a sample",
    ),
}


class _Said(NamedTuple):
    """What a term says.

    Attributes:
        text: always said.
        more: said if there are lines for it, each on a line of its own.
    """

    term: str
    text: str
    more: Sequence[str] = ()


def make(found: ResultSet) -> Content | None:
    """The sentences, and a row for each row that was compared."""
    if not found.rows:
        return None
    answer = find_answer(found)
    return Content(
        rows=list(_rows(answer)),
        grids=(),
        before=in_brief(answer),
        notes=in_detail(answer),
        facts=as_json(answer),
    )


def _rows(answer: Answer) -> Iterator[Row]:
    for facts in answer.workloads:
        choices = {"fastest": facts.fastest, "cheapest": facts.cheapest}
        for question, choice in choices.items():
            if choice is None:
                continue
            same = {"workload": facts.workload, "question": question}
            best = {"cell": choice.cell, "ratio": Estimate(1.0), "verdict": "best"}
            yield {**same, **best}
            for one in choice.rivals:
                yield {
                    **same,
                    "cell": one.cell,
                    "ratio": one.ratio,
                    "verdict": one.verdict,
                    "launches": one.launches,
                }


def as_json(answer: Answer) -> dict[str, Any]:
    """What `answer.json` holds: all findings, and the ten lines."""
    return {**to_json(answer), "lines": to_lines(in_brief(answer))}


def in_brief(answer: Answer) -> list[Note]:
    """The answer for all workloads, in at most ten lines of a terminal.

    Of several workloads the first ones are named, with what is best for them.
    """
    said = list(_say(answer))
    if len(answer.workloads) > 1:
        more = rankbench_command("answer", **answer.source, options=["--details"])
        said = [one._replace(more=()) for one in said if one.term in ("WHAT", "BEST")]
        said = [*said[: 2 * _MOST_WORKLOADS], _Said("MORE", more)]
    # Each paragraph, the more important ones first, as long as there are lines.
    parts = [(one.term, place) for one in said for place in range(1 + len(one.more))]
    order = sorted(range(len(parts)), key=lambda at: _rank(*parts[at]))
    texts = [text for one in said for text in _punctuate([one.text, *one.more])]
    left, taken = LINES, dict[int, list[str]]()
    for at in order:
        lines = _wrap(texts[at])
        if len(lines) <= left:
            left, taken[at] = left - len(lines), lines
    notes: list[Note] = []
    for at, (term, place) in enumerate(parts):
        if at in taken:
            text = "\n".join(taken[at])
            if place and notes and notes[-1].term == term:
                text = f"{notes.pop().text}\n{text}"
            notes.append(Note(term, text))
    return [Note(note.term, note.text.removesuffix(";")) for note in notes]


def _punctuate(paragraphs: Sequence[str]) -> list[str]:
    """Paragraphs that read well where pages join them to one."""
    *before, last = paragraphs
    return [*(text if text.endswith(":") else f"{text};" for text in before), last]


def _rank(term: str, place: int) -> int:
    """How soon a paragraph of a term is said: its first one before the others."""
    order = (
        *("WHAT0", "BEST0", "TRUST0", "WHY0", "MORE0", "BUT0", "NEXT0", "BEST1"),
        *("BUT1", "SCALES0", "UNTESTED0", "LOST0", "COST0", "BEST2", "LOST1"),
    )
    key = f"{term}{place}"
    return order.index(key) if key in order else len(order) + place


def in_detail(answer: Answer) -> list[Note]:
    """All that the answer says: the ten lines without a limit, and further findings."""
    notes = []
    for one in _say(answer):
        notes.append(Note(one.term, "; ".join([one.text, *one.more])))
    for facts in answer.workloads:
        notes += _add_details(facts, answer)
    return notes


def to_lines(notes: Sequence[Note]) -> list[str]:
    """Notes as lines of a terminal: the term, and beside it what is said."""
    found = []
    for note in notes:
        first, *others = note.text.split("\n")
        found += [f"{note.term:<{TERM}}{first}", *(" " * TERM + m for m in others)]
    return found


def _wrap(text: str) -> list[str]:
    """Lines of a text; a command that needs several is still one for a shell."""
    found = []
    for part in text.split("\n"):
        end = " \\" if part.startswith("rankbench ") else ""
        *lines, last = textwrap.wrap(
            part, _WIDTH - len(end), break_long_words=False, break_on_hyphens=False
        )
        found += [*(line + end for line in lines), last]
    return found


# --- the ten lines --------------------------------------------------------------------


def _say(answer: Answer) -> Iterator[_Said]:
    reasons = answer.without_numbers
    if not answer.workloads:
        yield _Said("WHAT", f"{answer.experiment}: no row has numbers")
        for one in reasons:
            yield _Said("WHY", _why(one))
        yield from _next(answer, None)
        return
    for facts in answer.workloads:
        yield _what(facts)
        yield _best(facts, answer.margin)
        if facts.fastest:
            yield from _but(facts)
            yield from _untested(facts)
            yield from _lost(facts)
            yield from _scales(facts, answer.efficiency)
            yield from _cost(facts, answer.price)
        yield from _trust(facts, reasons)
        yield from _next(answer, facts)


def _what(facts: Workload) -> _Said:
    """What was measured, where and when, as far as it fits into a line."""
    seen = facts.measured
    hosts = f"{seen.hosts} hosts, each " if seen.hosts > 1 else ""
    machine = hosts + " or ".join(map(_shorten_machine, seen.machines))
    counts = " to ".join(str(one) for one in dict.fromkeys(seen.launches))
    rows = "1 row" if facts.rows == 1 else f"{facts.rows} rows"
    launches = f"{rows} of {counts} launch{'es' * (counts != '1')}"
    parts = [facts.workload, machine, launches, *seen.days[-1:]]
    while len("; ".join(parts)) > _WIDTH and len(parts) > 2:
        parts.pop()
    return _Said("WHAT", "; ".join(part for part in parts if part))


def _shorten_machine(text: str) -> str:
    """Without what names of processors say for lawyers."""
    for word in ("(R)", "(TM)", " CPU", " Processor"):
        text = text.replace(word, "")
    return text.partition(" @ ")[0].strip()


def _best(facts: Workload, margin: float) -> _Said:
    names, rates, fastest = facts.names, facts.rates, facts.fastest
    if facts.undecided or fastest is None:
        # What all rows are is said once.
        begins = {names[cell].partition(" (")[0] for cell in rates}
        shared = begins.pop() if len(begins) == 1 < len(rates) else ""
        of = f" of {shared}" if shared else ""
        shown = [
            f"{names[cell].removeprefix(shared).lstrip()} {_plain(rate)}"
            + " (old)" * (cell in facts.measured.old)
            for cell, rate in rates.items()
        ]

        def list_first(most: int) -> str:
            return f"measured {facts.unit}{of}, not judged: {_list(shown, most)}"

        more = [_fit(list_first)] if shown else []
        return _Said("BEST", f"cannot be told: {facts.undecided}", more)
    best = fastest.recommended
    text = f"{names[best]}: {show_estimate(rates[best])} {facts.unit}"
    if facts.base == best:
        text += ", the base; no row is faster"
    elif facts.base and best in facts.speedups:
        speedup = show_estimate(replace(facts.speedups[best], verdict=""))
        text += f", {speedup} times {names[facts.base]}"
    return _Said("BEST", text, [*_others(facts, fastest, margin), *facts.alike])


def _others(facts: Workload, fastest: Choice, margin: float) -> Iterator[str]:
    """A sentence about the other rows, the fastest first."""
    best = fastest.recommended
    words = {
        EQUAL: f"as fast within {100 * margin:g} %",
        UNTOLD: "perhaps as fast",
        FEW: "not judged, because of too few launches",
        LESS: "slower",
        APART: "not compared, because of other rounds",
    }
    verdicts = {one.cell: one.verdict for one in fastest.rivals}
    if best != fastest.cell:
        verdicts = {fastest.cell: EQUAL, **verdicts}
        del verdicts[best]
    by_word = {
        word: [
            f"{_short(facts, cell)} {_plain(facts.rates[cell])}"
            for cell, one in verdicts.items()
            if one == verdict
        ]
        for verdict, word in words.items()
    }

    def list_first(most: int) -> str:
        parts = (f"{word}: {_list(own, most)}" for word, own in by_word.items() if own)
        return "; ".join(parts)

    if verdicts:
        yield _fit(list_first)


def _list(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _fit(list_first: Callable[[int], str]) -> str:
    """The text with as many names as fit into a line, two at least."""
    lists = (list_first(most) for most in (4, 3, 2))
    return next((text for text in lists if len(text) <= _WIDTH), list_first(2))


def _short(facts: Workload, cell: str) -> str:
    """The name of a row without what it shares with that of the best."""
    assert facts.fastest is not None
    _, over, place = facts.names[facts.fastest.recommended].partition(" over ")
    return facts.names[cell].replace(over + place.partition(" (")[0], "", 1)


def _plain(number: Estimate) -> str:
    """The value as it is printed beside its interval, without it."""
    return show_estimate(number).value


def _but(facts: Workload) -> Iterator[_Said]:
    """What the best row does to training, beside the base."""
    if facts.undecided or len(facts.training) < 2:
        return
    best, base = facts.training
    name = facts.names[base.cell]
    said = []
    if best.precision != base.precision:
        said.append(f"{best.precision}, not {base.precision}")
    if best.is_lossy and not base.is_lossy:
        said.append("an option changes the arithmetic")
    if best.samples != base.samples:
        said.append(f"{best.samples} samples a step, not {base.samples}")
    if not said:
        return
    text = "; ".join(said)
    if facts.seconds and best.loss and base.loss:
        after = f"loss after {figures(facts.seconds, 2)} s: {_loss(best.loss[0])}"
        text += f"; {after}, of {name} {_loss(base.loss[0])}"
        if best.loss[1] > base.loss[2] and best.samples != base.samples:
            text += ": tune learning_rate"
    more = []
    if facts.same_training:
        cell = facts.same_training
        rate = show_estimate(facts.rates[cell])
        more.append(
            f"with {base.samples} samples in {base.precision} the best is "
            f"{facts.names[cell]}: {rate} {facts.unit}"
        )
    yield _Said("BUT", text, more)


def _loss(value: float) -> str:
    return figures(value, 3)


def _untested(facts: Workload) -> Iterator[_Said]:
    if (rival := facts.untested) and not facts.undecided:
        yield _Said("UNTESTED", f"the usual rival, {rival}")


def _lost(facts: Workload) -> Iterator[_Said]:
    """Where the time of a step of the best row goes."""
    lost = facts.lost
    if lost is None or facts.undecided or (lost.lost.low or 0) <= 0:
        return
    parts = sorted(lost.parts.items(), key=lambda one: -one[1].value)
    said = []
    for name, part in parts:
        if part.value >= 0.05 * lost.lost.value:
            words = _PARTS[name][0]
            if name == "computation" and not lost.is_separate:
                words += " or communication, which its phases do not separate"
            said.append(f"{figures(part.value, 2)} {words}")
    step = f"{show_estimate(lost.lost)} of {figures(lost.step, 3)} ms a step"
    remedy = f"try {_PARTS[parts[0][0]][1]}"
    yield _Said("LOST", f"{step}: {', '.join(said[:2])}", [remedy])


def _scales(facts: Workload, wanted: float) -> Iterator[_Said]:
    """How far the series of the best row scales, if it has more than two sizes."""
    series = next(iter(facts.scaling), None)
    sizes = {facts.devices[cell] for cell in series.cells} if series else ()
    if series and len(sizes) > 2 and not facts.undecided:
        yield _Said("SCALES", _scale(series, facts, wanted))


def _scale(series: Scaling, facts: Workload, wanted: float) -> str:
    def show(cell: str) -> str:
        efficiency = replace(facts.efficiencies[cell], verdict="")
        return f"{facts.devices[cell]} {facts.device}s ({show_estimate(efficiency)})"

    said = []
    if series.largest:
        most = ", the most that was measured" if series.end is None else ""
        said.append(
            f"efficiency is above {wanted:g} up to {show(series.largest)}{most}"
        )
    if series.end:
        how = "below" if series.is_below else "cannot be told to be above"
        begin = "" if series.largest else "efficiency is "
        if not series.is_below and not series.largest:
            begin = "efficiency "
        said.append(f"{begin}{how} {wanted:g} at {show(series.end)}")
    return ", ".join(said)


def _cost(facts: Workload, price: tuple[float, str] | None) -> Iterator[_Said]:
    if facts.undecided:
        return
    cells = list(facts.costs)
    best, cheapest = cells[0], cells[-1]
    factor, unit = choose_unit(facts.costs[cheapest])

    def show(cell: str) -> str:
        hours = facts.costs[cell]
        time = str(show_estimate(hours.scaled(factor)))
        if price is None:
            return time
        return f"{time} ({figures(hours.value * price[0], 3)} {price[1]})"

    said = f"{show(best)} device-{unit} per million {facts.unit.removesuffix('/s')}"
    if best == cheapest:
        yield _Said("COST", f"{said}, the cheapest")
    else:
        name = facts.names[cheapest]
        yield _Said("COST", f"{said}, {name} {show(cheapest)} (cheapest)")


def _trust(facts: Workload, reasons: Sequence[Without]) -> Iterator[_Said]:
    """What weakens the answer, the cause first; then rows that failed.

    Of an answer that names no best row, the line of that row says why.
    """
    doubts = [
        f"{doubt.cause}: {', '.join(facts.names[cell] for cell in doubt.cells[:2])}"
        + (f" and {len(doubt.cells) - 2} more" if len(doubt.cells) > 2 else "")
        for doubt in facts.trust
    ]
    seen = facts.measured
    if facts.undecided:
        doubts = []
    elif seen.repeated:
        launch = "launch was" if seen.repeated == 1 else "launches were"
        again = f"{seen.repeated} disturbed {launch} repeated"
        doubts = [*doubts, again] if doubts else [f"good: {again}"]
    failed = [_why(one) for one in reasons if one.status not in _NOT_TRIED]
    good = [] if facts.undecided else ["good: nothing weakens these rows"]
    if said := [*doubts, *failed] or good:
        yield _Said("TRUST", said[0], said[1:])


def _why(reason: Without) -> str:
    """Why rows have no numbers."""
    others = len(reason.cells) - 1
    more = f" and {others} more" if others else ""
    return f"{reason.status}: {reason.first}{more}: {reason.reason}"


def _next(answer: Answer, facts: Workload | None) -> Iterator[_Said]:
    """The command that may change what is best; a comment of the shell says why."""
    statuses = {one.status for one in answer.without_numbers}
    failed = statuses - _NOT_TRIED - {"stale"}
    run, words = "run", tuple[str, ...]()
    left = minutes(facts.measured.seconds_left) if facts else ""
    if facts and facts.undecided and facts.measured.seconds_left:
        what = "measures them" if facts.measured.old else "continues"
        why = f"{what}, about {left}"
    elif facts and facts.undecided and any("disturbed" in d.cause for d in facts.trust):
        device = "cuda" if facts.device == "GPU" else "cpu"
        run = "rerun"
        words = ("--only", f"device={device}", "--wait-quiet", "60")
        why = "on a quiet machine"
    elif facts and (plans := [one for one in facts.next if one.settles == "fastest"]):
        words, why = ("--next", "fastest"), _launch(plans[0], facts)
    elif statuses & {"stale", "not-run", "cancelled"}:
        why = "measures what is missing or stale" + (f", about {left}" if left else "")
    elif failed:
        run, words, why = "rerun", ("--failed",), "after the cause is mended"
    else:
        return
    command = rankbench_command(run, **answer.source, options=words)
    line = f"{command}  # {why}"
    yield _Said("NEXT", line if len(line) <= _WIDTH else f"{why}:\n{command}")


def _launch(plan: NextLaunches, facts: Workload) -> str:
    """Rows that get equally many launches are named together."""
    most = max(one.more for one in plan.cells)
    named = [_short(facts, one.cell) for one in plan.cells]
    rest = f" and {len(named) - 2} more" if len(named) > 2 else ""
    up_to = "up to " if len({one.more for one in plan.cells}) > 1 else ""
    times = f"{up_to}{most} more launch{'es' * (most > 1)}"
    return f"{times} of {' and '.join(named[:2])}{rest}, about {minutes(plan.seconds)}"


# --- further findings -----------------------------------------------------------------


def _add_details(facts: Workload, answer: Answer) -> Iterator[Note]:
    """What the ten lines leave out: all series, and all open questions."""
    for series in facts.scaling:
        said = _scale(series, facts, answer.efficiency)
        yield Note(f"scaling of {series.series}", f"{said}.")
    for plan in facts.next:
        yield tell_next(plan, facts, answer)


def tell_next(plan: NextLaunches, facts: Workload, answer: Answer) -> Note:
    """The launches that would settle a question, their cost, and the command."""
    words = "--next", plan.settles
    command = rankbench_command("run", **answer.source, options=words)
    factor, unit = choose_unit(Estimate(plan.device_hours))
    cost = f"{figures(factor * plan.device_hours, 3)} device-{unit}"
    text = f"{_launch(plan, facts)}, {cost}: {command}"
    return Note(f"to tell {_QUESTIONS[plan.settles]}", text)


SECTION = Section(
    name="answer",
    title="Answer",
    reading=(
        "What is best and what it costs, what is untested, and what cannot be told. "
        "answer.json has the same values; sections/answer.csv has all rows with their "
        "ratio to the fastest and to the cheapest."
    ),
    order=-1,
    make=make,
    columns={
        **dict.fromkeys(("workload", "question", "cell"), str),
        "ratio": Estimate,
        "verdict": str,
        "launches": int,
    },
)
