"""The measured core: a warm-up, a barrier, and the timed window.

Nothing is written, printed or copied from a device within the window, and Python
collects no garbage. Losses stay tensors, and the clock stores its numbers or CUDA
events in memory allocated before.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rankbench.cell import Cell
from rankbench.launch_spec import TRAINING, WARM_UP
from rankbench.rank.facts.usage import (
    Surroundings,
    cpu_time,
    open_meter,
    read_peaks,
    reset_peaks,
)
from rankbench.rank.strategies.base import Batch, Strategy
from rankbench.rank.training.clock import make_clock
from rankbench.rank.world.devices import Runtime, wait_for_all
from rankbench.rank.world.lifeline import Progress


class Window:
    """Measures a warm-up and a timed window on one rank.

    Its attributes are known once it is closed, in this order.

    Attributes:
        phases: names of the phases of a step.
        clock: of the steps that run.
        warmup: duration of each phase of each warm-up step, [warmup, phases].
        warmup_s: wall time of the warm-up on this rank, in seconds.
        setup_memory: peaks until the warm-up ended, see `usage.read_peaks`.
        window_s: wall time of the timed window on this rank, in seconds.
        cpu: CPU time that this rank used within the window.
        energy: what its devices consumed, see `Meter.end`.
        surroundings: what others did meanwhile, see `Surroundings.end`.
        seconds: duration of each phase of each timed step, [steps, phases].
        loss: this rank's loss of every step, warm-up first, [warmup + steps]; None if
            it does not know the loss.
        samples: number of samples that this rank loaded within the window.
    """

    loss: np.ndarray | None = None
    samples = 0

    def __init__(
        self,
        devices: Sequence[torch.device],
        phases: Sequence[str],
        *,
        warmup: int,
        steps: int,
        local_rank: int,
        progress: Progress,
    ) -> None:
        """Begin the warm-up."""
        self.devices, self.phases, self.steps = devices, phases, steps
        self._progress = progress
        self._meter = open_meter(devices, local_rank)
        self._surroundings = Surroundings(progress)
        progress.enter(WARM_UP)
        self.clock = make_clock(devices, phases, warmup)
        self._begun = time.perf_counter()

    def end_warmup(self) -> None:
        self.clock.finish()
        self.warmup_s = time.perf_counter() - self._begun
        self.warmup = self.read()
        self.setup_memory = read_peaks(self.devices)
        reset_peaks(self.devices)
        # Allocates events for as many marks per step as the warm-up had.
        self.clock = self.clock.fresh(self.steps)

    def begin(self, barrier: Callable[[], None] = lambda: None) -> None:
        """Begin the timed window, after a barrier."""
        self._progress.enter(TRAINING)
        self._surroundings.begin()
        self._meter.begin()
        barrier()
        self._used_before = cpu_time()
        self._begun = time.perf_counter()

    def close(self) -> None:
        """End the timed window."""
        self.clock.finish()
        self.window_s = time.perf_counter() - self._begun
        self.cpu = cpu_time(since=self._used_before)
        self.energy = self._meter.end()
        self.surroundings = self._surroundings.end()
        self.seconds = self.read()

    def read(self) -> np.ndarray:
        """Duration of each phase of each step of the clock, [steps, phases].

        Raises:
            ValueError: a phase was not marked.
        """
        return self.clock.seconds()


class Marker(Protocol):
    """What notes the parts of steps: a clock, or a profiler."""

    def begin(self, step: int) -> None: ...
    def mark(self, phase: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Course:
    """What a rank trains, and by what.

    Attributes:
        batches: of this rank, without an end.
        memory_format: of the inputs.
        losses: of all steps so far; None where this rank does not know the loss.
    """

    cell: Cell
    strategy: Strategy
    batches: Iterator[Batch]
    runtime: Runtime
    progress: Progress
    memory_format: torch.memory_format = torch.preserve_format
    losses: list[Tensor | None] = field(default_factory=list)

    def wait(self) -> None:
        """Wait until all ranks are here and their devices have finished all work."""
        wait_for_all(self.runtime, self.strategy.world.devices)

    def take_steps(self, count: int, marker: Marker) -> int:
        """Train so many steps; return the number of samples of this rank."""
        strategy, batches, progress = self.strategy, self.batches, self.progress
        device, losses, mark = strategy.world.device, self.losses, marker.mark
        non_blocking, memory_format = self.cell.non_blocking, self.memory_format
        samples = 0
        for step in range(count):
            progress.step(step)
            marker.begin(step)
            inputs, targets = next(batches)
            mark("load")
            inputs = inputs.to(
                device, non_blocking=non_blocking, memory_format=memory_format
            )
            targets = targets.to(device, non_blocking=non_blocking)
            mark("transfer")
            losses.append(strategy.step((inputs, targets), mark))
            samples += len(targets)
        return samples


def train(course: Course, *, warmup: int, steps: int) -> Window:
    """Train `warmup` steps, then `steps` timed ones, on all ranks together."""
    world = course.strategy.world
    window = Window(
        world.devices,
        ["load", "transfer", *course.strategy.phases],
        warmup=warmup,
        steps=steps,
        local_rank=world.local_rank,
        progress=course.progress,
    )
    course.take_steps(warmup, window.clock)
    window.end_warmup()
    # A collection looks at all objects that are not frozen, at any moment.
    gc.collect()
    gc.freeze()
    gc.disable()
    window.begin(course.wait)
    window.samples = course.take_steps(steps, window.clock)
    window.close()
    gc.enable()
    gc.unfreeze()
    known = [loss.float() for loss in course.losses if loss is not None]
    if len(known) == len(course.losses):
        window.loss = torch.stack(known).cpu().numpy()
    return window
