"""CPU time: of this process with its threads, and of the loaders beside it."""

from __future__ import annotations

import multiprocessing
import threading
import time
from multiprocessing.synchronize import Event

import pytest

from rankbench.rank.facts.usage import cpu_time

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
