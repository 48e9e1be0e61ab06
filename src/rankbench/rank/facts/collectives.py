"""Measures how fast the ranks communicate: a short sweep of a strategy's operations.

The sweep runs after the timed window, in the same processes and over the same
connections. So it shows the communication speed that this launch had available.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rankbench.rank.runtimes import Runtime

# Bytes of a call, 1 KiB to 16 MiB: latency dominates small calls, bandwidth large ones.
SIZES = tuple(4**k for k in range(5, 13))

# Repetitions of each size, and the seconds that they may take together. There are fewer
# repetitions if the time does not suffice, but not fewer than FEWEST.
REPEATS, BUDGET = 10, 0.3
FEWEST = 3

# The sweep stops before a size whose call would take longer than this.
LONGEST = 1.0  # seconds


def sweep(
    operations: Mapping[str, float | None], runtime: Runtime, device: torch.device
) -> list[dict[str, Any]]:
    """Time each operation at each size; all ranks call it together.

    Args:
        operations: see `Strategy.operations`.
        runtime: the runtime that the ranks have joined.
        device: device of the tensors.

    Returns:
        For each operation and size: operation, times_weights, bytes (of the whole
        tensor, as in nccl-tests) and seconds (of this rank, for each repetition). The
        duration of a call is that of its slowest rank, because a late rank waits less.
    """
    return [
        point
        for operation, times in operations.items()
        for point in _sweep(operation, times, runtime, device)
    ]


def _sweep(
    operation: str, times: float | None, runtime: Runtime, device: torch.device
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for size in SIZES:
        call = runtime.operation(operation, size, device)
        _time(call, device)  # creates connections and buffers
        # All ranks must make the same number of calls.
        longest = runtime.largest(_time(call, device))
        repeats = max(FEWEST, min(REPEATS, int(BUDGET / longest)))
        seconds = [_time(call, device) for _ in range(repeats)]
        found.append(
            {
                "operation": operation,
                "times_weights": times,
                "bytes": size,
                "seconds": seconds,
            }
        )
        if longest * 4 > LONGEST:
            break
    return found


def _time(call: Callable[[], None], device: torch.device) -> float:
    begun = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun
