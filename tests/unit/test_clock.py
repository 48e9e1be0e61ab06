"""The clock of the host: the phases that it measures, and the errors it raises."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from rankbench.rank.training.loop import Clock

pytestmark = pytest.mark.unit

PHASES = ["load", "forward", "update"]
CPU, GPU = (torch.device("cpu"),), (torch.device("cuda", 0),)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nanoseconds that the clock reads, one after the other."""
    readings: list[int] = []
    monkeypatch.setattr(time, "perf_counter_ns", lambda: readings.pop(0))
    return readings


def run_steps(clock: Clock, *steps: list[str]) -> None:
    for number, marks in enumerate(steps):
        clock.begin(number)
        for phase in marks:
            clock.mark(phase)
    clock.finish()


def test_phases_are_what_lies_between_marks(ticks):
    clock = Clock(CPU, PHASES, 2)
    ticks += [1000, 1010, 1030, 1060, 2000, 2001, 2003, 2006]
    run_steps(clock, PHASES, PHASES)
    expected = np.array([[10, 20, 30], [1, 2, 3]]) * 1e-9
    np.testing.assert_allclose(clock.seconds(), expected)
    # The phases of a step add up to its duration.
    np.testing.assert_allclose(clock.seconds().sum(axis=1), [60e-9, 6e-9])


@pytest.mark.parametrize(
    ("marks", "readings", "nanoseconds"),
    [
        # Of marks in a row the last one counts.
        (["load", "forward", "forward", "update"], [0, 10, 20, 25, 30], [10, 15, 5]),
        # A phase that comes again adds up.
        (
            ["load", "forward", "update", "forward", "update"],
            [0, 10, 12, 15, 40, 47],
            [10, 27, 10],
        ),
        # A phase may take no time.
        (PHASES, [0, 0, 10, 10], [0, 10, 0]),
    ],
)
def test_a_step_of_marks(ticks, marks, readings, nanoseconds):
    clock = Clock(CPU, PHASES, 1)
    ticks += readings
    run_steps(clock, marks)
    np.testing.assert_allclose(clock.seconds(), [np.array(nanoseconds) * 1e-9])


@pytest.mark.parametrize("missing", PHASES)
def test_missing_mark_is_named(missing):
    clock = Clock(CPU, PHASES, 2)
    run_steps(clock, PHASES, [phase for phase in PHASES if phase != missing])
    with pytest.raises(ValueError, match=f"phase '{missing}' was not marked in step 1"):
        clock.seconds()
    clock.begin(0)
    with pytest.raises(KeyError, match="communication"):
        clock.mark("communication")


def test_no_steps():
    clock = Clock(CPU, PHASES, 0)
    assert clock.seconds().shape == (0, 3)


def test_times_are_real():
    clock = Clock(CPU, PHASES, 1)
    begun = time.perf_counter()
    clock.begin(0)
    clock.mark("load")
    time.sleep(0.02)
    clock.mark("forward")
    clock.mark("update")
    whole = time.perf_counter() - begun
    ((load, forward, update),) = clock.seconds()
    # The others have what is left, however long that was on a busy machine.
    assert 0.02 <= forward <= whole - load - update


class Recorded:
    """An event of CUDA: the time is how many were recorded before it."""

    created: list[Recorded] = []
    count = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at: int | None = None

    def record(self) -> None:
        if self.at is None:
            Recorded.created.append(self)
        Recorded.count += 1
        self.at = Recorded.count

    def elapsed_time(self, end: Recorded) -> float:
        assert self.at is not None
        assert end.at is not None
        return 1000.0 * (end.at - self.at)


def test_events_of_cuda_exist_before_the_first_step(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Recorded)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    # A phase that comes again within a step needs more events than there are phases.
    step = ["load", "forward", "update", "forward", "update"]
    warm_up = Clock(GPU, PHASES, 1)
    run_steps(warm_up, step)
    timed = Clock(GPU, PHASES, 2, warm_up.marks)
    created = len(Recorded.created)
    run_steps(timed, step, step)
    assert len(Recorded.created) == created
    np.testing.assert_allclose(timed.seconds(), [[1, 2, 2], [1, 2, 2]])
