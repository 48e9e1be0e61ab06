"""Ranks learn where rank 0 serves them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch import distributed

from rankbench.environ import Place
from rankbench.rank.world.places import announce, find_free_port

pytestmark = pytest.mark.contract


class SlowRank:
    """The store of a rank that the kernel leaves waiting after what it has said."""

    def __init__(self, store: Any) -> None:
        self.get, self.wait, self._set = store.get, store.wait, store.set

    def set(self, key: str, value: str) -> None:
        self._set(key, value)
        time.sleep(0.5)


def test_the_store_may_end_before_a_slow_rank_goes_on(monkeypatch):
    """It ends with rank 0, which does not wait longer than for the others' words."""
    real = distributed.rendezvous

    def rendezvous(url: str, rank: int, size: int) -> Any:
        for store, *more in real(url, rank, size):
            yield (SlowRank(store) if rank else store, *more)

    monkeypatch.setattr(distributed, "rendezvous", rendezvous)
    method = f"tcp://127.0.0.1:{find_free_port()}"
    places = [
        Place(rank=rank, size=3, local_rank=rank, local_size=3, node=0)
        for rank in range(3)
    ]
    with ThreadPoolExecutor(3) as ranks:
        found = [
            ranks.submit(announce, place, method, lambda host: 4242) for place in places
        ]
        assert [each.result(400) for each in found] == [("127.0.0.1", "4242")] * 3
