"""CPU time, of this process with its threads and of its loaders; peaks of memory."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import threading
import time
from multiprocessing.synchronize import Event

import pytest
import torch

from factories import make_cell
from rankbench.rank.facts import usage
from rankbench.rank.facts.usage import cpu_time
from rankbench.rank.strategies.base import World
from rankbench.rank.strategies.single import Single
from rankbench.rank.training import loop
from rankbench.rank.world import process_group
from rankbench.rank.world.lifeline import Progress

pytestmark = pytest.mark.unit

WORK = 0.3  # seconds of CPU time


def work() -> None:
    begun = time.thread_time()
    while time.thread_time() - begun < WORK:
        pass


def work_and_stay(done: Event, leave: Event) -> None:
    work()
    done.set()
    leave.wait()


def test_threads_count():
    before = cpu_time()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    spent = cpu_time(since=before)
    assert WORK <= spent.own < 3 * WORK
    assert spent.loaders == 0


@pytest.mark.parametrize("ended", [False, True])
def test_loaders_count_for_themselves(ended):
    before = cpu_time()
    context = multiprocessing.get_context("fork")
    done, leave = context.Event(), context.Event()
    process = context.Process(target=work_and_stay, args=(done, leave))
    process.start()
    done.wait()
    if ended:
        leave.set()
        process.join()
    spent = cpu_time(since=before)
    leave.set()
    process.join()
    # The kernel counts the CPU time of a process in ticks of 10 ms.
    assert WORK - 0.03 <= spent.loaders < 3 * WORK
    assert spent.own < WORK


def test_steps_have_their_own_peak_and_no_collection_of_garbage(tmp_path, monkeypatch):
    seen: list[str] = []
    collects: list[bool] = []

    class Noting(Single):
        def step(self, batch, mark):
            seen.append("step")
            collects.append(gc.isenabled())
            # Objects that refer to each other, as many as Python collects at once.
            for pair in [[] for _ in range(5000)]:
                pair.append(pair)
            for phase in self.phases:
                mark(phase)
            return torch.zeros(())

    for name in ("read_peaks", "reset_peaks"):
        monkeypatch.setattr(usage, name, lambda _, name=name: seen.append(name))
    cpu = torch.device("cpu")
    strategy = Noting(World(0, 1, 0, cpu, (cpu,), "none", 2), lambda *_: torch.ones(()))
    course = loop.Course(
        cell=make_cell(),
        strategy=strategy,
        batches=itertools.repeat((torch.zeros(2, 3), torch.zeros(2))),
        runtime=process_group,
        progress=Progress(tmp_path, 0),
    )
    window = loop.train(course, warmup=2, steps=3)
    assert seen == [*2 * ["step"], "read_peaks", "reset_peaks", *3 * ["step"]]
    assert collects == [True, True, False, False, False]
    assert window.loss.tolist() == [0.0] * 5
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)
