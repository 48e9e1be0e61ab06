"""Launches as numbers: one row for each, in one table of all cells.

A step is divided as the POP metrics do. It ends when its slowest rank is ready. So its
time is the work of a typical rank, what the slowest rank needs longer, and the exchange
that goes on after the slowest rank has joined it. See the POP standard metrics for
parallel performance analysis (https://pop-coe.eu/node/69): load balance and transfer
are those of POP, given as times instead of as ratios.

The warm-up ends with the last change point of the step times. Steps depend on the steps
before them, and a machine changes its pace for other reasons than warm-up. So two
levels are different only if a test that allows for autocorrelation says so, and if they
differ by enough to matter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from rankbench.record import Record, round_of
from rankbench.results.read.records import Launch

if TYPE_CHECKING:
    from rankbench.results.numbers.result_set import Summary

INPUT = ("load", "transfer")
EXCHANGE = "communication"
PIPELINE = "pipeline"

# The loss of single steps scatters: it is the mean of so many steps.
LOSS_STEPS = 20

# Maximum number of points of a curve; with more steps, points are means.
POINTS = 200

# The loss of a single step scatters: a point is the mean of this many points around it.
SMOOTHED = 11

# With fewer steps, levels cannot be told from noise, so the cell's own warm-up is used.
FEWEST_STEPS = 40

# Levels differ if the median steps differ by more than this share.
SHIFT = 0.05

# More steps are reduced to medians of neighbors, so that a launch takes a millisecond.
_BLOCKS = 400
_SHORTEST = 8
_ALPHA = 0.001
_MOST_CORRELATED = 0.95

Values = NDArray[np.float64]

# Column -> what it has of each launch. Numbers are of the steady part of the timed
# window, which begins after the warm-up; without a steady state, of the whole window.
# Times are of the slowest rank of each step, and numbers are missing where a launch
# does not have them.
COLUMNS = {
    "record": "as it was read",
    "directory": "where it lies",
    "launch": "its number",
    "turn": "its round; outside of rounds a key of its own",
    "hosts": "of its ranks, in their order",
    "warmup": "steps before the steady part; at least those that the cell asks for",
    "steady": "whether there is a steady state",
    "throughput": "samples, or tokens, of all replicas per second",
    "step_ms": "mean over steps",
    "step_p95_ms": "95 % of the steps are shorter",
    "step_spread": "interquartile range over the median",
    "epoch_s": "of one epoch's worth of steps",
    "total_s": "of the whole window",
    "memory_mib": "peak of the rank that used most, after the warm-up",
    "setup_memory_mib": "the same until the warm-up ended; older records lack it",
    "accuracy": "share of the held-out samples, 0 to 1",
    "load_ms": "a mean rank waits for data in a step",
    "transfer_ms": "and copies to the device",
    "update_ms": "and does all but wait for data",
    "compute_ms": "and computes and communicates",
    "load_share": "of a step, 0 to 1",
    "input": "ms of a step in which a typical rank waits for data and copies them",
    "computation": "ms in which it computes, and communicates unless `is_separate`",
    "waiting": "ms in which it waits for the slowest, in a pipeline for other stages",
    "exchange": "ms of communication that no computation hides, when all are there",
    "host": "ms in which the GPU idles although nothing is waited for",
    "is_separate": "whether phases separate communication from computation",
    "late": "the rank with the most work and its phase, or None if ranks are alike",
    "late_ms": "its work beyond that of a typical rank, in a step",
    "torch": "version",
    "phase_ms": "phase -> mean over ranks and steps",
    "epochs_s": "of each whole epoch of the window",
    "steps_s": "of each step of the whole window, [steps]",
    "losses": "of every step, warm-up first, [warmup + steps]",
}


def make_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The table of these launches, with `COLUMNS`."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"accuracy": float, "setup_memory_mib": float})


def measure(launches: Sequence[Launch], units: int = 1) -> list[dict[str, Any]]:
    """Reduce launches of a cell that succeeded: their values, by name of `COLUMNS`.

    Args:
        launches: those of a cell.
        units: what throughput counts for each sample; see `Cell.units_per_sample`.

    Raises:
        ValueError: a record or its steps are damaged; the message names the file.
    """
    try:
        return _measure(launches, units)
    except Exception as error:
        if len(launches) > 1:
            # One by one, so that the message names the file.
            return [row for launch in launches for row in measure([launch], units)]
        (launch,) = launches
        if str(launch.directory) in str(error):
            raise
        raise ValueError(f"{launch.path} is damaged: {error!r}") from error


def _measure(launches: Sequence[Launch], units: int) -> list[dict[str, Any]]:
    """Launches of a cell are alike in most, and reduced together as far as they are."""
    records = [launch.record for launch in launches]
    read = [launch.read_steps() for launch in launches]
    kinds = [
        (steps.timed.shape, steps.warmup.shape, *r["phases"], _bubbles(r) is None)
        for steps, r in zip(read, records, strict=True)
    ]
    warmups: list[int | None] = [None] * len(launches)
    for places in _group(kinds):
        parts = (
            np.stack([read[n].warmup for n in places]),
            np.stack([read[n].timed for n in places]),
        )
        found = find_warmups(slowest_rank(*parts), parts[0].shape[2])
        for place, warmup in zip(places, found, strict=True):
            warmups[place] = warmup
    rows: list[dict[str, Any]] = [{}] * len(launches)
    for places in _group(zip(kinds, warmups, strict=True)):
        own = [records[n] for n in places]
        timed = np.stack([read[n].timed for n in places])
        columns = _reduce(own, timed, warmups[places[0]], units)
        for place, *values in zip(places, *columns.values(), strict=True):
            rows[place] = dict(zip(columns, values, strict=True))
    for row, launch, steps in zip(rows, launches, read, strict=True):
        for name in ("throughput", "step_ms"):
            if not 0 < row[name] < math.inf:
                raise ValueError(f"{launch.path} is damaged: {name} is {row[name]}")
        row |= {"directory": launch.directory, "launch": launch.number}
        row["turn"] = round_of(launch.record) or launch.directory
        row["losses"] = steps.losses
    return rows


def _group(keys: Iterable[Hashable]) -> list[list[int]]:
    """The places of equal keys, in order of appearance."""
    found: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        found.setdefault(key, []).append(place)
    return list(found.values())


def _reduce(
    records: Sequence[Record], timed: Values, warmup: int | None, units: int
) -> dict[str, Sequence[Any]]:
    """Columns of launches of one kind.

    Args:
        timed: seconds of [launches, ranks, steps, phases].
        warmup: steps before the steady part; None if there is none.
    """
    fixed = records[0]["warmup"]
    count = 0 if warmup is None else warmup - fixed
    steps, phases = timed[:, :, count:], records[0]["phases"]
    windows = np.array([[rank["window_s"] for rank in r["ranks"]] for r in records])
    # The window holds more than its steps: subtract only those of the warm-up.
    seconds = (windows - timed[:, :, :count].sum(axis=(2, 3))).max(axis=1)
    kept = steps.shape[2]
    samples = np.array([units * r["samples"] / r["steps"] for r in records])
    slowest = slowest_rank(steps)
    low, center, high, late = np.quantile(slowest, (0.25, 0.5, 0.75, 0.95), axis=1)
    means = 1e3 * steps.mean(axis=(1, 2))
    by_phase = [dict(zip(phases, own, strict=True)) for own in means.tolist()]
    load, transfer = (
        np.array([own.get(name, 0.0) for own in by_phase]) for name in INPUT
    )
    update = means.sum(axis=1) - load
    epochs = [[rank["epochs_s"] for rank in r["ranks"]] for r in records]
    accuracy = [r["accuracy"].get("overall") for r in records]
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = {
            "throughput": samples * kept / seconds,
            "step_p95_ms": 1e3 * late,
            "step_spread": (high - low) / center,
            "epoch_s": seconds * [r["steps_per_epoch"] / kept for r in records],
            "total_s": windows.max(axis=1),
            "load_ms": load,
            "transfer_ms": transfer,
            "update_ms": update,
            "compute_ms": update - transfer,
            "load_share": load / (load + update),
        }
    return {
        "record": records,
        "hosts": [[*dict.fromkeys(k["host"] for k in r["ranks"])] for r in records],
        "warmup": [fixed + count] * len(records),
        "steady": [warmup is not None] * len(records),
        **{name: values.tolist() for name, values in numbers.items()},
        "memory_mib": [peak_memory(r["ranks"]) for r in records],
        "setup_memory_mib": [_setup_memory(r["ranks"]) for r in records],
        "accuracy": accuracy,
        **compose(steps, records),
        "torch": [r["software"]["torch"] for r in records],
        "phase_ms": by_phase,
        "epochs_s": [tuple(map(max, zip(*own, strict=False))) for own in epochs],
        "steps_s": list(slowest_rank(timed)),
    }


def compose(steps: Values, records: Sequence[Record]) -> dict[str, list[Any]]:
    """Divide the mean step of launches of one kind: columns, in milliseconds.

    `input`, `computation`, `waiting`, `exchange` and `host` add up to `step_ms`.

    A typical rank is the lower median of the ranks, by their work. With the mean
    instead, half of what a slow rank of two costs would count as computation.

    Args:
        steps: seconds of [launches, ranks, steps, phases].
        records: of the launches.
    """
    phases: Sequence[str] = records[0]["phases"]
    mean, each = 1e3 * steps.mean(axis=2), np.arange(len(steps))
    step = 1e3 * slowest_rank(steps).mean(axis=1)
    shares = [_bubbles(record) for record in records]
    is_pipeline = shares[0] is not None
    late: list[tuple[int, str] | None] = [None] * len(steps)
    late_ms = np.zeros(len(steps))
    if is_pipeline and PIPELINE in phases:
        waiting = (np.array(shares) * mean[:, :, phases.index(PIPELINE)]).mean(axis=1)
        parts, longest, work = mean.mean(axis=1), step, step - waiting
    else:
        own = steps * [name != EXCHANGE for name in phases]
        totals = own.sum(axis=3)
        longest = 1e3 * totals.max(axis=1).mean(axis=1)
        by_rank = 1e3 * totals.mean(axis=2)
        order = np.argsort(by_rank, axis=1, kind="stable")
        typical = order[:, (order.shape[1] - 1) // 2]
        parts, work = mean[each, typical], by_rank[each, typical]
        waiting = longest - work
        # What the latest rank needs more than a typical one, by phase.
        means = own.mean(axis=2)
        latest = means.sum(axis=2).argmax(axis=1)
        late_ms = by_rank[each, latest] - work
        most = (means[each, latest] - means[each, typical]).argmax(axis=1)
        late = [
            None if rank == other else (int(rank), phases[phase])
            for rank, other, phase in zip(latest, typical, most, strict=True)
        ]
    loading = parts[:, [name in INPUT for name in phases]].sum(axis=1)
    idle = np.array([_idle_share(record) for record in records])
    host = np.minimum(work - loading, np.maximum(0.0, idle * step - loading))
    numbers = {
        "step_ms": step,
        "input": loading,
        "computation": work - loading - host,
        "waiting": waiting,
        "exchange": step - longest,
        "host": host,
    }
    # Ranks that share a replica communicate within forward and backward.
    is_separate = [
        mean.shape[1] == 1
        or is_pipeline
        or (EXCHANGE in phases and record["shape"]["replica_ranks"] == 1)
        for record in records
    ]
    columns = {name: values.tolist() for name, values in numbers.items()}
    columns["late_ms"] = late_ms.tolist()
    return {**columns, "is_separate": is_separate, "late": late}


def _bubbles(record: Record) -> list[float] | None:
    """Share of the pipeline in which each rank waits; None if it is none."""
    found = [rank["details"].get("bubble") for rank in record["ranks"]]
    shares = [share for share in found if share is not None]
    return shares if len(shares) == len(found) > 1 else None


def _idle_share(record: Record) -> float:
    """Share of the window in which no kernel ran on a GPU, mean over GPUs."""
    found = (one.get("utilisation_mean") for one in record["devices"])
    idle = [1 - share for share in found if share is not None]
    return float(np.mean(idle)) if idle else 0.0


def slowest_rank(*parts: Values) -> Values:
    """Seconds of each step, [launches, steps], until its slowest rank is done.

    Args:
        parts: seconds of [launches, ranks, steps, phases], one after the other.
    """
    totals = [part.sum(axis=3).max(axis=1) for part in parts]
    return np.concatenate(totals, axis=1)


def memory_for_rank(record: Record, device: str, ranks: int) -> float | None:
    """MiB that a rank may use at most; None if that is not recorded.

    Args:
        ranks: that share the memory of a host.
    """
    places, share = record["hosts"], ranks
    if device == "cuda":
        places, share = [gpu for host in places for gpu in host["gpus"]], 1
    sizes = [one["memory_gib"] for one in places if one.get("memory_gib")]
    return 1024.0 * min(sizes) / share if sizes else None


def peak_memory(ranks: Sequence[Record]) -> float:
    """Peak MiB of the rank that used most: CUDA tensors, or else resident memory."""
    cuda = [rank["memory"]["cuda_allocated_mib"] for rank in ranks]
    present = [mib for mib in cuda if mib is not None]
    resident = [rank["memory"]["rss_peak_mib"] for rank in ranks]
    return float(max(present or resident))


def _setup_memory(ranks: Sequence[Record]) -> float | None:
    setup = [{"memory": rank["memory"].get("setup")} for rank in ranks]
    return None if {"memory": None} in setup else peak_memory(setup)


def steps_to(losses: Values, accuracy: float, goal: str, value: float) -> int | None:
    """Steps from the first of the warm-up until a goal is reached; None if never.

    Args:
        losses, accuracy: of a launch.
        goal: loss: the mean of the last `LOSS_STEPS` steps is not above the value.
            accuracy, which is known after the last step only: not below it.
    """
    if goal == "accuracy":
        return len(losses) if accuracy >= value else None
    width = min(LOSS_STEPS, len(losses))
    means = np.convolve(losses, np.full(width, 1 / width), mode="valid")
    reached = np.flatnonzero(means <= value)
    return int(reached[0]) + width if len(reached) else None


# --- the end of the warm-up ----------------------------------------------------------


def find_warmups(seconds: Values, fixed: int) -> list[int | None]:
    """The number of steps before the steady state of each launch.

    Args:
        seconds: of each step, the warm-up steps that the cell asks for first, of
            [launches, steps].
        fixed: the number of those warm-up steps. It is the result if there are too few
            steps to judge.

    Returns:
        At least `fixed`; None if there is no steady state: the pace that the launch
        ends with holds for less than half of the steps after `fixed`.
    """
    count = seconds.shape[1]
    if count < FEWEST_STEPS:
        return [fixed] * len(seconds)
    size = math.ceil(count / _BLOCKS)
    # The median of each block of neighbors; a remainder at the end is left out.
    blocks = seconds[:, : count // size * size].reshape(len(seconds), -1, size)
    logs = np.log(np.maximum(np.median(blocks, axis=2), np.finfo(float).tiny))
    places = _split(logs)
    return [
        fixed if place is None else _find_warmup(own, place, size, fixed, count)
        for own, place in zip(logs, places, strict=True)
    ]


def _find_warmup(
    logs: Values, first: int, size: int, fixed: int, count: int
) -> int | None:
    """As `find_warmups`, of a launch that has a change point.

    Args:
        logs: of its blocks of `size` steps.
        first: that change point.
        count: number of its steps.
    """
    before, after = _change_points(logs, 0, first), _change_points(logs, first)
    borders = [0, *sorted([*before, first, *after]), len(logs)]
    levels = [float(np.median(logs[a:b])) for a, b in itertools.pairwise(borders)]
    lasting = len(levels) - 1
    while lasting > 0 and _is_alike(levels[lasting - 1], levels[-1]):
        lasting -= 1
    found = max(fixed, borders[lasting] * size)
    return found if 2 * (found - fixed) <= count - fixed else None


def _change_points(values: Values, begin: int, end: int | None = None) -> Iterator[int]:
    """Binary segmentation: the likeliest change point, then those on either side."""
    (place,) = _split(values[None, begin:end])
    if place is None:
        return
    yield begin + place
    yield from _change_points(values, begin, begin + place)
    yield from _change_points(values, begin + place, end)


def _split(values: Values) -> list[int | None]:
    """For each launch the place that separates two levels best; None without one.

    The statistic is the rank sum before each place (Wilcoxon). Its variance is inflated
    for the autocorrelation within the parts. A part that holds several levels has too
    much autocorrelation, so the smaller one counts. That is not conservative: parts
    whose autocorrelation is small by chance are divided too easily. Levels must also
    differ by `SHIFT`. Bonferroni corrects for the places.

    Args:
        values: of [launches, steps].
    """
    count = values.shape[1]
    places = np.arange(_SHORTEST, count - _SHORTEST + 1)
    found: list[int | None] = [None] * len(values)
    if not len(places):
        return found
    ranks = _ranks(values)
    centered = np.cumsum(ranks - (count + 1) / 2, axis=1)[:, places - 1]
    scale = np.sqrt(places * (count - places) / count) * ranks.std(axis=1)[:, None]
    distances = np.abs(centered) / np.maximum(scale, np.finfo(float).tiny)
    best = np.argmax(distances, axis=1)
    scores = distances.max(axis=1)
    # Autocorrelation only makes a change less certain.
    for row in np.flatnonzero(_chance(scores, len(places)) < _ALPHA):
        place = int(places[best[row]])
        before, after = values[row, :place], values[row, place:]
        if _is_alike(float(np.median(before)), float(np.median(after))):
            continue
        lag = min(_autocorrelation(before), _autocorrelation(after))
        score = scores[row] / math.sqrt((1 + lag) / (1 - lag))
        if _chance(score, len(places)) < _ALPHA:
            found[row] = place
    return found


def _chance(score: Any, places: int) -> Any:
    return 2 * special.ndtr(-score) * places


def _is_alike(level: float, other: float) -> bool:
    return abs(level - other) <= math.log1p(SHIFT)


def _autocorrelation(values: Values) -> float:
    """Rank autocorrelation of neighbors, 0 to 1."""
    (ranks,) = _ranks(values[None])
    ranks = ranks - ranks.mean()
    square = float(ranks @ ranks)
    lag = float(ranks[1:] @ ranks[:-1]) / square if square else 0.0
    return min(max(lag, 0.0), _MOST_CORRELATED)


def _ranks(values: Values) -> Values:
    """Ranks of each row from 1; equal values share their mean rank."""
    return pd.DataFrame(values).rank(axis=1).to_numpy()


# --- curves ---------------------------------------------------------------------------


def find_curve(point: Summary, over: str = "samples") -> tuple[Values, Values]:
    """Progress and loss of the launches of a cell that is ok.

    Returns:
        samples of all replicas, or seconds, at each point, [points]; loss, running
        means, [launches, points], NaN where it is no number. A point is a step, or the
        mean of a few.
    """
    record = point.records[0]
    steps = np.stack(point.launches["losses"].tolist())
    steps[~np.isfinite(steps)] = np.nan
    each = record["samples"] / record["steps"]
    if over == "seconds":
        # The first warm-up steps take longer, which a loss curve should not show.
        each = point.counted["total_s"].mean() / record["steps"]
    seen = each * np.arange(1, steps.shape[1] + 1)
    parts = np.array_split(np.arange(len(seen)), min(len(seen), POINTS))
    begins, sizes = np.array([[part[0], len(part)] for part in parts]).T
    losses = _smooth(np.add.reduceat(steps, begins, axis=1) / sizes)
    return np.add.reduceat(seen, begins) / sizes, losses


def read_curve(point: Summary, seconds: float) -> tuple[float, float, float] | None:
    """Loss after some time: median of the launches, the lowest, and the highest.

    Returns:
        What the curve shows there; None where a loss is no number.
    """
    seen, losses = find_curve(point, "seconds")
    ends = np.median(losses, axis=0), losses.min(axis=0), losses.max(axis=0)
    middle, low, high = (float(np.interp(seconds, seen, end)) for end in ends)
    return (middle, low, high) if np.isfinite([middle, low, high]).all() else None


def _smooth(losses: Values) -> Values:
    """Running means over the points, [launches, points]; NaN stays NaN."""
    if losses.shape[1] <= 2 * SMOOTHED:
        return losses
    # At both ends there are fewer points to average.
    weights = np.ones(SMOOTHED)
    count = np.convolve(np.ones(losses.shape[1]), weights, mode="same")
    rows = [np.convolve(launch, weights, mode="same") / count for launch in losses]
    return np.stack(rows)
