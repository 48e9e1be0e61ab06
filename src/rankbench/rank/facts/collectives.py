"""Measures how fast the ranks communicate: a short sweep of a strategy's operations.

The sweep runs after the timed window, in the same processes and over the same
connections. So it shows the communication speed that this launch had available.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from rankbench.rank.strategies._readiness import between, stamp
from rankbench.rank.strategies.base import Operation, World
from rankbench.rank.world.devices import Runtime, wait_for_devices

# Bytes of a call: latency dominates small calls, bandwidth large ones. CPUs get up to
# 16 MiB. GPUs get up to 1 GiB, because 16 MiB do not saturate NVLink or InfiniBand.
SIZES = {
    "cpu": tuple(4**k for k in range(5, 13)),
    "cuda": tuple(4**k for k in range(5, 16)),
}
# On a GPU so many calls follow each other within one time, if they take no longer than
# BATCH together: the launch of a single small call takes longer than the call.
CALLS, BATCH = 20, 0.02

# Tensors of a call, at most: the whole, what is received, and a part.
TENSORS = 3

# Repetitions of each size, and the seconds that they may take together. There are fewer
# repetitions if the time does not suffice, but not fewer than FEWEST.
REPEATS, BUDGET = 10, 0.3
FEWEST = 3

# The sweep stops before a size whose call would take longer than this.
LONGEST = 1.0  # seconds


def sweep(
    operations: Iterable[Operation], runtime: Runtime, world: World, weight_bytes: int
) -> list[dict[str, Any]]:
    """Time each operation at each size; all ranks call it together.

    Args:
        operations: of a step, on all ranks the same, except for groups and bytes.
        runtime: the runtime that the ranks have joined.
        world: the place of this rank, and the device of the tensors.
        weight_bytes: of the model.

    Returns:
        For each operation and size: operation, ranks (if not all), times_weights
        (bytes of a step over those of the weights, or None), bytes (of the whole
        tensor, as in nccl-tests) and seconds (of a call on this rank, for each
        repetition; on a GPU the mean of several calls). The duration of a call is that
        of its slowest rank, because a late rank waits less.
    """
    found: list[dict[str, Any]] = []
    device = world.device
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()  # else memory that training has left is not free
    for operation in _choose(operations, runtime, world):
        ranks = operation.ranks(world)
        times = operation.bytes and operation.bytes / weight_bytes
        for size in SIZES[device.type]:
            # All ranks must make the same calls.
            if on_gpu:
                free = torch.cuda.mem_get_info(device)[0]
                if runtime.largest(TENSORS * size > free):
                    break
            call = runtime.operation(operation.name, size, device, operation.group)
            _time(call, device)  # creates connections and buffers
            longest = runtime.largest(_time(call, device))
            repeats = max(FEWEST, min(REPEATS, int(BUDGET / longest)))
            calls = max(1, min(CALLS, int(BATCH / longest))) if on_gpu else 1
            found.append(
                {
                    "operation": operation.name,
                    **({"ranks": ranks} if ranks < world.size else {}),
                    "times_weights": times,
                    "bytes": size,
                    "seconds": [_time(call, device, calls) for _ in range(repeats)],
                }
            )
            if longest * 4 > LONGEST:
                break
    return found


def _choose(
    operations: Iterable[Operation], runtime: Runtime, world: World
) -> list[Operation]:
    """The operations that matter: not those with a hundredth of the bytes of a step.

    All ranks choose the same, by the rank that sends most. Of several that differ in
    their groups only, the first is timed, for the bytes of all.
    """
    chosen: dict[tuple[str, int], Operation] = {}
    for operation in operations:
        key = (operation.name, operation.ranks(world))
        if before := chosen.get(key):
            known = before.bytes is not None and operation.bytes is not None
            total = (before.bytes or 0) + (operation.bytes or 0)
            chosen[key] = replace(before, bytes=total if known else None)
        elif operation.ranks(world) > 1:
            chosen[key] = operation
    sent = [runtime.largest(operation.bytes or 0) for operation in chosen.values()]
    return [
        operation
        for operation, size in zip(chosen.values(), sent, strict=True)
        if operation.bytes is None or size > max(sent) / 100
    ]


def _time(call: Callable[[], None], device: torch.device, calls: int = 1) -> float:
    """Return the mean seconds of calls that follow each other."""
    begin = stamp(device)
    for _ in range(calls):
        call()
    end = stamp(device)
    wait_for_devices((device,))
    return between(begin, end) / calls
