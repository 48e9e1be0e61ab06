"""The measured core: a warm-up, a barrier, and the timed window, with its clocks.

Nothing is written, printed or copied from a device within the window, and Python
collects no garbage. Losses stay tensors, and the clock stores its numbers or CUDA
events in memory allocated before.

Clocks read CUDA events for one GPU, else the host's clock. A phase is the time between
two marks. So the phases of a step add up to the step, and no phase is computed as a
remainder.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rankbench.cell import Cell
from rankbench.launch_spec import TRAINING, WARM_UP
from rankbench.rank.facts import usage
from rankbench.rank.strategies.base import Batch, Strategy
from rankbench.rank.world.devices import (
    Runtime,
    gpus_among,
    wait_for_all,
    wait_for_devices,
)
from rankbench.rank.world.lifeline import Progress


class Clock:
    """Times the phases of steps at every mark: by events of one GPU, else by the host.

    Events give the time of the device: a kernel that is queued but has not run does not
    count as done. Those of different GPUs cannot be compared. If a process drives
    several, the clock waits at every mark until they have finished. That costs little,
    because such a process runs its phases one after the other.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        phases: Sequence[str],
        steps: int,
        marks: int = 0,
    ) -> None:
        """Allocate everything, so that marks do not allocate.

        Args:
            devices: all that this rank drives, the same one perhaps several times.
            phases: their names.
            steps: number of steps.
            marks: number of marks in a step, if phases are marked several times.
        """
        self._phases, self._gpus = list(phases), gpus_among(devices)
        self._has_events = len(self._gpus) == 1
        # Of the start of each step, and of each mark.
        count = max(len(phases), marks) + 1
        self._stamps = [
            [self._make_stamp() for _ in range(count)] for _ in range(steps)
        ]
        self._marked: list[list[str]] = [[] for _ in range(steps)]
        self._step = 0

    @property
    def marks(self) -> int:
        """The largest number of marks in a step."""
        return max(map(len, self._marked), default=0)

    def begin(self, step: int) -> None:
        """Note the start of a step."""
        self._step = step
        self._stamp(0)

    def mark(self, phase: str) -> None:
        """Assign the time since the previous mark to this phase.

        The durations of a phase that is marked several times in a step add up.

        Raises:
            KeyError: there is no such phase.
        """
        if phase not in self._phases:
            raise KeyError(phase)
        marked = self._marked[self._step]
        # Of consecutive marks of one phase only the last one matters.
        if not marked or marked[-1] != phase:
            marked.append(phase)
        self._stamp(len(marked))

    def finish(self) -> None:
        """Wait until the device has done all the work before the last mark."""
        if self._has_events:
            torch.cuda.synchronize()

    def table(self) -> np.ndarray:
        """Seconds per step and phase, [steps, phases]. Call it after `finish`.

        NaN stands for a phase that was not marked in a step.
        """
        rows = []
        for marked, stamps in zip(self._marked, self._stamps, strict=True):
            taken: dict[str, float] = {}
            for phase, (start, end) in zip(marked, pairwise(stamps), strict=False):
                lasted = self._between(start, end)
                taken[phase] = taken.get(phase, 0.0) + lasted
            rows.append([taken.get(phase, math.nan) for phase in self._phases])
        return np.array(rows, dtype=np.float64).reshape(-1, len(self._phases))

    def seconds(self) -> np.ndarray:
        """The same, if every phase was marked.

        Raises:
            ValueError: a phase was not marked; names the phase and the step.
        """
        table = self.table()
        missing = np.argwhere(np.isnan(table))
        if len(missing):
            step, phase = missing[0]
            name = self._phases[phase]
            raise ValueError(f"phase {name!r} was not marked in step {step}")
        return table

    def _make_stamp(self) -> Any:
        if not self._has_events:
            return 0
        event = torch.cuda.Event(enable_timing=True)
        event.record()  # torch creates it only then
        return event

    def _between(self, start: Any, end: Any) -> float:
        """Seconds between two stamps."""
        if self._has_events:
            return float(start.elapsed_time(end)) * 1e-3
        return float(end - start) * 1e-9

    def _stamp(self, place: int) -> None:
        stamps = self._stamps[self._step]
        if place == len(stamps):
            stamps.append(self._make_stamp())
        if self._has_events:
            stamps[place].record()
            return
        if self._gpus:
            wait_for_devices(self._gpus)
        stamps[place] = time.perf_counter_ns()


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
        self._meter = usage.open_meter(devices, local_rank)
        self._surroundings = usage.Surroundings(progress)
        progress.enter(WARM_UP)
        self.clock = Clock(devices, phases, warmup)
        self._begun = time.perf_counter()

    def end_warmup(self) -> None:
        self.clock.finish()
        self.warmup_s = time.perf_counter() - self._begun
        self.warmup = self.read()
        self.setup_memory = usage.read_peaks(self.devices)
        usage.reset_peaks(self.devices)
        # Allocates events for as many marks per step as the warm-up had.
        self.clock = Clock(self.devices, self.phases, self.steps, self.clock.marks)

    def begin(self, barrier: Callable[[], None] = lambda: None) -> None:
        """Begin the timed window, after a barrier."""
        self._progress.enter(TRAINING)
        self._surroundings.begin()
        self._meter.begin()
        barrier()
        self._used_before = usage.cpu_time()
        self._begun = time.perf_counter()

    def close(self) -> None:
        """End the timed window."""
        self.clock.finish()
        self.window_s = time.perf_counter() - self._begun
        self.cpu = usage.cpu_time(since=self._used_before)
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
        losses: of all steps so far; None where this rank does not know the loss.
    """

    cell: Cell
    strategy: Strategy
    batches: Iterator[Batch]
    runtime: Runtime
    progress: Progress
    losses: list[Tensor | None] = field(default_factory=list)

    @property
    def memory_format(self) -> torch.memory_format:
        """Of the inputs."""
        images = self.cell.channels_last
        return torch.channels_last if images else torch.preserve_format

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
