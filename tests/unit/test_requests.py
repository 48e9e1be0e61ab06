"""The requested attempt of a cell, which only a rerun raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankbench.launch.job.claim import (
    Request,
    make_request,
    read_request,
)
from rankbench.record import Layout

pytestmark = pytest.mark.unit


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def measured(layout: Layout, attempt: int) -> None:
    layout.launch("c", attempt, 1).mkdir(parents=True)


def test_request_is_made_once(layout):
    assert read_request(layout, "c") is None
    first = make_request(layout, "c", launches=6, cell_hash="h")
    assert first == read_request(layout, "c") == Request(1, 6, "h")
    time = layout.request("c").stat().st_mtime_ns
    assert make_request(layout, "c", launches=6, cell_hash="other") == first
    assert layout.request("c").stat().st_mtime_ns == time
    # Requests of cells are apart.
    assert read_request(layout, "d") is None
    assert make_request(layout, "d", again=True, launches=3, cell_hash="h").attempt == 1


def test_rerun_asks_for_the_next_attempt(layout):
    make_request(layout, "c", launches=6, cell_hash="h")
    measured(layout, 1)
    wanted = make_request(layout, "c", again=True, launches=3, cell_hash="i")
    assert wanted == read_request(layout, "c") == Request(2, 3, "i")
    # Two reruns in a row, without a launch between them.
    assert make_request(layout, "c", again=True, launches=3, cell_hash="i").attempt == 3


def test_more_or_fewer_launches_belong_to_the_same_attempt(layout):
    make_request(layout, "c", launches=6, cell_hash="h", budget=3600.0)
    for launches in (14, 10):
        make_request(layout, "c", launches=launches, cell_hash="h")
        assert read_request(layout, "c") == Request(1, launches, "h")


@pytest.mark.parametrize("again", [False, True])
def test_a_lost_request_does_not_reuse_an_attempt(layout, again):
    measured(layout, 1)
    measured(layout, 4)
    request = make_request(layout, "c", again=again, launches=6, cell_hash="h")
    assert request.attempt == 5


@pytest.mark.parametrize("text", ["{", '{"attempt": 1}', "[1]"])
def test_a_damaged_request_is_named_and_replaced(layout, text):
    path = layout.request("c")
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        read_request(layout, "c")
    measured(layout, 1)
    assert make_request(layout, "c", launches=1, cell_hash="h").attempt == 2
