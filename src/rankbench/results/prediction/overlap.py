"""What of the communication remains after backward, if the buckets go one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Communication within training takes between so much and so much of a sweep's time.
_LEAST, _MOST = 1e-3, 1e3


@dataclass(frozen=True, slots=True)
class Bucket:
    """Bytes that are sent together.

    Attributes:
        ready: seconds after the start of the computation that hides communication.
        takes: seconds of its communication, with the network to itself.
    """

    ready: float
    takes: float


def exposed(buckets: Sequence[Bucket], computing: float, slowdown: float) -> float:
    """Seconds from the end of the computation until the last bucket has arrived.

    Buckets are sent in the order in which they are ready, one after the other, as DDP
    does (Li and others, PyTorch Distributed, VLDB 13, 2020).

    Args:
        computing: seconds of the computation that hides communication.
        slowdown: how much longer communication takes beside computation.
    """
    end = 0.0
    for bucket in sorted(buckets, key=lambda one: one.ready):
        end = max(end, bucket.ready) + slowdown * bucket.takes
    return max(0.0, end - computing)


def find_slowdown(
    buckets: Sequence[Bucket], computing: float, measured: float
) -> float:
    """The slowdown with which `exposed` gives what was measured, by bisection."""
    low, high = _LEAST, _MOST
    for _ in range(60):
        middle = math.sqrt(low * high)
        if exposed(buckets, computing, middle) < measured:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
