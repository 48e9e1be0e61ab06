"""Clocks for the phases of a step: CUDA events for one GPU, else the host's clock.

A phase is the time between two marks. So the phases of a step add up to the step, and
no phase is computed as a remainder.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from rankbench.rank.world.devices import gpus_among, wait_for_devices


class HostClock:
    """Times the phases of steps, by `time.perf_counter_ns` at every mark."""

    def __init__(self, phases: Sequence[str], steps: int) -> None:
        self._phases = list(phases)
        self._starts = [0] * steps
        self._column = {phase: i for i, phase in enumerate(phases)}
        # Allocate everything now, so that marks do not allocate.
        unmarked: list[int | None] = [None] * len(phases)
        self._rows = [unmarked.copy() for _ in range(steps)]
        self._row = self._rows[0] if steps else []
        self._last = 0

    def begin(self, step: int) -> None:
        """Note the start of a step."""
        self._row = self._rows[step]
        self._last = self._starts[step] = time.perf_counter_ns()

    def mark(self, phase: str) -> None:
        """Assign the time since the previous mark to this phase.

        The durations of a phase that is marked several times in a step add up.

        Raises:
            KeyError: there is no such phase.
        """
        column, now = self._column[phase], time.perf_counter_ns()
        self._row[column] = (self._row[column] or 0) + now - self._last
        self._last = now

    def finish(self) -> None:
        """Wait until the device has done all the work before the last mark."""

    def fresh(self, steps: int) -> HostClock:
        """A new clock for `steps` steps of the same kind."""
        return HostClock(self._phases, steps)

    def table(self) -> np.ndarray:
        """Seconds per step and phase, [steps, phases]. Call it after `finish`.

        NaN stands for a phase that was not marked in a step.
        """
        # None becomes NaN.
        rows = np.array(self._rows, dtype=np.float64)
        return rows.reshape(-1, len(self._phases)) * 1e-9

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

    def host_start(self) -> np.ndarray:
        """Host time at the start of each step, in seconds after the first, [steps]."""
        starts = np.array(self._starts, dtype=np.int64)
        return (starts - starts[:1]) * 1e-9


class WaitingClock(HostClock):
    """Waits at every mark until several GPUs have finished, and reads the host's clock.

    The times of events on different GPUs cannot be compared. A process that drives
    several GPUs runs its phases one after the other anyway, so waiting costs it little:
    the device stands still while the host launches the first kernels of a phase.
    """

    def __init__(
        self, phases: Sequence[str], steps: int, gpus: Sequence[torch.device]
    ) -> None:
        super().__init__(phases, steps)
        self._gpus = gpus

    def mark(self, phase: str) -> None:
        wait_for_devices(self._gpus)
        super().mark(phase)

    def fresh(self, steps: int) -> WaitingClock:
        return WaitingClock(self._phases, steps, self._gpus)


class CudaClock(HostClock):
    """Records a CUDA event in the current stream at every mark; read after the window.

    Events give the time of the device: a kernel that is queued but has not run does not
    count as done. The host time of each step's start is kept as well, to show where the
    host could not keep up.
    """

    def __init__(self, phases: Sequence[str], steps: int, marks: int = 0) -> None:
        """Create the events.

        Args:
            phases: names of the phases.
            steps: number of steps.
            marks: number of marks in a step, if phases are marked several times.
        """
        super().__init__(phases, steps)
        # One event for the start of the step, and one for each mark.
        count = max(len(phases), marks) + 1
        self._events = [[_make_event() for _ in range(count)] for _ in range(steps)]
        self._marked: list[list[str]] = [[] for _ in range(steps)]
        self._step = 0

    def begin(self, step: int) -> None:
        self._starts[step] = time.perf_counter_ns()
        self._step = step
        self._events[step][0].record()

    def mark(self, phase: str) -> None:
        events, marked = self._events[self._step], self._marked[self._step]
        if phase not in self._phases:
            raise KeyError(phase)
        # Of consecutive marks of one phase only the last one matters.
        if not marked or marked[-1] != phase:
            marked.append(phase)
            if len(marked) == len(events):
                events.append(_make_event())
        events[len(marked)].record()

    def finish(self) -> None:
        torch.cuda.synchronize()

    def fresh(self, steps: int) -> CudaClock:
        marks = max(map(len, self._marked), default=0)
        return CudaClock(self._phases, steps, marks)

    def table(self) -> np.ndarray:
        table = np.full((len(self._marked), len(self._phases)), np.nan)
        for row, marked, events in zip(table, self._marked, self._events, strict=True):
            for phase, (start, end) in zip(marked, pairwise(events), strict=False):
                column = self._phases.index(phase)
                row[column] = np.nansum([row[column], start.elapsed_time(end) * 1e-3])
        return table


def _make_event() -> torch.cuda.Event:
    """An event that was recorded once, because torch creates it only then."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def make_clock(
    devices: Sequence[torch.device], phases: Sequence[str], steps: int
) -> HostClock:
    """Return a clock for the devices of this rank.

    Args:
        devices: all devices that this rank drives, the same one perhaps several times.
        phases: names of the phases.
        steps: number of steps.
    """
    gpus = gpus_among(devices)
    if len(gpus) > 1:
        return WaitingClock(phases, steps, gpus)
    return CudaClock(phases, steps) if gpus else HostClock(phases, steps)
