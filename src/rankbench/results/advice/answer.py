"""What the records of a result directory say about the question of its user."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rankbench.cell import REFERENCE, Cell, find_varying, spell_setting
from rankbench.invocation import rankbench_command
from rankbench.record import CHANGED_CELL, CHANGED_IMAGE, disturbances, minutes
from rankbench.results.advice import choice
from rankbench.results.elements.marks import weakness
from rankbench.results.elements.text import Note, figures, show_estimate
from rankbench.results.numbers.launches import find_curve, read_curve
from rankbench.results.numbers.losses import Loss, find_losses
from rankbench.results.numbers.result_set import ResultSet, Summary, compare_rows
from rankbench.results.numbers.series import Panel, Series, find_controls, is_shared
from rankbench.results.numbers.statistics import (
    MARGIN,
    MIN_LAUNCHES,
    Estimate,
    round_off,
)

# Columns of a line, after its term.
WIDTH = 90

# Efficiency of a sensible topology, if the user wants no other.
EFFICIENCY = 0.7

# Costs are of so many samples or tokens.
MILLION = 1_000_000

# Rows that do not say how fast a strategy is.
_NO_SPEED = "functional"

# No row is the best if more than this share of the launches of a row that this rests on
# were disturbed, and their repetitions as well.
_TOO_DISTURBED = 1 / 3

# Packages beside torch that a row may need, by what its strategy or launcher is called.
_PACKAGES = ("horovod", "deepspeed")

# Settings that tell rows of different strategies apart, too.
_SHARED_SETTINGS = ("precision", "compile", "batch_size", "scaling")

# Statuses of rows that have not failed.
_NOT_TRIED = {"unsupported", "not-run", "cancelled"}

_QUESTIONS = {
    "fastest": "which is the fastest",
    "cheapest": "which is the cheapest",
    "scaling": "how far it scales",
}

# Part of a loss -> what it is, and what may help.
_PARTS = {
    "computation": (
        "slower computation",
        "faster computation",
        "a larger batch_size",
    ),
    "waiting": (
        "waiting for slower ranks",
        "less waiting for ranks",
        "devices that nothing else uses",
    ),
    "transfer": (
        "moving bytes",
        "fewer bytes",
        "a larger batch_size: fewer bytes for a sample",
    ),
    "input": ("waiting for data", "less waiting for data", "more num_workers"),
    "host": ("an idle GPU", "a busier GPU", "compile: true"),
    "unexplained": (
        "overhead of messages",
        "less overhead of messages",
        "another backend, or a larger batch_size: fewer messages for a sample",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How far a series keeps its efficiency.

    Attributes:
        cells: of all sizes, with the base on one device.
        largest: the row up to which the efficiency is above the wanted one, or None.
        end: the first one that is not, or None.
        is_below: whether that one is below; else it cannot be told.
    """

    series: str
    cells: Sequence[Summary]
    largest: Summary | None
    end: Summary | None
    is_below: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The answer for one workload.

    Attributes:
        workload: what is trained.
        unit: of throughput: samples/s or tokens/s.
        device: core or GPU, or device: several cores.
        planned: all its rows.
        timed: id -> a row that shows a speed.
        rows: those that compete, the fastest first.
        names: id -> the row in words.
        base: the row that speedups are relative to, or None.
        undecided: why no row is called the best; None if one is.
        rests_on: the rows that this depends on, the fastest first.
        lost: what a step of the best row takes longer than with efficiency 1.
    """

    workload: str
    unit: str
    device: str
    planned: Sequence[Summary]
    timed: Mapping[str, Summary]
    rows: Mapping[str, Summary]
    names: Mapping[str, str]
    base: Summary | None
    undecided: str | None = None
    fastest: choice.Choice | None = None
    cheapest: choice.Choice | None = None
    rests_on: Mapping[str, Summary] = field(default_factory=dict)
    lost: Loss | None = None
    scaling: Sequence[Scaling] = ()
    next: Sequence[choice.NextLaunches] = ()

    @property
    def best(self) -> Summary | None:
        """The row to use; None if none is called the best."""
        if self.undecided or self.fastest is None:
            return None
        return self.rows[self.fastest.recommended]

    @property
    def is_open(self) -> bool:
        """Whether no row is called the best, or another may be as good."""
        rivals = self.fastest.rivals if self.fastest else ()
        told = (choice.EQUAL, choice.LESS)
        return bool(self.undecided) or any(one.verdict not in told for one in rivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a result directory.

    Attributes:
        found: the results, in which launches count of rows that are partial or stale.
        margin: rows that differ by less are equally good, as a share.
        efficiency: a topology is sensible if its efficiency is higher.
    """

    found: ResultSet
    margin: float
    efficiency: float
    workloads: Sequence[Workload]


def find_answer(
    found: ResultSet, *, margin: float = MARGIN, efficiency: float = EFFICIENCY
) -> Answer:
    """The answer for each workload.

    Args:
        found: what was read of a result directory.
        margin: rows that differ by less are equally good, as a share.
        efficiency: a topology is sensible if its efficiency is higher.
    """
    if any(len(row.partial) for row in found.rows):
        rows = [
            replace(row, status="ok", launches=row.partial) if len(row.partial) else row
            for row in found.rows
        ]
        found = replace(found, rows=compare_rows(rows))
    losses = {loss.cell: loss for loss in find_losses(found.rows)}
    workloads = [
        _judge_workload(found, panel, losses, margin, efficiency)
        for panel in _merge_hosts(found.panels)
    ]
    return Answer(
        found=found, margin=margin, efficiency=efficiency, workloads=workloads
    )


def _merge_hosts(panels: Sequence[Panel]) -> list[Panel]:
    """The panels; those of cells that are pinned to hosts are one for all hosts."""
    found: dict[str, Panel] = {}
    for panel in panels:
        cell = panel.points[0].cell
        key = replace(cell, hosts=None).workload() if cell.hosts else panel.title
        before = found[key].series if key in found else ()
        title = panel.title.replace(f", hosts={cell.hosts}", "")
        found[key] = replace(panel, title=title, series=(*before, *panel.series))
    return list(found.values())


def _judge_workload(
    found: ResultSet,
    panel: Panel,
    losses: Mapping[str, Loss],
    margin: float,
    efficiency: float,
) -> Workload:
    timed = {row.id: row for row in panel.points if _NO_SPEED not in row.marks}
    controls = find_controls(list(timed.values()))
    ranked = sorted(timed.values(), key=lambda row: -row.rate)
    rows = {row.id: row for row in ranked if row.id not in controls}
    bases = [row.speedup_base for row in timed.values() if row.speedup_base]
    base = next((timed[one.id] for one in bases if one.id in timed), None)
    first = panel.points[0].cell
    kind = first.workload()
    facts = Workload(
        workload=panel.title,
        unit=f"{panel.unit}/s",
        device=_kind_of_device(first),
        planned=[one for one in found.rows if one.cell.workload() == kind],
        timed=timed,
        rows=rows,
        names=_name_rows(panel, timed),
        base=base,
    )
    if first.hosts:
        slow = "; ".join(row.slow_host for row in timed.values() if row.slow_host)
        said = slow or "no host is surely slower than the others"
        return replace(facts, undecided=said)
    incomplete = _why_incomplete(facts.planned)
    if len(rows) < 2:
        only = "".join(f"only {facts.names[name]} was measured" for name in rows)
        why = f"{only or 'no row shows a speed'}, so there is nothing to compare"
        return replace(facts, undecided=incomplete or why)
    fastest, cheapest = (_choose(rows, margin, per_device=one) for one in (False, True))
    open_ones = [one.cell for one in fastest.rivals if one.verdict != choice.LESS]
    names = [fastest.cell, fastest.recommended, *open_ones]
    names += [base.id] if base else []
    rests_on = {name: timed[name] for name in names}
    best = rows[fastest.recommended]
    judged = (_find_scaling(series, timed, efficiency) for series in panel.series)
    scaling = sorted(filter(None, judged), key=lambda one: best not in one.cells)
    ends = [one.end for one in scaling if one.end and not one.is_below]
    choices = {"fastest": fastest, "cheapest": cheapest}
    is_begun = any(len(row.partial) for row in rows.values())
    return replace(
        facts,
        undecided=(incomplete if is_begun else None)
        or _why_undecided(fastest, rests_on, facts.names),
        fastest=fastest,
        cheapest=cheapest,
        rests_on=rests_on,
        lost=losses.get(best.id),
        scaling=scaling,
        next=choice.plan_next(timed, choices, ends, efficiency),
    )


def _find_scaling(
    series: Series, rows: Mapping[str, Summary], wanted: float
) -> Scaling | None:
    """How far a series keeps its efficiency; None if it is on one device alone."""
    several = [
        point
        for point in series.points
        if point.devices > 1 and not is_shared(point)
        if point.id in rows and "efficiency" in point.numbers
    ]
    if not several:
        return None
    several.sort(key=lambda point: point.devices)
    base = several[0].efficiency_base
    above, end, is_below = choice.find_end(several, wanted)
    return Scaling(
        series=series.name,
        cells=[*([rows[base.id]] if base and base.id in rows else ()), *several],
        largest=above[-1] if above else None,
        end=end,
        is_below=is_below,
    )


# --- words for a row ------------------------------------------------------------------


def describe(cell: Cell, words: Sequence[str] = ()) -> str:
    """A cell in words, with what else sets it apart: ``ddp over gloo on 2 cores``."""
    size, kind = cell.size, _kind_of_device(cell)
    of = f" of {cell.cores_per_device} cores" if kind == "device" else ""
    hosts = "" if size.nodes == 1 else f"{size.nodes} hosts x "
    where = f"{hosts}{_count(size.devices_per_node, kind)}{of}"
    who = cell.strategy if cell.script is None else cell.file_of_script
    if cell.script is None and cell.strategy == REFERENCE:
        said = where if size.devices == 1 else f"one process, {where}"
    elif cell.backend == "none" or (cell.script is not None and size.devices == 1):
        said = f"{who} on {where}"
    else:
        said = f"{who} over {cell.backend} on {where}"
    return f"{said} ({', '.join(words)})" if words else said


def _kind_of_device(cell: Cell) -> str:
    if cell.device == "cuda":
        return "GPU"
    return "core" if cell.cores_per_device == 1 else "device"


def _name_rows(panel: Panel, rows: Mapping[str, Summary]) -> dict[str, str]:
    """Each row in words, with the settings that tell it apart from others."""
    varying = find_varying([row.cell.settings for row in rows.values()])
    names = {}
    for series in panel.series:
        for point in series.points:
            settings = point.cell.settings
            shared = (
                spell_setting(name, settings[name])
                for name in _SHARED_SETTINGS
                if name in varying
            )
            own = [*shared, *series.words, point.cell.hosts]
            words = dict.fromkeys(filter(None, own))
            names[point.id] = describe(point.cell, [*words])
    return {name: names[name] for name in rows}


# --- the best row ---------------------------------------------------------------------


def _choose(
    rows: Mapping[str, Summary], margin: float, *, per_device: bool
) -> choice.Choice:
    """The best row by throughput (of a device), and how the others compare."""
    factors = {
        name: 1 / (row.devices if per_device else 1) for name, row in rows.items()
    }
    first = next(iter(rows.values()))
    assert first.fit is not None
    best, rivals = choice.choose(first.fit, factors, margin, look=first.look)

    def burden(name: str) -> tuple[int, int, int, bool]:
        """What a row asks for: devices, processes, packages."""
        row = rows[name]
        named = f"{row.cell.strategy} {row.cell.launcher}"
        packages = sum(package in named for package in _PACKAGES)
        ranks = int(row.records[0]["shape"]["ranks"])
        return row.devices, ranks, packages, name != best

    equal = [rival.cell for rival in rivals if rival.verdict == choice.EQUAL]
    simplest = min([best, *equal], key=burden)
    return choice.Choice(cell=best, recommended=simplest, rivals=rivals)


def _is_old(row: Summary) -> bool:
    return (row.reason or "").startswith((CHANGED_CELL, CHANGED_IMAGE))


def _count_left(row: Summary) -> int:
    """Launches that `rankbench run` will add to a row, or make anew."""
    if _is_old(row):
        return row.wanted
    is_open = len(row.partial) or row.status in ("not-run", "cancelled", "stale")
    return row.wanted - row.ok if is_open else 0


def _why_incomplete(planned: Sequence[Summary]) -> str | None:
    """What the rows of a workload lack; None if nothing."""
    if old := sum(map(_is_old, planned)):
        which = f"{_count(old, 'row')} {'is' if old == 1 else 'are'} old"
        return f"{which}: the experiment or an image has changed since"
    able = [row for row in planned if row.status != "unsupported"]
    wanted = sum(row.wanted for row in able)
    if left := sum(map(_count_left, able)):
        repeated = sum(row.repeated for row in planned)
        more = f", {repeated} disturbed do not count" if repeated else ""
        counts = f"{wanted - left} of {wanted}"
        return f"the run is not complete ({counts} launches done{more})"
    return None


def _why_undecided(
    fastest: choice.Choice, rest_on: Mapping[str, Summary], names: Mapping[str, str]
) -> str | None:
    """Why no row of a complete run is called the best; None if one is."""
    for name, row in rest_on.items():
        causes, every = _find_disturbances(row), len(row.launches)
        if len(causes) > _TOO_DISTURBED * every:
            counts = f"{len(causes)} of {every} launches of {names[name]}"
            return f"{causes[-1]}; {counts} were disturbed"
    if all(rival.verdict == choice.APART for rival in fastest.rivals):
        return "no two rows were launched in the same rounds, so none are compared"
    if noisy := choice.find_noisy(fastest.rivals):
        for name, row in rest_on.items():
            if row.slow_host:
                return f"{row.slow_host} of {names[name]}"
        return (
            "launches scatter too much: the speed of "
            f"{names[noisy.cell]} may be {show_estimate(noisy.ratio)} times that of "
            f"{names[fastest.cell]}"
        )
    return None


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _find_disturbances(row: Summary) -> list[str]:
    """What disturbed the launches of a row that count: a cause of each of these."""
    return [causes[0] for causes in map(disturbances, row.records) if causes]


# --- findings: each is said here, and only here ---------------------------------------


def find_all(answer: Answer) -> Iterator[Note]:
    """All findings, in the order in which people read them."""
    if not answer.workloads:
        yield Note("WHAT", f"{answer.found.experiment}: no row has numbers")
        for why in _why_without(answer.found, set()):
            yield Note("WHY", why)
        yield from _next(answer, None)
    for facts in answer.workloads:
        yield _what(facts)
        yield _best(facts, answer.margin)
        if facts.best:
            yield from _but(facts, facts.best)
            yield from _untested(facts, facts.best.cell, answer.found)
            yield from _lost(facts, facts.best, answer.found)
            yield from _scales(facts, answer.efficiency)
            yield from _cost(facts, facts.best, answer.found.price)
        yield from _trust(facts, answer.found)
        yield from _next(answer, facts)


def find_details(answer: Answer) -> Iterator[Note]:
    """What the ten lines leave out: all series, and all open questions."""
    for facts in answer.workloads:
        for series in facts.scaling:
            said = _describe_scaling(series, facts.device, answer.efficiency)
            yield Note("SCALES", f"{series.series}: {said}")
        for plan in facts.next:
            yield tell_next(plan, facts, answer)


def _what(facts: Workload) -> Note:
    """What was measured, where and when, as far as it fits into a line."""
    records = [record for row in facts.timed.values() for record in row.records]
    hosts = {host["host"]: host for record in records for host in record["hosts"]}
    machines = {
        f"{len(host['gpus'])} x {host['gpus'][0]['name']}"
        if host["gpus"]
        else f"{host['cores']} cores of {host['cpu']}"
        for host in hosts.values()
    }
    machine = f"{len(hosts)} hosts, each " if len(hosts) > 1 else ""
    machine += " or ".join(map(_shorten_machine, sorted(machines)))
    counts = sorted({len(row.counted) for row in facts.timed.values()})
    each = " to ".join(map(str, dict.fromkeys([*counts[:1], *counts[-1:]])))
    launches = f"{each} launch{'es' * (each != '1')}"
    days = sorted({record["started"][:10] for record in records if record["started"]})
    rows = _count(len(facts.rows), "row")
    parts = [facts.workload, machine, f"{rows} of {launches}", *days[-1:]]
    while len("; ".join(parts)) > WIDTH and len(parts) > 2:
        parts.pop()
    return Note("WHAT", "; ".join(part for part in parts if part))


def _shorten_machine(text: str) -> str:
    """Without what names of processors say for lawyers."""
    for word in ("(R)", "(TM)", " CPU", " Processor"):
        text = text.replace(word, "")
    return text.partition(" @ ")[0].strip()


def _best(facts: Workload, margin: float) -> Note:
    names = facts.names
    if facts.best is None:
        # What all rows are is said once.
        begins = {names[cell].partition(" (")[0] for cell in facts.rows}
        shared = begins.pop() if len(begins) == 1 < len(facts.rows) else ""
        of = f" of {shared}" if shared else ""
        shown = [
            f"{names[cell].removeprefix(shared).lstrip()} {_plain(row)}"
            + " (old)" * _is_old(row)
            for cell, row in facts.rows.items()
        ]

        def list_first(most: int) -> str:
            return f"measured {facts.unit}{of}, not judged: {_list(shown, most)}"

        more = [_fit(list_first)] if shown else []
        return Note("BEST", f"cannot be told: {facts.undecided}", more)
    best, base = facts.best, facts.base
    text = f"{names[best.id]}: {_rate(best)} {facts.unit}"
    if base is best:
        text += ", the base; no row is faster"
    elif base and "speedup" in best.numbers:
        speedup = show_estimate(replace(best.numbers["speedup"], verdict=""))
        text += f", {speedup} times {names[base.id]}"
    return Note("BEST", text, [*_others(facts, margin), *_find_alike(facts.rows)])


def _others(facts: Workload, margin: float) -> Iterator[str]:
    """A sentence about the other rows, the fastest first."""
    fastest = facts.fastest
    assert fastest
    words = {
        choice.EQUAL: f"as fast within {100 * margin:g} %",
        choice.UNTOLD: "perhaps as fast",
        choice.FEW: "not judged, because of too few launches",
        choice.LESS: "slower",
        choice.APART: "not compared, because of other rounds",
    }
    verdicts = {fastest.cell: choice.EQUAL}
    verdicts |= {one.cell: one.verdict for one in fastest.rivals}
    del verdicts[fastest.recommended]
    by_word = {
        word: [
            f"{_short(facts, cell)} {_plain(facts.rows[cell])}"
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
    return next((text for text in lists if len(text) <= WIDTH), list_first(2))


def _short(facts: Workload, cell: str) -> str:
    """The name of a row without what it shares with that of the best."""
    assert facts.fastest is not None
    _, over, place = facts.names[facts.fastest.recommended].partition(" over ")
    return facts.names[cell].replace(over + place.partition(" (")[0], "", 1)


def _rate(row: Summary) -> str:
    return str(show_estimate(row.numbers["throughput"]))


def _plain(row: Summary) -> str:
    """The throughput as it is printed beside its interval, without it."""
    return show_estimate(row.numbers["throughput"]).value


def _but(facts: Workload, best: Summary) -> Iterator[Note]:
    """What the best row does to training, beside the base."""
    base = facts.base
    if base is None or base is best:
        return

    def trains(row: Summary) -> tuple[str, int]:
        return row.cell.precision, int(row.records[0]["shape"]["global_batch"])

    (precision, samples), (usual, less) = trains(best), trains(base)
    said = []
    if precision != usual:
        said.append(f"{precision}, not {usual}")
    if "approximate" in set(best.marks) - set(base.marks):
        said.append("an option changes the arithmetic")
    if samples != less:
        said.append(f"{samples} samples a step, not {less}")
    if not said:
        return
    seconds = min(float(find_curve(row, "seconds")[0][-1]) for row in (best, base))
    mine, theirs = (read_curve(row, seconds) for row in (best, base))
    if mine and theirs:
        own, of_base = (figures(round_off(loss[0]), 3) for loss in (mine, theirs))
        after = figures(round_off(seconds), 2)
        said.append(f"loss after {after} s: {own}, of {facts.names[base.id]} {of_base}")
        if round_off(mine[1]) > round_off(theirs[2]) and samples != less:
            said[-1] += ": tune learning_rate"
    alike = (row for row in facts.rows.values() if trains(row) == trains(base))
    other = next(alike, base)
    more = (
        f"with {less} samples in {usual} the best is "
        f"{facts.names[other.id]}: {_rate(other)} {facts.unit}"
    )
    is_other = other is not base and trains(best) != trains(base)
    yield Note("BUT", "; ".join(said), [more] if is_other else [])


def _untested(facts: Workload, best: Cell, found: ResultSet) -> Iterator[Note]:
    """The usual rival of the best row, on as many devices of a host, if missing."""
    if best.script is not None or best.size.nodes > 1 or best.size.devices == 1:
        return
    usual = ("ddp", "nccl") if best.device == "cuda" else (REFERENCE, "none")
    strategy, backend = usual
    cells = [one.cell for one in facts.planned]
    if any((c.strategy, c.topology) == (strategy, best.topology) for c in cells):
        return
    block = f"strategy: {strategy}, topology: {best.topology}"
    block += f", backend: {backend}" if backend != "none" else ""
    add = f"`{strategy}` to strategy"
    if found.has_blocks:
        add = f"`- {{{block}}}` to blocks"
    elif any(cell.strategy == strategy for cell in cells):
        add = f"`{strategy}` on {best.topology}"
    name = describe(replace(best, strategy=strategy, backend=backend))
    yield Note("UNTESTED", f"the usual rival, {name}: add {add}")


def _lost(facts: Workload, best: Summary, found: ResultSet) -> Iterator[Note]:
    """Where the time of a step of the best row goes."""
    lost = facts.lost
    if lost is None or not lost.is_certain:
        return
    parts = sorted(lost.parts.items(), key=lambda one: -one[1].value)
    said = []
    for name, part in parts:
        if part.value >= 0.05 * lost.lost.value:
            words = _PARTS[name][0]
            if name == "computation" and not lost.is_separate:
                words += " or communication, which its phases do not separate"
            said.append(f"{figures(part.value, 2)} {words}")
    name, gain = parts[-1]
    if gain.value <= -0.05 * lost.lost.value:
        said.append(f"less {figures(-gain.value, 2)} by {_PARTS[name][1]}")
    step = f"{show_estimate(lost.lost)} of {figures(lost.step, 3)} ms a step"
    more = [f"try {_PARTS[parts[0][0]][2]}"]
    if others := said[2:]:  # All parts add up.
        more.append(f"also {', '.join(others)}")
    hosts = {host["host"] for record in best.records for host in record["hosts"]}
    links = [link for pair, link in found.links.items() if {*pair} <= hosts]
    if links:
        link = min(links, key=lambda link: float(link["gb_s"]))
        speed = f"{figures(link['gb_s'], 3)} GB/s, {figures(link['us'], 3)} us"
        names = " and ".join(link["hosts"])
        more.append(f"the slowest link, between {names}, has {speed}")
    yield Note("LOST", f"{step}: {', '.join(said[:2])}", more)


def _scales(facts: Workload, wanted: float) -> Iterator[Note]:
    """How far the series of the best row scales, if it has more than two sizes."""
    series = next(iter(facts.scaling), None)
    if series and len({row.devices for row in series.cells}) > 2:
        yield Note("SCALES", _describe_scaling(series, facts.device, wanted))


def _describe_scaling(series: Scaling, device: str, wanted: float) -> str:
    def show(row: Summary) -> str:
        efficiency = replace(row.numbers["efficiency"], verdict="")
        return f"{row.devices} {device}s ({show_estimate(efficiency)})"

    above = end = ""
    if series.largest:
        above = f"is above {wanted:g} up to {show(series.largest)}"
    if series.end:
        how = "cannot be told to be above"
        if series.is_below:
            how = "below" if above else "is below"
        end = f"{how} {wanted:g} at {show(series.end)}"
    end = end or "the most that was measured"
    return f"efficiency {', '.join(filter(None, [above, end]))}"


def device_hours(summary: Summary) -> Estimate:
    """Device-hours of a million samples or tokens."""
    hours = summary.numbers["throughput"].inverse().scaled(MILLION / 3600)
    return hours.scaled(summary.devices)


def choose_unit(hours: Estimate) -> tuple[int, str]:
    """Of device time: hours, or seconds if they are few; with the factor to it."""
    return (1, "hours") if hours.value >= 0.1 else (3600, "seconds")


def _cost(
    facts: Workload, best: Summary, price: tuple[float, str] | None
) -> Iterator[Note]:
    assert facts.cheapest
    cheapest = facts.rows[facts.cheapest.cell]
    factor, unit = choose_unit(device_hours(cheapest))

    def show(row: Summary) -> str:
        hours = device_hours(row)
        time = str(show_estimate(hours.scaled(factor)))
        if price is None:
            return time
        return f"{time} ({figures(hours.value * price[0], 3)} {price[1]})"

    other = f"{facts.names[cheapest.id]} {show(cheapest)} (cheapest)"
    yield Note(
        "COST",
        f"{show(best)} device-{unit} per million {facts.unit.removesuffix('/s')}, "
        f"{'the cheapest' if best is cheapest else other}",
    )


def _trust(facts: Workload, found: ResultSet) -> Iterator[Note]:
    """What weakens the answer, the cause first; then rows that failed.

    Of an answer that names no best row, the line of that row says why.
    """
    said = [] if facts.undecided else list(_weaken(facts))
    said += _why_without(found, _NOT_TRIED)
    if not said and not facts.undecided:
        said = ["good: nothing weakens these rows"]
    if said:
        yield Note("TRUST", said[0], said[1:])


def _weaken(facts: Workload) -> Iterator[str]:
    doubts = _find_doubts([*facts.rests_on.values()])
    for cause, cells in doubts.items():
        yield f"{cause}: {_list([facts.names[cell] for cell in cells], 2)}"
    if repeated := sum(row.repeated for row in facts.planned):
        launch = "launch was" if repeated == 1 else "launches were"
        good = "" if doubts else "good: "
        yield f"{good}{repeated} disturbed {launch} repeated"


def _find_doubts(rows: Sequence[Summary]) -> dict[str, list[str]]:
    """Cause -> ids of the rows that it weakens, in order of appearance.

    Args:
        rows: those that the answer rests on, the fastest first.
    """
    # Processors and GPUs of the hosts of all launches.
    hardware = [
        {
            (host["cpu"], *sorted(gpu["name"] for gpu in host["gpus"]))
            for record in row.records
            for host in record["hosts"]
        }
        for row in rows
    ]
    causes: dict[str, list[str]] = {}
    for row, own in zip(rows, hardware, strict=True):
        for cause in _doubt(row):
            causes.setdefault(cause, []).append(row.id)
        if own != hardware[0]:
            causes.setdefault("hosts had other processors or GPUs", []).append(row.id)
    return causes


def _doubt(summary: Summary) -> Iterator[str]:
    count = len(summary.launches)
    if summary.slow_host:
        yield summary.slow_host
    if causes := _find_disturbances(summary):
        vain = " in spite of repetitions" if summary.repeated else ""
        yield f"{causes[-1]}, {len(causes)} of {count} launches disturbed{vain}"
    if not any(record["surroundings"] for record in summary.records):
        yield "timed under 0.5 s, too short to notice disturbances (raise steps)"
    if count < MIN_LAUNCHES:
        launches = "launch" if count == 1 else "launches"
        yield f"no interval, because of {count} {launches} only"
    if summary.disturbed:
        yield (
            f"{len(summary.disturbed)} of {count} launches left out, because they were "
            "far slower than the rest of their round"
        )
    for mark in summary.marks:
        if mark == "unchecked" and summary.cell.script is not None:
            yield "a script is not checked unless it reports its loss by hooks.step"
        elif said := weakness(mark):
            yield said


def _why_without(found: ResultSet, apart: Collection[str]) -> list[str]:
    """Why rows have no numbers, apart from those of some statuses."""
    cells = {row.id: row.cell for row in found.rows}
    return [
        f"{status}: {_list([describe(cells[one]) for one in ids], 1)}: {reason}"
        for (status, reason), ids in found.reasons.items()
        if status not in apart
    ]


def _next(answer: Answer, facts: Workload | None) -> Iterator[Note]:
    """The command that may change what is best; a comment of the shell says why."""
    statuses = {status for status, _ in answer.found.reasons}
    run, words, rows = "run", tuple[str, ...](), answer.found.rows
    each = choice.seconds_of(rows) if facts else {}
    seconds = sum(_count_left(row) * each.get(row.id, 0.0) for row in rows)
    left = f", about {minutes(seconds)}" if facts else ""
    doubts = _find_doubts([*facts.rests_on.values()] if facts else [])
    if facts and facts.undecided and seconds:
        is_old = any(map(_is_old, facts.planned))
        why = f"{'measures them' if is_old else 'continues'}{left}"
    elif facts and facts.undecided and "disturbed" in " ".join(doubts):
        device = "cuda" if facts.device == "GPU" else "cpu"
        run, why = "rerun", "on a quiet machine"
        words = ("--only", f"device={device}", "--wait-quiet", "60")
    elif facts and (plans := [one for one in facts.next if one.settles == "fastest"]):
        words, why = ("--next", "fastest"), _launch(plans[0], facts)
    elif statuses & {"stale", "not-run", "cancelled"}:
        why = f"measures what is missing or stale{left}"
    elif statuses - _NOT_TRIED:
        run, words, why = "rerun", ("--failed",), "after the cause is mended"
    else:
        return
    command = rankbench_command(run, **answer.found.source, options=words)
    line = f"{command}  # {why}"
    yield Note("NEXT", line if len(line) <= WIDTH else f"{why}:\n{command}")


def _launch(plan: choice.NextLaunches, facts: Workload) -> str:
    """Rows that get equally many launches are named together."""
    counts = {one["more"] for one in plan.cells}
    named = [_short(facts, one["cell"]) for one in plan.cells]
    rest = f" and {len(named) - 2} more" if len(named) > 2 else ""
    up_to, most = "up to " if len(counts) > 1 else "", max(counts)
    times = f"{up_to}{most} more launch{'es' * (most > 1)}"
    return f"{times} of {' and '.join(named[:2])}{rest}, about {minutes(plan.seconds)}"


def tell_next(plan: choice.NextLaunches, facts: Workload, answer: Answer) -> Note:
    """The launches that would settle a question, their cost, and the command."""
    words = "--next", plan.settles
    command = rankbench_command("run", **answer.found.source, options=words)
    factor, unit = choose_unit(Estimate(plan.device_hours))
    cost = f"{figures(factor * plan.device_hours, 3)} device-{unit}"
    text = f"{_launch(plan, facts)}, {cost}: {command}"
    return Note(f"to tell {_QUESTIONS[plan.settles]}", text)


def _find_alike(rows: Mapping[str, Summary]) -> list[str]:
    """Rows whose sizes of buckets differ, and whose buckets do not."""
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for row in rows.values():
        details, options = row.records[0]["ranks"][0]["details"], {**row.cell.options}
        sizes = tuple(bucket["bytes"] for bucket in details.get("buckets") or ())
        if sizes and (asked := options.pop("bucket_mb", None)) is not None:
            rest = replace(row.cell, options=options).apart_from(())
            groups.setdefault((rest, sizes), []).append(asked)
    return [
        f"bucket_mb {' and '.join(map(str, sorted(asked)))} make "
        f"{'one bucket' if len(sizes) == 1 else f'the same {len(sizes)} buckets'} "
        "here: no difference to expect"
        for (_, sizes), asked in groups.items()
        if len(asked) > 1
    ]
