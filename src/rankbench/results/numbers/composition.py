"""What the step of a launch is made of, as the POP metrics divide it.

A step ends when its slowest rank is ready. So its time is the work of a typical rank,
what the slowest rank needs longer, and the exchange that goes on after the slowest rank
has joined it. See the POP standard metrics for parallel performance analysis
(https://pop-coe.eu/node/69): load balance and transfer are those of POP, given as times
instead of as ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankbench.record import Record

INPUT = ("load", "transfer")
EXCHANGE = "communication"
PIPELINE = "pipeline"


@dataclass(frozen=True, slots=True)
class Composition:
    """The mean step of a launch, in milliseconds; the parts add up to it.

    Attributes:
        step: until the slowest rank is ready.
        input: a typical rank waits for data and copies them.
        computation: a typical rank computes. If `is_separate` is false, it communicates
            within this time, too.
        waiting: a typical rank waits for the slowest one, or in a pipeline for the
            other stages.
        exchange: communication that no computation hides, after the slowest rank has
            joined it.
        host: the GPU idles although neither data nor ranks are waited for.
        is_separate: whether the phases separate communication from computation.
        late: the rank with the most work, and the phase in which it exceeds a typical
            rank most; None if the ranks are alike or wait for no one.
    """

    step: float
    input: float
    computation: float
    waiting: float
    exchange: float
    host: float
    is_separate: bool
    late: tuple[int, str] | None


def compose(steps: NDArray[np.float64], record: Record) -> Composition:
    """Divide the mean step of a launch.

    A typical rank is the lower median of the ranks, by their work. With the mean
    instead, half of what a slow rank of two costs would count as computation.

    Args:
        steps: seconds of [ranks, steps, phases].
        record: of the launch.
    """
    phases: Sequence[str] = record["phases"]
    mean = 1e3 * steps.mean(axis=1)
    at = {name: i for i, name in enumerate(phases)}
    step = float(1e3 * steps.sum(axis=2).max(axis=0).mean())
    # Share of the pipeline in which each rank waits, if it is one.
    shares = [(rank.get("details") or {}).get("bubble") for rank in record["ranks"]]
    is_pipeline = None not in shares and len(shares) > 1
    if is_pipeline and PIPELINE in at:
        waiting = float((np.array(shares) * mean[:, at[PIPELINE]]).mean())
        parts, late = mean.mean(axis=0), None
        longest = step
        work = step - waiting
    else:
        own = steps.copy()
        if EXCHANGE in at:
            own[:, :, at[EXCHANGE]] = 0
        totals = own.sum(axis=2)
        longest = float(1e3 * totals.max(axis=0).mean())
        by_rank = 1e3 * totals.mean(axis=1)
        typical = int(np.argsort(by_rank, kind="stable")[(len(by_rank) - 1) // 2])
        parts = mean[typical]
        work = float(by_rank[typical])
        waiting = longest - work
        # What the latest rank needs more than a typical one, by phase.
        means = own.mean(axis=1)
        latest = int(means.sum(axis=1).argmax())
        phase = phases[int((means[latest] - means[typical]).argmax())]
        late = None if latest == typical else (latest, phase)
    loading = float(sum(parts[at[name]] for name in INPUT if name in at))
    # Shares of the window in which no kernel ran on a GPU.
    idle = [
        1 - device["utilisation_mean"]
        for device in record.get("devices") or []
        if device.get("utilisation_mean") is not None
    ]
    idle_share = float(np.mean(idle)) if idle else 0.0
    host = min(work - loading, max(0.0, idle_share * step - loading))
    return Composition(
        step=step,
        input=loading,
        computation=work - loading - host,
        waiting=waiting,
        exchange=step - longest,
        host=host,
        # Ranks that share a replica communicate within forward and backward.
        is_separate=len(mean) == 1
        or is_pipeline
        or (EXCHANGE in phases and record["shape"]["replica_ranks"] == 1),
        late=late,
    )
