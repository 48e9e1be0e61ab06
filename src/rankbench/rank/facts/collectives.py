"""How fast the ranks can exchange bytes: a short sweep of what a strategy exchanges.

It runs after the timed window, in the same processes over the same connections: what it
finds is what that launch had at its disposal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rankbench.rank.runtimes import Runtime

# Bytes of a call, from what is all latency to what is all bandwidth: 1 KiB to 16 MiB.
SIZES = tuple(4**k for k in range(5, 13))

# A size is repeated so often, less where that would take longer than so many seconds.
REPEATS, BUDGET = 10, 0.3
FEWEST = 3

# No size is tried that would take longer than this, by the one before it.
LONGEST = 1.0  # seconds


def sweep(
    operations: Mapping[str, float | None], runtime: Runtime, device: torch.device
) -> list[dict[str, Any]]:
    """Time the operations by size; all ranks call it together.

    Args:
        operations: of the strategy; see `Strategy.operations`.
        runtime: what carries the bytes; the ranks have joined it.
        device: where the tensors lie.

    Returns:
        For each operation and size: operation, times_weights, bytes (of the whole
        tensor, as in nccl-tests) and seconds (of this rank, one for each repeat). The
        slowest rank of a call counts: one that comes late waits less.
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
        _time(call, device)  # connections and buffers are made
        # Ranks must agree on how often they call.
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
