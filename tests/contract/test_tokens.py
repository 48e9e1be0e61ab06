"""Strategies train models of tokens as a single process does, and errors are found."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from equipment import (
    EXPERTS,
    ON_CPU,
    STRATEGIES,
    backend_of,
    case,
    require_packages,
)
from gate_ranks import copy_code, run_gate, run_ranks

from rankbench.launch.process.classify import TOLERANCE
from rankbench.launch_spec import LaunchOptions

pytestmark = pytest.mark.contract

COMPARED = [name for name in ON_CPU if name != "single"]
GPT = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "mlp": "swiglu"}
TIED = {"layers": 1, "width": 16, "heads": 2, "tie_embeddings": True}


def arguments(strategy: str, **more: Any) -> dict[str, Any]:
    usual = {
        "strategy": strategy,
        "topology": "1x2",
        "backend": backend_of(strategy),
        "model": "gpt",
        "model_options": GPT,
        "data": "tokens",
        "context": 16,
        "batch_size": 8,
    }
    if strategy == "ep":
        usual |= {"model": "llama", "model_options": EXPERTS}
    return usual | more


def judge(folder: Path, strategy: str, **more: Any) -> str:
    """The status of the gate; asserts that what it passes is exact."""
    status, reason, numbers = run_gate(folder / "gate", **arguments(strategy, **more))
    if status == "ok":
        assert reason is None
        assert numbers["weights_error"] < TOLERANCE[numbers["dtype"]] / 10
    return status


@pytest.mark.parametrize("name", [case(name) for name in COMPARED])
def test_a_decoder_is_trained_as_by_a_single_process(name, tmp_path):
    require_packages(name)
    assert judge(tmp_path, name) == "ok"


@pytest.mark.parametrize(
    "name", [case(name) for name in ("cp", "fsdp", "pipeline", "tp")]
)
def test_llama_is_trained_as_by_a_single_process(name, tmp_path):
    require_packages(name)
    options = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2}
    assert judge(tmp_path, name, model="llama", model_options=options) == "ok"


@pytest.mark.parametrize("name", [case(name) for name in ("cp", "fsdp", "pipeline")])
def test_experts_are_trained_as_by_a_single_process(name, tmp_path):
    """Also by strategies that do not share them out."""
    require_packages(name)
    assert judge(tmp_path, name, model="llama", model_options=EXPERTS) == "ok"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        case(name, options)
        for name in COMPARED
        if STRATEGIES[name].needs["shared_weights"] and name != "ep"
        for options in ({}, *([{"implementation": "fsdp1"}] if name == "fsdp" else []))
    ],
)
def test_tied_embeddings_stay_tied(name, options, tmp_path):
    require_packages(name)
    assert judge(tmp_path, name, model_options=TIED, options=options) == "ok"


@pytest.mark.parametrize("more", [{"clip_gradients": 0.5}, {"model_options": TIED}])
def test_a_mesh_of_two_by_two_ranks(more, tmp_path):
    assert judge(tmp_path, "mesh", topology="1x4", **more) == "ok"


FOUR_STAGES = {"balance": "1,1,2,1"}
MESH3D = {
    "only layers are split": ("1x2", {"pipe": 1, "tensor": 2}),
    "only weights are sharded": ("1x2", {"pipe": 1}),
    "stages and layers": ("1x4", {"tensor": 2, "schedule": "zbv", **FOUR_STAGES}),
    "stages and shards": ("1x4", {"schedule": "interleaved", **FOUR_STAGES}),
    "stages and copies": ("1x4", {"shard": 1, "schedule": "1f1b"}),
    "whole sequences": ("1x4", {"tensor": 2, "sequence": False}),
    "all of them": ("1x8", {"tensor": 2}),
}


@pytest.mark.parametrize("corner", MESH3D)
def test_a_mesh_of_three_dimensions(corner, tmp_path):
    topology, options = MESH3D[corner]
    more = {"topology": topology, "options": options, "clip_gradients": 0.5}
    assert judge(tmp_path, "mesh3d", **more) == "ok"


def test_context_parallel_groups_beside_each_other(tmp_path):
    """Two by two ranks."""
    more = {"topology": "1x4", "options": {"degree": 2, "accumulation": 2}}
    assert judge(tmp_path, "cp", **more) == "ok"


@pytest.mark.parametrize(
    "more",
    [
        {"checkpointing": "full", "options": {"degree": 2, "accumulation": 2}},
        {"clip_gradients": 0.5, "options": {"degree": 2}},
        # Some experts get no tokens.
        {
            "model_options": {**EXPERTS, "experts": 64, "top_k": 1},
            "context": 2,
            "batch_size": 2,
        },
    ],
)
def test_experts_on_four_ranks(more, tmp_path):
    assert judge(tmp_path, "ep", topology="1x4", **more) == "ok"


# Error -> strategy, file, the right line, and a wrong one.
ERRORS = {
    "the loss is scaled by the number of ranks": (
        "ddp",
        "ddp.py",
        "        loss = self.compute_loss(self.model, part)\n",
        "        loss = self.compute_loss(self.model, part) * self.world.size\n",
    ),
    "tokens are shifted": (
        "ddp",
        "ddp.py",
        "        loss = self.compute_loss(self.model, part)\n",
        "        loss = self.compute_loss(self.model, (part[0], part[1].roll(1, 1)))\n",
    ),
    "positions begin anew on each rank": (
        "cp",
        "cp.py",
        " + self.world.rank % self.degree * len(places[0])",
        "",
    ),
    "the loss is scaled by the size of a mesh": (
        "mesh",
        "single.py",
        "        self.backward(loss)\n",
        "        self.backward(loss * self.world.size)\n",
    ),
    "a token is sent to the wrong expert": (
        "ep",
        "ep.py",
        "            for i, mlp in enumerate(experts.values())\n",
        "            for i, mlp in enumerate(reversed(experts.values()))\n",
    ),
    "gradients of experts are not averaged": (
        "ep",
        "ep.py",
        "gradient /= self.world.size",
        "gradient /= 1",
    ),
    "gradients of norms are not added up": (
        "tp",
        "_split_layers.py",
        "        if partly := self._partly_learnt():\n",
        "        if partly := []:\n",
    ),
    "gradients of other stages are not clipped along": (
        "pipeline",
        "pipeline.py",
        "clip(self.optimizer, max_norm, self.group)\n",
        "clip(self.optimizer, max_norm)\n",
    ),
    "micro-batches are weighed by the size of a mesh": (
        "mesh3d",
        "pipeline.py",
        "(output, labels)) / self.count\n",
        "(output, labels)) / self.world.size\n",
    ),
}


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_is_found(error, tmp_path):
    strategy, file, right, wrong = ERRORS[error]
    code = copy_code(tmp_path)
    path = code / "rankbench/rank/strategies" / file
    assert path.read_text().count(right) == 1
    path.write_text(path.read_text().replace(right, wrong))
    more = {"clip_gradients": 0.5} if "clipped" in error else {}
    assert judge(tmp_path, strategy, code=code, **more) == "mismatch"


def test_embeddings_that_a_strategy_unties_are_found(tmp_path):
    """Two copies of one weight, each of which gets only its own gradient."""
    code = copy_code(tmp_path)
    path = code / "rankbench/rank/strategies/ddp.py"
    right = "        self.bare = model\n"
    assert path.read_text().count(right) == 1
    untie = (
        "        model.head.weight = nn.Parameter(model.head.weight.detach().clone())\n"
    )
    path.write_text(path.read_text().replace(right, untie + right))
    assert judge(tmp_path, "ddp", code=code, model_options=TIED) == "mismatch"


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("ddp", {}),
        ("pipeline", {}),
        ("ep", {}),
        ("mesh3d", {"topology": "1x4", "options": {"tensor": 2}}),
    ],
)
def test_a_launch_measures_tokens(name, more, tmp_path):
    """Also what is timed apart: buckets, stages, operations, and the accuracy."""
    more = {**more, "steps": 4, "epochs": None, "warmup": 2, "evaluate": True}
    reports = run_ranks(
        tmp_path / "run",
        "measure",
        launch=LaunchOptions(collectives=True),
        **arguments(name, **more),
    )
    first = reports[0]
    assert first["rank"]["samples"] == 4 * 8
    swept = [[(p["operation"], p["bytes"]) for p in r["collectives"]] for r in reports]
    assert swept == [swept[0]] * len(reports)
    assert first["model"]["flops_per_sample"] > 6 * 16 * 32 * 512
    assert 0 < first["accuracy"]["overall"] < 1
    assert first["accuracy"]["samples"] == 256 * 16
    losses = [report["loss"] for report in reports if report["loss"]]
    # At first all of the 512 tokens are as likely.
    assert losses[0]["first"] == pytest.approx(math.log(512), rel=0.05)


def test_a_launch_notes_how_many_tokens_each_expert_gets(tmp_path):
    """Of every token its two experts, on each rank, in every pass."""
    more = {"steps": 4, "epochs": None, "warmup": 2}
    for name in ("ep", "single"):
        cell = arguments("ep", **more)
        if name == "single":
            cell |= {"strategy": name, "backend": "none", "topology": "1x1"}
        for report in run_ranks(tmp_path / name, "measure", **cell):
            routed = report["rank"]["details"]["routed"]
            assert [*routed] == ["block1.mlp.experts", "block2.mlp.experts"]
            for counts in routed.values():
                assert len(counts) == EXPERTS["experts"]
                passes, rest = divmod(sum(counts), 2 * 8 * 16)
                assert rest == 0
                assert passes >= 6
