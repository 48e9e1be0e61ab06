"""Pipelines: micro-batches of any number change nothing, and what is told is so."""

from __future__ import annotations

import pytest
import torch
from strategy_ranks import FEATURES, small_model
from test_strategies import defaults_of, run
from torch import nn

from rankbench.environ import Place
from rankbench.rank.strategies import find_strategy
from rankbench.rank.strategies.base import World
from rankbench.rank.world.devices import find_runtime

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(
    ("schedule", "ideal"),
    [("gpipe", 2 / (8 + 2)), ("1f1b", 2 / (8 + 2)), ("interleaved", 1 / (2 * 8 + 1))],
)
def test_each_rank_tells_its_stages_and_how_long_it_waits(schedule, ideal, tmp_path):
    interleaved = schedule == "interleaved"
    options = {"schedule": schedule, "microbatches": 8}
    reports = run(tmp_path, "pipeline", 2 if interleaved else 3, options=options)
    details = [report["details"] for report in reports]
    names = [name for name, _ in small_model().named_children()]
    stages = [stage for told in details for stage in told["stages"]]
    assert sorted(part for stage in stages for part in stage) == names
    assert len(stages) == (4 if interleaved else 3)
    for told in details:
        assert 0 < told["bubble"] < 1
        assert told["ideal_bubble"] == pytest.approx(ideal)
        assert min(told["forward_s"], told["backward_s"]) > 0


def test_what_it_does_to_tell_so_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    runtime, cpu = find_runtime("process_group"), torch.device("cpu")
    place = Place(rank=0, size=1, local_rank=0, local_size=1, node=0)
    runtime.join("gloo", place, f"file://{tmp_path}/store", cpu)
    try:
        trained = find_strategy("pipeline")(
            World(0, 1, 0, cpu, (cpu,), "gloo", rank_batch=8),
            lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
            **defaults_of("pipeline"),
        )
        model = nn.Sequential(nn.BatchNorm1d(FEATURES), *small_model())
        trained.setup(model, lambda p: torch.optim.SGD(p, lr=0.1))
        trained.step((torch.randn(8, FEATURES), torch.arange(8) % 5), lambda _: None)
        before = {name: value.clone() for name, value in trained.state_dict().items()}
        assert before["0.num_batches_tracked"] == 4
        trained.details()
        after = trained.state_dict()
        assert after.keys() == before.keys()
        for name, value in before.items():
            assert torch.equal(after[name], value)
        assert all(parameter.grad is None for parameter in model.parameters())
    finally:
        runtime.leave()
