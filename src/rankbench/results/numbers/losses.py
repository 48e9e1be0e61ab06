"""Why a row is slower than its base promises: the difference of their steps, divided.

With efficiency 1, a step takes the time of the base's step, times the samples of this
step over those of the base's, over the devices. What it takes longer is the loss. Each
part of a step (`measures.py`) contributes what it takes longer than the same part of
the base's step. All are means over rounds, so the parts add up to the loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from rankbench.results.numbers.exchange import find_sweeps
from rankbench.results.numbers.measures import Composition
from rankbench.results.numbers.statistics import Estimate, mean
from rankbench.results.numbers.summary import Summary

# In the order in which documents show them.
PARTS = ("computation", "waiting", "transfer", "input", "host", "unexplained")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a row loses against its base; times in milliseconds.

    Attributes:
        cell, base: ids.
        step: mean over launches.
        promised: the step with efficiency 1.
        lost: `step` - `promised`, as a mean over rounds.
        parts: name in `PARTS` -> its share of `lost`; they add up to it.
        exchange: how long the bytes of a step take by themselves, from the sweep of the
            same row; None if there is no sweep, or if it is unknown what is exchanged.
        is_separate: whether communication is separate from computation.
        late: the slow rank, and the phase in which it is slow, if most launches agree.
    """

    cell: str
    base: str
    step: float
    promised: float
    lost: Estimate
    parts: Mapping[str, Estimate]
    exchange: float | None
    is_separate: bool
    late: tuple[int, str] | None

    @property
    def is_certain(self) -> bool:
        """Whether anything is lost at all."""
        return self.lost.low is not None and self.lost.low > 0


def find_losses(summaries: Sequence[Summary]) -> list[Loss]:
    """The losses of the rows on several devices that are compared with a base."""
    by_id = {summary.id: summary for summary in summaries if summary.measures}
    return [
        _find(summary, by_id[base.id])
        for summary in by_id.values()
        if (base := summary.efficiency_base) and base.id != summary.id
        if summary.devices > 1 and "efficiency" in summary.numbers
    ]


def _find_exchange(summary: Summary) -> float | None:
    """Milliseconds of the exchange of a step by itself; None if it is not known."""
    sweeps = find_sweeps(summary)
    model = summary.launches[0].record.get("model")
    if not sweeps or not model or any(s.times_weights is None for s in sweeps):
        return None
    size = model["parameter_bytes"]
    times = ((sweep.times_weights or 0.0) * sweep.seconds_for(size) for sweep in sweeps)
    return 1e3 * sum(times)


def _find(summary: Summary, base: Summary) -> Loss:
    exchange = _find_exchange(summary)
    # The step that efficiency 1 promises, over that of the base.
    samples = [
        row.launches[0].record["shape"]["global_batch"] for row in (summary, base)
    ]
    factor = samples[0] / samples[1] / summary.devices * base.devices
    above = {one.turn: _divide(one.parts, exchange) for one in summary.counted}
    below = {
        one.turn: {name: factor * ms for name, ms in _divide(one.parts, None).items()}
        for one in base.counted
    }
    rounds = [turn for turn in above if turn in below]
    # The slow rank that more than half of the launches name.
    late = Counter(launch.parts.late for launch in summary.counted).most_common(1)[0]
    return Loss(
        cell=summary.id,
        base=base.id,
        step=summary.numbers["step_ms"].value,
        promised=factor * base.numbers["step_ms"].value,
        lost=_differ(above, below, rounds, PARTS),
        parts={name: _differ(above, below, rounds, [name]) for name in PARTS},
        exchange=exchange,
        is_separate=all(launch.parts.is_separate for launch in summary.measures),
        late=late[0] if 2 * late[1] > len(summary.counted) else None,
    )


def _divide(parts: Composition, exchange: float | None) -> dict[str, float]:
    """The parts of a step; of the exchange, what its bytes do not explain is apart."""
    known = parts.exchange if exchange is None else min(exchange, parts.exchange)
    return {
        "computation": parts.computation,
        "waiting": parts.waiting,
        "transfer": known,
        "input": parts.input,
        "host": parts.host,
        "unexplained": parts.exchange - known,
    }


def _differ(
    above: Mapping[Hashable, Mapping[str, float]],
    below: Mapping[Hashable, Mapping[str, float]],
    rounds: Sequence[Hashable],
    names: Sequence[str],
) -> Estimate:
    """Mean over rounds of the difference of the sum of these parts."""
    return mean(
        [sum(above[turn][n] - below[turn][n] for n in names) for turn in rounds]
    )
