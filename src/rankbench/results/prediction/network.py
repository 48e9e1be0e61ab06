"""How long an operation takes on more ranks than it was measured on.

Alpha-beta model: a call takes a latency for each step of the algorithm, and the time of
its bytes. In a ring of P ranks, an all-reduce has 2 (P - 1) steps and each rank sends
2 (P - 1) / P of the bytes; a reduce-scatter or an all-gather has half of both. Along a
binomial tree, a broadcast has ceil(log2 P) steps, and its bytes pass the root's link as
often (Thakur, Rabenseifner and Gropp, Optimization of Collective Communication
Operations in MPICH, IJHPCA 19, 2005). Two trees at once do an all-reduce in 2 log2 P
steps with the volume of a ring (Sanders, Speck and Traeff, Two-tree algorithms for full
bandwidth broadcast, reduction and scan, Parallel Computing 35, 2009). Of several
algorithms the one counts that fits best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was measured: a tensor of so many bytes on so many ranks."""

    operation: str
    ranks: int
    size: float
    seconds: float


# Of an algorithm, as functions of the number of ranks: how many messages follow each
# other, and how often the bytes pass the slowest link.
Shares = tuple[Callable[[int], float], Callable[[int], float]]

_HALF_RING: Shares = (lambda p: p - 1, lambda p: (p - 1) / p)
_ALGORITHMS: Mapping[str, Sequence[Shares]] = {
    "all_reduce": (
        (lambda p: 2 * (p - 1), lambda p: 2 * (p - 1) / p),
        (lambda p: 2 * math.log2(p), lambda p: 2 * (p - 1) / p),
    ),
    "reduce_scatter": (_HALF_RING,),
    "all_gather": (_HALF_RING,),
    "broadcast": (
        (lambda p: math.ceil(math.log2(p)), lambda p: math.ceil(math.log2(p))),
        (lambda p: p - 1, lambda p: 1.0),
    ),
    "send_recv": ((lambda p: 1.0, lambda p: 1.0),),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """The fitted model of one operation.

    Attributes:
        shares: of its algorithm.
        alpha: seconds of a step.
        beta: seconds of a byte on the slowest link.
        rest: bytes, ascending -> log of measured over fitted time, median over the
            measured numbers of ranks: what the two numbers do not describe.
    """

    shares: Shares
    alpha: float
    beta: float
    rest: Mapping[float, float]

    def seconds(self, size: float, ranks: int) -> float:
        """Of a call; 0 on a single rank."""
        if ranks < 2 or size <= 0:
            return 0.0
        steps, volume = self.shares
        fitted = self.alpha * steps(ranks) + self.beta * volume(ranks) * size
        known = np.log2(list(self.rest))
        rest = np.interp(math.log2(size), known, list(self.rest.values()))
        return float(fitted * math.exp(rest))


def fit_network(calls: Sequence[Call]) -> dict[str, Operation]:
    """Fit each operation that has a known algorithm."""
    names = dict.fromkeys(call.operation for call in calls)
    return {
        name: min(
            (
                _fit(shares, [call for call in calls if call.operation == name])
                for shares in _ALGORITHMS[name]
            ),
            key=lambda fitted: fitted[0],
        )[1]
        for name in names
        if name in _ALGORITHMS
    }


def _fit(shares: Shares, calls: Sequence[Call]) -> tuple[float, Operation]:
    """The sum of squared relative errors, and the fitted model."""
    # Relative errors count, so that small calls matter as much as large ones.
    steps, volume = shares
    terms = [(steps(c.ranks), volume(c.ranks) * c.size) for c in calls]
    known = np.array(terms) / np.array([[call.seconds] for call in calls])
    (alpha, beta), error = optimize.nnls(known, np.ones(len(calls)))
    rest: dict[float, list[float]] = {}
    for call, fitted in zip(calls, known @ (alpha, beta), strict=True):
        rest.setdefault(call.size, []).append(-math.log(fitted))
    medians = {size: float(np.median(rest[size])) for size in sorted(rest)}
    return float(error), Operation(shares, float(alpha), float(beta), medians)
