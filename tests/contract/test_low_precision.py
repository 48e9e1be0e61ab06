"""In bf16 and in fp8, strategies train as well as in fp32 or as others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from equipment import case, require_packages
from gate_ranks import run_ranks

pytestmark = pytest.mark.contract


def train(folder: Path, strategy: str, **cell: Any) -> list[float]:
    """The loss of the first and of the last step, over all ranks."""
    usual = {
        "strategy": strategy,
        "backend": "gloo",
        "topology": "1x2",
        "precision": "bf16",
        "scaling": "strong",
        "batch_size": 64,
        "learning_rate": 0.05,
        # Without it, rounding errors do not grow.
        "momentum": 0.0,
        "epochs": None,
        "steps": 20,
        "warmup": 0,
        "evaluate": False,
    }
    ranks = run_ranks(folder, "measure", **{**usual, **cell})
    return [
        sum(r["loss"][end] for r in ranks) / len(ranks) for end in ("first", "last")
    ]


@pytest.fixture(scope="module")
def of_replicas(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[float]]:
    """What DDP learns from a cell, trained once."""
    known: dict[str, list[float]] = {}

    def learn(**cell: Any) -> list[float]:
        if repr(cell) not in known:
            folder = tmp_path_factory.mktemp("ddp")
            known[repr(cell)] = train(folder / "launch", "ddp", **cell)
        return known[repr(cell)]

    return learn


@pytest.mark.parametrize(
    ("name", "options", "model"),
    [
        case("fsdp", {}, "convnet"),
        # Batch normalisation needs weights of the dtype of its running statistics.
        case("fsdp", {}, "resnet18"),
        case("fsdp", {"channels_last": True}, "convnet"),
        case("deepspeed", {"channels_last": True}, "convnet"),
        case("local_sgd", {"channels_last": True}, "convnet"),
        case("deepspeed", {"stage": 1}, "convnet"),
        case("deepspeed", {"stage": 3}, "convnet"),
        case("deepspeed", {"stage": 2}, "resnet18"),
    ],
)
def test_bf16_learns_what_ddp_learns(name, options, model, of_replicas, tmp_path):
    require_packages(name)
    more: dict[str, Any] = {"model": model}
    if "channels_last" in options:
        options, more = {}, {**more, **options}
    if model == "resnet18":
        more |= {"image_size": 32, "learning_rate": 0.02, "batch_size": 16, "steps": 10}
    replicas = of_replicas(**more)
    shards = train(tmp_path / "sharded", name, options=options, **more)
    assert shards[0] == pytest.approx(replicas[0], rel=0.02)
    # Replicas normalise with weights of float32, shards with weights of bf16.
    learnt = replicas[0] - replicas[1]
    assert shards[0] - shards[1] == pytest.approx(learnt, rel=0.2)
    assert learnt > 0.5


@pytest.mark.equipment
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("single", {"backend": "none", "topology": "1x1"}),
        ("ddp", {}),
        ("zero1", {"checkpointing": "selective", "precision": "fp8_rowwise"}),
        ("mesh", {"options": {"context": 2}}),
        ("mesh", {"options": {"tensor": 2}, "topology": "1x4"}),
        ("ddp_dp", {"topology": "2x2"}),
        ("fsdp", {"options": {"accumulation": 2}, "checkpointing": "full"}),
    ],
)
def test_float8_learns_what_bf16_learns(name, more, tmp_path):
    """Numbers are rounded as on a GPU; the products are those of a CPU."""
    pytest.importorskip("torchao", reason="torchao is not installed: make extras")
    cell = {
        **{"model": "llama", "data": "tokens", "context": 16, "batch_size": 16},
        **{"model_options": {"layers": 2, "width": 32, "heads": 2}},
        **{"optimizer": "adam", "learning_rate": 0.005},
    }
    usual = train(tmp_path / "bf16", name, **{**cell, **more, "precision": "bf16"})
    float8 = train(tmp_path / "fp8", name, **{**cell, "precision": "fp8", **more})
    assert float8 != usual
    assert float8[0] == pytest.approx(usual[0], rel=0.01)
    learnt = usual[0] - usual[1]
    assert float8[0] - float8[1] == pytest.approx(learnt, rel=0.1)
    assert learnt > 0.5
