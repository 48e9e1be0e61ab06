"""Options of strategies that share a model, or a step, out in several ways."""

from __future__ import annotations

import pytest
import torch
from strategy_ranks import SAMPLES
from test_strategies import run

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """What a single process learns."""
    (report,) = run(tmp_path_factory.mktemp("learnt"), "single", 1)
    return report["weights"]


def check_same(weights: dict[str, torch.Tensor], learnt: dict[str, torch.Tensor]):
    assert weights.keys() == learnt.keys()
    for name, value in learnt.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "options", "copies"),
    [
        ("mesh", {"copy": 2}, 4),
        ("fsdp", {"shard_ranks": 2}, 4),
        ("fsdp", {"shard_ranks": 2, "reshard_after_forward": False}, 4),
    ],
)
def test_two_dimensions_learn_the_same(name, options, copies, learnt, tmp_path):
    """Four ranks in two groups of two."""
    reports = run(tmp_path, name, 4, options=options)
    assert all(report["samples"] == SAMPLES * 6 // copies for report in reports)
    check_same(reports[0]["weights"], learnt)


@pytest.mark.parametrize("name", ["ddp", "zero1", "ddp_dp"])
@pytest.mark.parametrize(
    "options", [{"accumulation": 4}, {"accumulation": 2, "bucket_mb": 0.0005}]
)
def test_accumulated_gradients_are_those_of_the_whole_batch(
    name, options, learnt, tmp_path
):
    reports = run(tmp_path, name, 2, options=options)
    check_same(reports[0]["weights"], learnt)
