"""What the records of a result directory say about the question of its user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from rankbench.cell import REFERENCE, Cell, find_varying, spell_setting
from rankbench.record import (
    CHANGED_CELL,
    CHANGED_IMAGE,
    NO_EXCHANGE,
    OTHER_SAMPLES,
    SAME_DATA,
    UNCLEAN_END,
    disturbances,
)
from rankbench.results.advice.findings import (
    APART,
    EQUAL,
    LESS,
    Answer,
    Choice,
    Doubt,
    Measured,
    Scaling,
    Training,
    Without,
    Workload,
    choose,
    find_end,
    find_noisy,
    mean_seconds,
    plan_next,
)
from rankbench.results.elements.text import show_estimate
from rankbench.results.numbers.hosts import find_slow_hosts
from rankbench.results.numbers.launches import find_curve, read_curve
from rankbench.results.numbers.losses import Loss, find_losses
from rankbench.results.numbers.result_set import (
    DRIFTING,
    GROUPED,
    NO_STEADY_STATE,
    UNPAIRED,
    ResultSet,
    Summary,
    compare_rows,
)
from rankbench.results.numbers.series import Panel, Series, find_controls, is_shared
from rankbench.results.numbers.statistics import (
    MARGIN,
    MIN_LAUNCHES,
    Estimate,
    round_off,
)

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

# Marks that weaken a row, in words. There are no grades.
_DOUBTS = {
    "approximate": "a lossy option changes what is trained",
    DRIFTING: "launches became faster or slower one after the other",
    "emulated": "computation is emulated",
    GROUPED: "launches fall into groups, some slower than others",
    "mixed-hosts": "launches ran on different hosts",
    "mixed-torch": "it or its base ran different versions of torch",
    NO_STEADY_STATE: "step times still changed their level at the end of a launch",
    NO_EXCHANGE: "ranks exchange no gradients",
    OTHER_SAMPLES: "batches are not as large as samples_per_step says",
    "other-arithmetic": "gradients are summed in fewer bits than by others",
    "other-code": "the code of the ranks has changed since",
    "oversubscribed": "ranks share a core or a GPU, or lack cores",
    "throttled": "a GPU lowered its clocks",
    UNCLEAN_END: "a launch hung or crashed after its ranks had reported",
    UNPAIRED: "it was not launched in the same rounds as its base",
    SAME_DATA: "ranks train on the same samples",
    "unchecked": "no gate has checked what it trains",
}


def find_answer(
    found: ResultSet, *, margin: float = MARGIN, efficiency: float = EFFICIENCY
) -> Answer:
    """The answer for each workload.

    Args:
        found: what was read of a result directory.
        margin: rows that differ by less are equally good, as a share.
        efficiency: a topology is sensible if its efficiency is higher.
    """
    shown = _with_partial(found)
    losses = {loss.cell: loss for loss in find_losses(shown.rows)}
    cells = {summary.id: summary.cell for summary in shown.rows}
    return Answer(
        experiment=found.experiment,
        source=found.source,
        margin=margin,
        efficiency=efficiency,
        price=found.price,
        workloads=[
            _judge_workload(shown, panel, losses, margin, efficiency)
            for panel in _merge_hosts(shown.panels)
        ],
        without_numbers=[
            Without(
                status=status, reason=reason, first=describe(cells[ids[0]]), cells=ids
            )
            for (status, reason), ids in shown.reasons.items()
        ],
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


def _with_partial(found: ResultSet) -> ResultSet:
    """The results, in which launches count of rows that are partial or stale.

    Their reasons stay.
    """
    if not any(len(row.partial) for row in found.rows):
        return found
    rows = [
        replace(row, status="ok", launches=row.partial) if len(row.partial) else row
        for row in found.rows
    ]
    return replace(found, rows=compare_rows(rows))


def _judge_workload(
    found: ResultSet,
    panel: Panel,
    losses: Mapping[str, Loss],
    margin: float,
    efficiency: float,
) -> Workload:
    timed = {row.id: row for row in panel.points if _NO_SPEED not in row.marks}
    controls = find_controls(list(timed.values()))
    rows = {
        name: row
        for name, row in sorted(timed.items(), key=lambda one: -one[1].rate)
        if name not in controls
    }
    bases = (row.speedup_base for row in timed.values() if row.speedup_base)
    base = next((one.id for one in bases if one.id in timed), None)
    names = _name_rows(panel, timed)
    kind = panel.points[0].cell.workload()
    planned = [one for one in found.rows if one.cell.workload() == kind]
    measured = _describe_launches(list(timed.values()), planned, found.rows)
    facts = Workload(
        workload=panel.title,
        unit=f"{panel.unit}/s",
        device=_kind_of_device(panel.points[0].cell),
        rows=len(rows),
        names=names,
        rates=_pick(rows, "throughput"),
        measured=measured,
        base=base,
        devices={name: row.devices for name, row in timed.items()},
        speedups=_pick(timed, "speedup"),
        efficiencies=_pick(timed, "efficiency"),
    )
    if panel.points[0].cell.hosts:
        slow = find_slow_hosts([*timed.values()])
        said = "; ".join(slow.values()) or "no host is surely slower than the others"
        return replace(facts, undecided=said)
    if len(rows) < 2:
        only = "".join(f"only {names[name]} was measured" for name in rows)
        why = f"{only or 'no row shows a speed'}, so there is nothing to compare"
        return replace(facts, undecided=_why_incomplete(measured) or why)
    is_begun = any(len(row.partial) for row in rows.values())
    fastest = _choose(rows, margin, per_device=False)
    cheapest = _choose(rows, margin, per_device=True)
    best = fastest.recommended
    open_ones = [one.cell for one in fastest.rivals if one.verdict != LESS]
    rests = [fastest.cell, best, *open_ones, *([base] if base else [])]
    rest_on = {name: timed[name] for name in dict.fromkeys(rests)}
    seconds, training = _compare_training(
        [rows[best], *([timed[base]] if base else [])]
    )
    judged = (_scale(series, timed, efficiency) for series in panel.series)
    scaling = [series for series in judged if series]
    scaling.sort(key=lambda own: best not in own.cells)
    return replace(
        facts,
        undecided=(_why_incomplete(measured) if is_begun else None)
        or _why_undecided(fastest, rest_on, names),
        fastest=fastest,
        cheapest=cheapest,
        costs={name: device_hours(rows[name]) for name in (best, cheapest.cell)},
        same_training=_find_same_training(rows, best, timed.get(base or "")),
        seconds=seconds,
        training=training,
        untested=_find_untested(found, planned, rows[best].cell),
        lost=losses.get(best),
        scaling=scaling,
        trust=_find_doubts([*rest_on.values()]),
        alike=_find_alike(rows),
        next=plan_next(
            timed, {"fastest": fastest, "cheapest": cheapest}, scaling, efficiency
        ),
    )


def _pick(rows: Mapping[str, Summary], number: str) -> dict[str, Estimate]:
    return {n: r.numbers[number] for n, r in rows.items() if number in r.numbers}


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
            shared = [
                spell_setting(name, settings[name])
                for name in _SHARED_SETTINGS
                if name in varying
            ]
            own = [*shared, *series.words, point.cell.hosts]
            words = dict.fromkeys(filter(None, own))
            names[point.id] = describe(point.cell, [*words])
    return {name: names[name] for name in rows}


def _describe_launches(
    rows: Sequence[Summary], planned: Sequence[Summary], others: Sequence[Summary]
) -> Measured:
    """When and where launches ran, and what is left.

    Args:
        rows: those with launches.
        planned: all rows of the workload.
        others: all rows of the experiment.
    """
    records = [record for row in rows for record in row.records]
    hosts = {host["host"]: host for record in records for host in record["hosts"]}
    kinds = {
        f"{len(host['gpus'])} x {host['gpus'][0]['name']}"
        if host["gpus"]
        else f"{host['cores']} cores of {host['cpu']}"
        for host in hosts.values()
    }
    counts = sorted({len(row.counted) for row in rows})
    # How many launches rows want, and how many of these are left.
    counts_of = [
        (row.wanted, _count_left(row)) for row in planned if row.status != "unsupported"
    ]
    usual = fmean(map(mean_seconds, rows))
    return Measured(
        days=sorted({r["started"][:10] for r in records if "started" in r}),
        launches=[counts[0], counts[-1]] if counts else [],
        disturbed=sum(len(row.disturbed) for row in rows),
        repeated=sum(row.repeated for row in planned),
        hosts=len(hosts),
        machines=sorted(kinds),
        done=sum(wanted - left for wanted, left in counts_of),
        wanted=sum(wanted for wanted, _ in counts_of),
        old=[row.id for row in planned if _is_old(row)],
        seconds_left=sum(
            _count_left(row) * (mean_seconds(row) if len(row.launches) else usual)
            for row in others
        ),
    )


# --- the best row ---------------------------------------------------------------------


def _choose(rows: Mapping[str, Summary], margin: float, *, per_device: bool) -> Choice:
    """The best row by throughput (of a device), and how the others compare."""
    factors = {
        name: 1 / (row.devices if per_device else 1) for name, row in rows.items()
    }
    first = next(iter(rows.values()))
    assert first.fit is not None
    best, rivals = choose(first.fit, factors, margin, look=first.look)

    def burden(name: str) -> tuple[int, int, int, bool]:
        """What a row asks for: devices, processes, packages."""
        row = rows[name]
        named = f"{row.cell.strategy} {row.cell.launcher}"
        packages = sum(package in named for package in _PACKAGES)
        ranks = int(row.records[0]["shape"]["ranks"])
        return row.devices, ranks, packages, name != best

    equal = [rival.cell for rival in rivals if rival.verdict == EQUAL]
    simplest = min([best, *equal], key=burden)
    return Choice(cell=best, recommended=simplest, rivals=rivals)


def _is_old(row: Summary) -> bool:
    return (row.reason or "").startswith((CHANGED_CELL, CHANGED_IMAGE))


def _count_left(row: Summary) -> int:
    """Launches that `rankbench run` will add to a row, or make anew."""
    if _is_old(row):
        return row.wanted
    is_open = len(row.partial) or row.status in ("not-run", "cancelled", "stale")
    return row.wanted - row.ok if is_open else 0


def _why_incomplete(measured: Measured) -> str | None:
    """What the rows of a workload lack; None if nothing."""
    if old := len(measured.old):
        which = f"{_count(old, 'row')} {'is' if old == 1 else 'are'} old"
        return f"{which}: the experiment or an image has changed since"
    if measured.done < measured.wanted:
        counts = f"{measured.done} of {measured.wanted}"
        left_out = measured.repeated
        more = f", {left_out} disturbed do not count" if left_out else ""
        return f"the run is not complete ({counts} launches done{more})"
    return None


def _why_undecided(
    fastest: Choice, rest_on: Mapping[str, Summary], names: Mapping[str, str]
) -> str | None:
    """Why no row of a complete run is called the best; None if one is."""
    for name, row in rest_on.items():
        causes = _find_disturbances(row)
        if len(causes) > _TOO_DISTURBED * len(row.launches):
            return (
                f"{causes[-1]}; {len(causes)} of {len(row.launches)} launches of "
                f"{names[name]} were disturbed"
            )
    if all(rival.verdict == APART for rival in fastest.rivals):
        return "no two rows were launched in the same rounds, so nobody compares them"
    if noisy := find_noisy(fastest.rivals):
        slow = find_slow_hosts([*rest_on.values()])
        if cell := next((name for name in rest_on if name in slow), None):
            return f"{slow[cell]} of {names[cell]}"
        return (
            "launches scatter too much: the speed of "
            f"{names[noisy.cell]} may be {show_estimate(noisy.ratio)} times that of "
            f"{names[fastest.cell]}"
        )
    return None


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' if number > 1 else ''}"


def _find_disturbances(row: Summary) -> list[str]:
    """What disturbed the launches of a row that count: a cause of each of these."""
    found = map(disturbances, row.records)
    return [causes[0] for causes in found if causes]


def _global_batch(row: Summary) -> int:
    return int(row.records[0]["shape"]["global_batch"])


def _find_same_training(
    rows: Mapping[str, Summary], best: str, base: Summary | None
) -> str | None:
    """The fastest row of the base's precision and samples of a step, beside the best.

    None if that is the best row itself, or the base.
    """
    if base is None:
        return None

    def train(row: Summary) -> tuple[str, int]:
        return row.cell.precision, _global_batch(row)

    alike = (name for name, row in rows.items() if train(row) == train(base))
    found = next(alike, None)
    return None if train(rows[best]) == train(base) or found == base.id else found


def _compare_training(
    rows: Sequence[Summary],
) -> tuple[float | None, list[Training]]:
    """What rows train, and their losses after the time that all of them have."""
    if len({row.id for row in rows}) < 2:
        return None, []
    seconds = min(float(find_curve(row, "seconds")[0][-1]) for row in rows)
    found = []
    for row in rows:
        loss = read_curve(row, seconds)
        found.append(
            Training(
                cell=row.id,
                precision=row.cell.precision,
                is_lossy="approximate" in row.marks,
                samples=_global_batch(row),
                loss=loss and [round_off(value) for value in loss],
            )
        )
    known = all(one.loss for one in found)
    return (round_off(seconds) if known else None), found


def _find_untested(
    found: ResultSet, planned: Sequence[Summary], best: Cell
) -> str | None:
    """The usual rival of the best row, on as many devices of a host, if it is missing.

    Args:
        found: the results.
        planned: all rows of the workload.
        best: that row.
    """
    if best.script is not None or best.size.nodes > 1 or best.size.devices == 1:
        return None
    strategy, backend = (
        ("ddp", "nccl") if best.device == "cuda" else (REFERENCE, "none")
    )
    cells = [one.cell for one in planned]
    if any((c.strategy, c.topology) == (strategy, best.topology) for c in cells):
        return None
    block = f"strategy: {strategy}, topology: {best.topology}"
    block += f", backend: {backend}" if backend != "none" else ""
    name = describe(replace(best, strategy=strategy, backend=backend))
    if found.has_blocks:
        return f"{name}: add `- {{{block}}}` to blocks"
    if any(cell.strategy == strategy for cell in cells):
        return f"{name}: add `{strategy}` on {best.topology}"
    return f"{name}: add `{strategy}` to strategy"


# --- what it costs, loses, and how far it goes ----------------------------------------


def device_hours(summary: Summary) -> Estimate:
    """Device-hours of a million samples or tokens."""
    hours = summary.numbers["throughput"].inverse().scaled(MILLION / 3600)
    return hours.scaled(summary.devices)


def _scale(
    series: Series, rows: Mapping[str, Summary], wanted: float
) -> Scaling | None:
    """How far a series keeps its efficiency; None if it is on one device alone."""
    several = [
        point
        for point in series.points
        if point.devices > 1
        and not is_shared(point)
        and point.id in rows
        and "efficiency" in point.numbers
    ]
    if not several:
        return None
    several.sort(key=lambda point: point.devices)
    base = several[0].efficiency_base
    points = [rows[base.id], *several] if base and base.id in rows else several
    above, end, is_below = find_end(several, wanted)
    return Scaling(
        series=series.name,
        cells=[point.id for point in points],
        largest=above[-1].id if above else None,
        end=end.id if end else None,
        is_below=is_below,
    )


# --- what weakens it ------------------------------------------------------------------


def _find_doubts(rows: Sequence[Summary]) -> list[Doubt]:
    """What weakens rows, with those that it weakens, in order of appearance.

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
    slow = find_slow_hosts(rows)
    for row, own in zip(rows, hardware, strict=True):
        for cause in [*filter(None, [slow.get(row.id)]), *_doubt(row)]:
            causes.setdefault(cause, []).append(row.id)
        if own != hardware[0]:
            causes.setdefault("hosts had other processors or GPUs", []).append(row.id)
    return [Doubt(cells=cells, cause=cause) for cause, cells in causes.items()]


def _doubt(summary: Summary) -> Iterator[str]:
    count = len(summary.launches)
    if causes := _find_disturbances(summary):
        vain = " in spite of repetitions" if summary.repeated else ""
        yield f"{causes[-1]}, {len(causes)} of {count} launches disturbed{vain}"
    if not any(record.get("surroundings") for record in summary.records):
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
        elif mark in _DOUBTS:
            yield _DOUBTS[mark]


def _find_alike(rows: Mapping[str, Summary]) -> list[str]:
    """Rows whose sizes of buckets differ, and whose buckets do not."""
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, row in rows.items():
        details = row.records[0]["ranks"][0].get("details") or {}
        sizes = tuple(bucket["bytes"] for bucket in details.get("buckets") or ())
        cell = row.cell
        if sizes and "bucket_mb" in cell.options:
            others = {k: v for k, v in cell.options.items() if k != "bucket_mb"}
            rest = replace(cell, options=others).apart_from(())
            groups.setdefault((rest, sizes), []).append(name)
    found = []
    for (_, bytes_of_each), alike in groups.items():
        values = sorted(rows[name].cell.options["bucket_mb"] for name in alike)
        if len(values) > 1:
            count = len(bytes_of_each)
            buckets = "one bucket" if count == 1 else f"the same {count} buckets"
            said = " and ".join(map(str, values))
            found.append(
                f"bucket_mb {said} make {buckets} here: no difference to expect"
            )
    return found
