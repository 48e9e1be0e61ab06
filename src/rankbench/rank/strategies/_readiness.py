"""When each gradient is ready: what overlap of communication and backward rests on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

# Extra steps, of which the median counts.
PROBES = 3


def time_gradients(
    parameters: Sequence[nn.Parameter],
    backward: Callable[[], Callable[[], None]],
    device: torch.device,
) -> list[float]:
    """Seconds from the start of backward until each gradient is ready, median.

    Args:
        parameters: each of them gets a gradient.
        backward: runs forward and returns a function that runs backward.
        device: device of the parameters.
    """
    stamps: dict[int, Any] = {}
    hooks = [
        parameter.register_post_accumulate_grad_hook(
            lambda _, index=index: stamps.update({index: stamp(device)})
        )
        for index, parameter in enumerate(parameters)
    ]
    steps = []
    for _ in range(PROBES):
        run = backward()
        begin = stamp(device)
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        steps.append([between(begin, stamps[i]) for i in range(len(parameters))])
    for hook in hooks:
        hook.remove()
    found: list[float] = torch.tensor(steps, dtype=torch.float64).median(0)[0].tolist()
    return found


def bucket_times(
    logged: Mapping[str, Any], sizes: Sequence[int], ready: Sequence[float]
) -> list[dict[str, float]]:
    """What DDP sends together: bytes, and the seconds until its last gradient is ready.

    Args:
        logged: what DDP says of itself; [] if it does not say how it fills buckets.
        sizes: bytes of each gradient, in the order of the parameters.
        ready: as `time_gradients` gives.
    """
    text = str(logged.get("rebuilt_per_bucket_param_indices") or "")
    buckets = [[int(word) for word in part.split()] for part in text.split(",") if part]
    return [
        {
            "bytes": sum(sizes[i] for i in bucket),
            "ready_s": max(ready[i] for i in bucket),
        }
        for bucket in buckets
        if bucket
    ]


def stamp(device: torch.device) -> Any:
    """The time now: of a GPU, when it has done what it was given so far."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(begin: Any, end: Any) -> float:
    """Seconds between two stamps; those of a GPU must have been reached."""
    if isinstance(begin, float):
        return float(end - begin)
    return float(begin.elapsed_time(end)) * 1e-3
