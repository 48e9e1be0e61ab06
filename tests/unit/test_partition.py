"""Cutting a model into parts of about equal cost."""

from __future__ import annotations

import itertools
import random
import time

import pytest
import torch
from torch import nn

from rankbench.decoder import split_evenly
from rankbench.rank.models import Blueprint
from rankbench.rank.strategies._pipeline import measure_parts

pytestmark = pytest.mark.unit


def dearest(costs: list[float], counts: list[int]) -> float:
    ends = list(itertools.accumulate(counts))
    starts = [0, *ends[:-1]]
    return max(sum(costs[a:b]) for a, b in zip(starts, ends, strict=True))


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_no_other_split_is_cheaper(groups):
    chance = random.Random(groups)
    for _ in range(30):
        costs = [chance.choice([0, 1, 2, 5, 9]) for _ in range(7)]
        counts = split_evenly(costs, groups)
        assert len(counts) == groups
        assert sum(counts) == len(costs)
        assert all(count > 0 for count in counts)
        others = (
            [b - a for a, b in itertools.pairwise([0, *cuts, 7])]
            for cuts in itertools.combinations(range(1, 7), groups - 1)
        )
        assert dearest(costs, counts) == min(dearest(costs, o) for o in others)


def test_too_few_parts():
    with pytest.raises(ValueError, match="2 parts cannot be split in 3"):
        split_evenly([1, 1], 3)


def test_measuring_leaves_the_parts_as_they_are():
    parts = [nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True)]
    before = [{k: v.clone() for k, v in p.state_dict().items()} for p in parts]
    seconds = measure_parts(parts, torch.randn(16, 8), lambda part, device: None)
    assert len(seconds) == 3
    assert all(value > 0 for value in seconds)
    for part, state in zip(parts, before, strict=True):
        for name, value in part.state_dict().items():
            assert torch.equal(value, state[name])
        assert all(p.grad is None for p in part.parameters())


class Disturbed(nn.Linear):
    """Its second pass takes long, as if others used the machine."""

    passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.passes == 2:
            time.sleep(0.5)
        return super().forward(x)


def test_a_disturbed_pass_does_not_make_a_part_dear():
    parts = [Disturbed(8, 8), nn.Linear(8, 8)]
    seconds = measure_parts(parts, torch.randn(16, 8), lambda part, device: None)
    assert max(seconds) < 0.25


def test_parts_on_the_meta_device_are_there_one_at_a_time():
    drawn = Blueprint(
        lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))), seed=0
    )
    parts, there = list(drawn.model), []

    def load(part: nn.Module, device: torch.device) -> None:
        drawn.load(part, device)
        there.append([p for p in parts if not p.weight.is_meta])

    assert len(measure_parts(parts, torch.randn(16, 8), load)) == 3
    assert there == [[part] for part in parts]
    assert all(part.weight.is_meta for part in parts)
