"""DDP's own timers beside ours, for the steps that DDP sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import Note
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.read.launches import Launch

# DDP samples each of its first steps, then one in a hundred.
FIRST, EVERY = 10, 100

# Our phase, and the timers of DDP that are nearest to it.
_PAIRS = {
    "forward": ("forward", ("forward_ms",)),
    "backward": ("backward", ("backward_ms",)),
    "exposed communication": ("communication", ("communication_ms", "overlap_ms")),
    "all communication": ("", ("communication_ms",)),
}

EXPLAINED = (
    Note(
        "sampled",
        "DDP times each of its first 10 steps and then one step in 100, warm-up "
        "included. ours_ms is our mean over the same steps; window_ms is our mean over "
        "the timed window, which the other tables show.",
    ),
    Note("forward", "DDP's ends with the model's output; ours includes the loss."),
    Note(
        "backward",
        "DDP's begins with the model's output, so that it includes the loss. It ends "
        "when the whole graph is done. Ours ends with this rank's last gradient.",
    ),
    Note(
        "exposed communication",
        "DDP's is its communication time without the part that overlaps with backward. "
        "Ours begins a little earlier, at the last gradient, and includes filling the "
        "last bucket and sending it off.",
    ),
    Note(
        "all communication",
        "from the first bucket that is ready until the last one is averaged and copied "
        "back into the gradients. It overlaps with backward, and waiting for slower "
        "ranks is part of it. We have no phase for it.",
    ),
    Note(
        "accumulation",
        "where gradients accumulate, DDP sees the last part of a step.",
    ),
)


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank of a launch: what DDP says, and our seconds of its sampled steps."""

    timers: dict[str, float]
    sampled: dict[str, float]
    window: dict[str, float]
    samples: int


def make(found: ResultSet) -> Content | None:
    """Means over ranks and launches: a row for each phase of each cell with timers.

    Raises:
        ValueError: a launch's steps are damaged; the message names the file.
    """
    rows = []
    for summary in found.summaries:
        ranks = [rank for one in summary.row.launches for rank in _read_ranks(one)]
        if ranks:
            rows += [{"cell": summary.row.id, **row} for row in _rows(ranks)]
    return Content(rows=rows, notes=EXPLAINED) if rows else None


def sampled_steps(last: int) -> list[int]:
    """The steps that DDP has sampled, counted from 0; `last` counts from 1."""
    first = range(1, min(FIRST, last) + 1)
    return [step - 1 for step in (*first, *range(EVERY, last + 1, EVERY))]


def _rows(ranks: Sequence[_Rank]) -> Iterable[dict[str, Any]]:
    for name, (phase, (timer, *without)) in _PAIRS.items():
        if not all({timer, *without} <= rank.timers.keys() for rank in ranks):
            continue
        theirs = [
            rank.timers[timer] - sum(rank.timers[one] for one in without)
            for rank in ranks
        ]
        yield {
            "phase": name,
            "ours_ms": _mean([rank.sampled.get(phase, np.nan) for rank in ranks]),
            "ddp_ms": _mean(theirs),
            "window_ms": _mean([rank.window.get(phase, np.nan) for rank in ranks]),
            "sampled": min(rank.samples for rank in ranks),
        }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _read_ranks(launch: Launch) -> list[_Rank]:
    """The ranks of a launch that have timers of DDP."""
    record = launch.record
    found = [rank.get("details", {}).get("ddp_timers") for rank in record["ranks"]]
    if not all(found):
        return []
    read = launch.read_steps()
    window = read.timed
    steps = np.concatenate([read.warmup, window], axis=1)
    phases = record["phases"]
    ranks = []
    for timers, whole, timed in zip(found, steps, window, strict=True):
        last = int(timers["iteration"])
        if last > len(whole):
            raise ValueError(
                f"{launch.path} is damaged: DDP timed step {last} of {len(whole)}"
            )
        chosen = sampled_steps(last)
        ranks.append(
            _Rank(
                timers,
                _means(phases, whole[chosen]),
                _means(phases, timed),
                len(chosen),
            )
        )
    return ranks


def _means(phases: Sequence[str], seconds: NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(phases, (1e3 * seconds.mean(axis=0)).tolist(), strict=True))


SECTION = Section(
    name="ddp-timers",
    title="DDP's own timers",
    reading="Milliseconds of a step by our clock and by DDP's, over the same steps.",
    order=90,
    make=make,
    columns={
        "cell": (str, "cell"),
        "phase": (str, "phase"),
        "ours_ms": (float, "ours (ms)"),
        "ddp_ms": (float, "DDP's (ms)"),
        "window_ms": (float, "whole window (ms)"),
        "sampled": (int, "sampled steps"),
    },
)
