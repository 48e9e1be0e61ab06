"""Predict the step of a series from what its steps are made of.

A model of a series is fitted to its measured scales and then gives the seconds of a
step of any other shape. Each says in `find_model` what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from rankbench.cell import Shape
from rankbench.partition import split_evenly
from rankbench.results.prediction.network import Operation, fit_network
from rankbench.results.prediction.overlap import Bucket, exposed, find_slowdown
from rankbench.results.prediction.pipeline import SCHEDULES, find_hop, step_seconds
from rankbench.results.prediction.scale import Scale

# Without recorded buckets, gradients count as becoming ready in so many equal parts.
_PARTS = 8


class Model(Protocol):
    """A fitted series."""

    def seconds(self, shape: Shape) -> float:
        """Of a step of this shape."""


def find_model(scales: Sequence[Scale]) -> Model | str:
    """Fit what explains these scales, or say what is missing for it.

    Args:
        scales: of one series, by ascending devices; at least two.
    """
    several = [one for one in scales if one.shape.ranks > 1]
    if not several:
        return "no row has several ranks"
    if several[-1].stages:
        return _Pipeline.fit(several)
    if any(one.shape.replica_ranks > 1 for one in scales):
        return "its ranks share replicas, and what they exchange is not recorded"
    if not all(one.operations and one.weights for one in several):
        return "there is no sweep of its operations (collectives: true measures it)"
    if not all(one.is_separate for one in several) and several == list(scales):
        return "its phases contain communication, and no row of one rank is without"
    return _DataParallel.fit(scales)


@dataclass(frozen=True)
class _DataParallel:
    """Replicas that exchange a volume equal to the weights, a fixed number of times.

    Attributes:
        work: seconds of a step without samples, and of a sample of a rank.
        late: what ranks need more or less than a typical one, sorted.
        measured: the scale whose buckets and window the others resemble.
        slowdown: how much longer communication takes in training than in the sweep.
    """

    work: tuple[float, float]
    late: NDArray[np.float64]
    measured: Scale
    network: dict[str, Operation]
    slowdown: float

    @classmethod
    def fit(cls, scales: Sequence[Scale]) -> _DataParallel:
        several = [one for one in scales if one.shape.ranks > 1]
        pure = [one for one in scales if one.is_separate or one.shape.ranks == 1]
        late = np.sort(np.concatenate([one.late for one in several]))
        network = fit_network([call for one in several for call in one.calls])
        start = cls(_fit_work(pure), late, several[-1], network, 1.0)
        slowdowns = [start._slowdown_of(one) for one in several]
        return cls(start.work, late, several[-1], network, float(np.median(slowdowns)))

    def seconds(self, shape: Shape) -> float:
        buckets, computing = self._buckets(shape)
        return (
            self._alone(shape)
            + expected_maximum(self.late, shape.ranks)
            + exposed(buckets, computing, self.slowdown)
        )

    def _alone(self, shape: Shape) -> float:
        """Seconds of a typical rank without communication."""
        return self.work[0] + self.work[1] * shape.rank_batch

    def _slowdown_of(self, scale: Scale) -> float:
        left = scale.exposed
        if not scale.is_separate:
            late = expected_maximum(self.late, scale.shape.ranks)
            left = scale.step - self._alone(scale.shape) - late
        return find_slowdown(*self._buckets(scale.shape), max(0.0, left))

    def _buckets(self, shape: Shape) -> tuple[list[Bucket], float]:
        """What is sent in a step of this shape, and the time that may hide it."""
        measured = self.measured
        stretch = self._alone(shape) / self._alone(measured.shape)
        pieces = [(ready, size / measured.weights) for size, ready in measured.buckets]
        if not pieces:
            pieces = [
                (measured.window * (i + 1) / _PARTS, 1 / _PARTS) for i in range(_PARTS)
            ]
        computing = max(ready for ready, _ in pieces)
        buckets = [
            Bucket(stretch * ready, self._takes(share, shape.ranks))
            for ready, share in pieces
        ]
        return buckets, stretch * computing

    def _takes(self, share: float, ranks: int) -> float:
        return sum(
            times * self.network[name].seconds(share * self.measured.weights, ranks)
            for name, times in self.measured.operations.items()
            if name in self.network
        )


@dataclass(frozen=True)
class _Pipeline:
    """Stages of consecutive parts, as its own strategy would split them.

    Attributes:
        measured: the largest scale.
        hop: seconds from one stage to the next.
    """

    measured: Scale
    hop: float

    @classmethod
    def fit(cls, scales: Sequence[Scale]) -> _Pipeline | str:
        stages = [one.stages for one in scales]
        last = stages[-1]
        if last is None or None in stages or not last.costs:
            return "what each part of its model costs is not recorded"
        if last.schedule not in SCHEDULES:
            return f"the schedule {last.schedule} is not modelled"
        hops = []
        for one in scales:
            bare = cls(one, 0.0)
            hops.append(
                find_hop(lambda hop, bare=bare: bare._with(hop), one.step)  # type: ignore[misc]
            )
        return cls(scales[-1], float(np.median(hops)))

    def _with(self, hop: float) -> float:
        return _Pipeline(self.measured, hop).seconds(self.measured.shape)

    def seconds(self, shape: Shape) -> float:
        stages = self.measured.stages
        assert stages is not None
        counts = (
            stages.counts
            if shape.ranks == self.measured.shape.ranks
            else split_evenly(stages.costs, shape.ranks)
        )
        ends = np.cumsum(counts)
        shares = [
            sum(stages.costs[end - count : end]) / sum(stages.costs)
            for count, end in zip(counts, ends, strict=True)
        ]
        return (
            step_seconds(
                [stages.forward * share for share in shares],
                [stages.backward * share for share in shares],
                stages.microbatches,
                self.hop,
                stages.schedule,
            )
            + stages.update * self.measured.shape.ranks / shape.ranks
        )


def _fit_work(scales: Sequence[Scale]) -> tuple[float, float]:
    """Seconds of a step without samples, and of a sample; neither is negative."""
    samples = np.array([float(one.shape.rank_batch) for one in scales])
    seconds = np.array([one.work for one in scales])
    if len(set(samples)) == 1:
        return 0.0, float(np.median(seconds / samples))
    known = np.stack([np.ones_like(samples), samples], axis=1) / seconds[:, None]
    (fixed, each), _ = optimize.nnls(known, np.ones_like(samples))
    return float(fixed), float(each)


def expected_maximum(ordered: NDArray[np.float64], draws: int) -> float:
    """Mean of the largest of so many draws from these values, in ascending order.

    The largest is at most the i-th of n values with probability (i / n)^draws.
    """
    count = len(ordered)
    shares = (np.arange(count + 1) / count) ** draws
    return float(ordered @ np.diff(shares))
