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
        """The phase ends here. Marked again within a step, the last mark counts."""

    def seconds(self) -> np.ndarray:
        """Seconds per step and phase, [steps, phases]. Call it after `finish`."""

    def host_start(self) -> np.ndarray:
        """Host clock at the start of each step, seconds since the first, [steps]."""

    def finish(self) -> None:
        """Wait until everything that was marked has happened."""


def make_clock(device: torch.device, phases: Sequence[str], steps: int) -> StepClock:
    """The clock that tells the time of this device."""
    kind = CudaClock if device.type == "cuda" else HostClock
    return kind(phases, steps)


class HostClock:
    """`time.perf_counter_ns` at every mark."""

    def __init__(self, phases: Sequence[str], steps: int) -> None:
        self._column = {phase: i + 1 for i, phase in enumerate(phases)}
        # Lists of the right size: nothing is allocated while the clock runs.
        self._rows = [[0] * (len(phases) + 1) for _ in range(steps)]
        self._row = self._rows[0] if steps else []

    def begin(self, step: int) -> None:
        self._row = self._rows[step]
        self._row[0] = time.perf_counter_ns()

    def mark(self, phase: str) -> None:
        self._row[self._column[phase]] = time.perf_counter_ns()

    def finish(self) -> None:
        """Marks on the host have happened when they are made."""

    def seconds(self) -> np.ndarray:
        stamps = np.array(self._rows, dtype=np.int64).reshape(-1, len(self._column) + 1)
        return check_marks(np.diff(stamps, axis=1) * 1e-9, list(self._column))

    def host_start(self) -> np.ndarray:
        starts = np.array([row[0] for row in self._rows], dtype=np.int64)
        return (starts - starts[:1]) * 1e-9


class CudaClock:
    """An event in the current stream at every mark, read after the window.

    Times are those of the device, so that a launch that has not run yet does not count
    as work done; the host clock is kept for each step's start, to show where the host
    could not keep up.
    """

    def __init__(self, phases: Sequence[str], steps: int) -> None:
        self._column = {phase: i + 1 for i, phase in enumerate(phases)}
        self._rows = [
            [torch.cuda.Event(enable_timing=True) for _ in range(len(phases) + 1)]
            for _ in range(steps)
        ]
        self._row = self._rows[0] if steps else []
        self._starts = [0] * steps

    def begin(self, step: int) -> None:
        self._starts[step] = time.perf_counter_ns()
        self._row = self._rows[step]
        self._row[0].record()

    def mark(self, phase: str) -> None:
        self._row[self._column[phase]].record()

    def finish(self) -> None:
        torch.cuda.synchronize()

    def seconds(self) -> np.ndarray:
        milliseconds = [
            [a.elapsed_time(b) for a, b in pairwise(row)] for row in self._rows
        ]
        table = np.array(milliseconds, dtype=np.float64).reshape(-1, len(self._column))
        return check_marks(table * 1e-3, list(self._column))

    def host_start(self) -> np.ndarray:
        starts = np.array(self._starts, dtype=np.int64)
        return (starts - starts[:1]) * 1e-9


def check_marks(seconds: np.ndarray, phases: list[str]) -> np.ndarray:
    """Refuse times that cannot be: a phase was not marked, or not in its order.

    Raises:
        ValueError: naming the phase and the step.
    """
    wrong = np.argwhere(seconds < 0)
    if len(wrong):
        step, phase = wrong[0]
        raise ValueError(
            f"phase {phases[phase]!r} was not marked in step {step}, "
            f"or not in the order {', '.join(phases)}"
        )
    return seconds
