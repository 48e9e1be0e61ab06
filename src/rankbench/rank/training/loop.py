"""The measured core: a warm-up, a barrier, and the timed window.

Nothing is written, printed or copied from a device within the window, and Python
collects no garbage. Losses stay tensors, and the clock stores its numbers or CUDA
events in memory allocated before.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankbench.launch_spec import TRAINING, WARM_UP
from rankbench.rank.facts.surroundings import Surroundings
from rankbench.rank.facts.usage import (
    CpuTime,
    Meter,
    cpu_time,
    read_peaks,
    reset_peaks,
)
from rankbench.rank.strategies.base import Batch, Strategy
from rankbench.rank.training.clock import StepClock, make_clock
from rankbench.rank.world.lifeline import Progress


@dataclass(frozen=True)
class Measurement:
    """Measurements of one rank.

    Attributes:
        seconds: duration of each phase of each timed step, [steps, phases].
        warmup: duration of each phase of each warm-up step, [warmup, phases].
        host_start: host time at the start of each timed step, in seconds, [steps].
        loss: this rank's loss of every step, warm-up first, [warmup + steps]; NaN on
            a rank that does not know the loss.
        knows_loss: whether this rank knows the loss.
        warmup_s: wall time of the warm-up on this rank, in seconds.
        window_s: wall time of the timed window on this rank, in seconds.
        samples: number of samples that this rank loaded within the window.
        cpu: CPU time that this rank used within the window.
        energy: what its devices consumed, see `Meter.end`.
        surroundings: what others did meanwhile, see `Surroundings.end`.
        setup_memory: peaks until the warm-up ended, see `usage.read_peaks`; those of
            the timed window follow.
        collected: how often Python collected garbage within the window; None: that is
            a matter of the script that was measured.
    """

    seconds: np.ndarray
    warmup: np.ndarray
    host_start: np.ndarray
    loss: np.ndarray
    knows_loss: bool
    warmup_s: float
    window_s: float
    samples: int
    cpu: CpuTime
    energy: dict[str, Any]
    surroundings: dict[str, Any] | None
    setup_memory: dict[str, Any]
    collected: int | None = None


def train(
    strategy: Strategy,
    batches: Iterator[Batch],
    *,
    devices: Sequence[torch.device],
    phases: Sequence[str],
    warmup: int,
    steps: int,
    non_blocking: bool,
    memory_format: torch.memory_format = torch.preserve_format,
    barrier: Callable[[], None],
    progress: Progress,
    meter: Meter,
) -> Measurement:
    """Train `warmup` steps, then `steps` timed ones, on all ranks together.

    Batches go to the first of the devices.
    """

    def run(clock: StepClock, count: int) -> int:
        samples = 0
        for step in range(count):
            progress.step(step)
            clock.begin(step)
            inputs, targets = next(batches)
            clock.mark("load")
            inputs = inputs.to(
                devices[0], non_blocking=non_blocking, memory_format=memory_format
            )
            targets = targets.to(devices[0], non_blocking=non_blocking)
            clock.mark("transfer")
            losses.append(strategy.step((inputs, targets), clock.mark))
            samples += len(targets)
        return samples

    losses: list[Tensor | None] = []
    untimed = make_clock(devices, phases, warmup)

    progress.enter(WARM_UP)
    begun = time.perf_counter()
    run(untimed, warmup)
    untimed.finish()
    warmup_s = time.perf_counter() - begun
    setup_memory = read_peaks(devices)
    reset_peaks(devices)
    # Allocates events for as many marks per step as the warm-up had.
    timed = untimed.fresh(steps)

    # A collection looks at all objects that are not frozen, at any moment.
    gc.collect()
    gc.freeze()
    gc.disable()
    progress.enter(TRAINING)
    surroundings = Surroundings(progress)
    surroundings.begin()
    meter.begin()
    barrier()
    collected = _collections()
    used_before = cpu_time()
    begun = time.perf_counter()
    samples = run(timed, steps)
    timed.finish()
    window_s = time.perf_counter() - begun
    cpu = cpu_time(since=used_before)
    collected = _collections() - collected
    gc.enable()
    gc.unfreeze()
    energy = meter.end()
    seen = surroundings.end()

    known = [loss.float() for loss in losses if loss is not None]
    knows_loss = len(known) == len(losses)
    unknown = np.full(len(losses), np.nan, np.float32)
    return Measurement(
        seconds=timed.seconds(),
        warmup=untimed.seconds(),
        host_start=timed.host_start(),
        loss=torch.stack(known).cpu().numpy() if knows_loss else unknown,
        knows_loss=knows_loss,
        warmup_s=warmup_s,
        window_s=window_s,
        samples=samples,
        cpu=cpu,
        energy=energy,
        surroundings=seen,
        setup_memory=setup_memory,
        collected=collected,
    )


def _collections() -> int:
    """How often Python has collected garbage."""
    return sum(generation["collections"] for generation in gc.get_stats())
