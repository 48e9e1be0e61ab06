"""When each phase of each step ended: a monotonic clock, or events in the CUDA stream.

A phase is what lies between two marks, so the phases of a step add up to the step; none
of them is a remainder.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch


class StepClock(Protocol):
    """Takes the time of steps; does nothing else while they run."""

    def begin(self, step: int) -> None:
        """A step begins."""

    def mark(self, phase: str) -> None:
        """What has passed since the mark before belongs to this phase.

        Marked several times within a step, a phase adds up.
        """

    def seconds(self) -> np.ndarray:
        """Seconds per step and phase, [steps, phases]. Call it after `finish`.

        Raises:
            ValueError: a phase was not marked.
        """

    def host_start(self) -> np.ndarray:
        """Host clock at the start of each step, seconds since the first, [steps]."""

    def finish(self) -> None:
        """Wait until everything that was marked has happened."""

    def another(self, steps: int) -> StepClock:
        """A clock for more steps like those that this one has seen."""


def make_clock(device: torch.device, phases: Sequence[str], steps: int) -> StepClock:
    """The clock that tells the time of this device."""
    kind = CudaClock if device.type == "cuda" else HostClock
    return kind(phases, steps)


class HostClock:
    """`time.perf_counter_ns` at every mark."""

    def __init__(self, phases: Sequence[str], steps: int) -> None:
        self._phases = list(phases)
        self._column = {phase: i for i, phase in enumerate(phases)}
        # Lists of the right size: nothing is allocated while the clock runs.
        unmarked: list[int | None] = [None] * len(phases)
        self._rows = [unmarked.copy() for _ in range(steps)]
        self._row = self._rows[0] if steps else []
        self._starts = [0] * steps
        self._last = 0

    def begin(self, step: int) -> None:
        self._row = self._rows[step]
        self._last = self._starts[step] = time.perf_counter_ns()

    def mark(self, phase: str) -> None:
        column, now = self._column[phase], time.perf_counter_ns()
        self._row[column] = (self._row[column] or 0) + now - self._last
        self._last = now

    def finish(self) -> None:
        """Marks on the host have happened when they are made."""

    def another(self, steps: int) -> HostClock:
        return HostClock(self._phases, steps)

    def seconds(self) -> np.ndarray:
        # None becomes NaN.
        table = np.array(self._rows, dtype=np.float64).reshape(-1, len(self._phases))
        return check_marks(table * 1e-9, self._phases)

    def host_start(self) -> np.ndarray:
        starts = np.array(self._starts, dtype=np.int64)
        return (starts - starts[:1]) * 1e-9


class CudaClock:
    """An event in the current stream at every mark, read after the window.

    Times are those of the device, so that a launch that has not run yet does not count
    as work done; the host clock is kept for each step's start, to show where the host
    could not keep up.
    """

    def __init__(self, phases: Sequence[str], steps: int, marks: int = 0) -> None:
        """Make the events.

        Args:
            phases: that will be marked.
            steps: of which the time is taken.
            marks: in each step, if phases come again within one.
        """
        self._phases = list(phases)
        # The beginning of a step, and each mark.
        count = max(len(phases), marks) + 1
        self._events = [[_make_event() for _ in range(count)] for _ in range(steps)]
        self._marked: list[list[str]] = [[] for _ in range(steps)]
        self._starts = [0] * steps
        self._step = 0

    def begin(self, step: int) -> None:
        self._starts[step] = time.perf_counter_ns()
        self._step = step
        self._events[step][0].record()

    def mark(self, phase: str) -> None:
        events, marked = self._events[self._step], self._marked[self._step]
        if phase not in self._phases:
            raise KeyError(phase)
        # Within a run of marks of one phase the last one tells it all.
        if not marked or marked[-1] != phase:
            marked.append(phase)
            if len(marked) == len(events):
                events.append(_make_event())
        events[len(marked)].record()

    def finish(self) -> None:
        torch.cuda.synchronize()

    def another(self, steps: int) -> CudaClock:
        marks = max(map(len, self._marked), default=0)
        return CudaClock(self._phases, steps, marks)

    def seconds(self) -> np.ndarray:
        table = np.full((len(self._marked), len(self._phases)), np.nan)
        for row, marked, events in zip(table, self._marked, self._events, strict=True):
            for phase, (start, end) in zip(marked, pairwise(events), strict=False):
                column = self._phases.index(phase)
                row[column] = np.nansum([row[column], start.elapsed_time(end) * 1e-3])
        return check_marks(table, self._phases)

    def host_start(self) -> np.ndarray:
        starts = np.array(self._starts, dtype=np.int64)
        return (starts - starts[:1]) * 1e-9


def _make_event() -> torch.cuda.Event:
    """An event that exists: torch creates it when it is recorded for the first time."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def check_marks(seconds: np.ndarray, phases: list[str]) -> np.ndarray:
    """Refuse a table with a phase that was not marked, which is NaN.

    Raises:
        ValueError: naming the phase and the step.
    """
    missing = np.argwhere(np.isnan(seconds))
    if len(missing):
        step, phase = missing[0]
        raise ValueError(f"phase {phases[phase]!r} was not marked in step {step}")
    return seconds
