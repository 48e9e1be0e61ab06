"""What launches of strategies measure is what they do: losses, accuracy, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from equipment import backend_of
from gate_ranks import run_ranks

pytestmark = pytest.mark.contract


def measure(folder: Path, strategy: str, **cell: Any) -> list[dict[str, Any]]:
    usual = {"topology": "1x2", "epochs": None, "warmup": 0, **cell}
    return run_ranks(folder / strategy, "measure", strategy=strategy, **usual)


def test_zero1_keeps_half_of_the_optimizer_state_on_two_ranks(tmp_path):
    cell = {"model": "gpt", "model_options": {"layers": 4, "width": 64, "heads": 4}}
    cell |= {"data": "tokens", "context": 16, "batch_size": 2, "optimizer": "adam"}
    kept = {}
    for name in ("ddp", "zero1", "fsdp"):
        ranks = measure(tmp_path, name, **cell, steps=1, evaluate=False)
        kept[name] = max(one["rank"]["memory"]["optimizer_mib"] for one in ranks)
    # Adam keeps two float32 values for each of the parameters.
    weights = ranks[0]["model"]["parameters"]
    assert kept["ddp"] == pytest.approx(2 * 4 * weights / 2**20, rel=0.01)
    assert kept["zero1"] <= 1.05 * kept["ddp"] / 2
    assert kept["fsdp"] <= 1.05 * kept["ddp"] / 2


def test_strategies_that_split_a_replica_learn_as_one_process(tmp_path):
    """A pipeline is one replica, a host of ddp_dp has one per device."""
    cell = {"model": "transformer", "scaling": "strong", "steps": 4, "warmup": 2}
    alone = {"topology": "1x1", "backend": "none"}
    found = {
        name: measure(tmp_path, name, **cell, **more)
        for name, more in (("single", alone), ("ddp_dp", {}), ("pipeline", {}))
    }
    assert {name: len(ranks) for name, ranks in found.items()} == {
        **{"single": 1, "ddp_dp": 1, "pipeline": 2}
    }
    (one,) = found["single"]
    for ranks in found.values():
        # The last stage knows it.
        assert ranks[-1]["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert ranks[0]["accuracy"]["overall"] == one["accuracy"]["overall"]


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_fp16_on_two_ranks_comes_near_fp32(strategy, tmp_path):
    cell = {"learning_rate": 0.01, "momentum": 0.0, "steps": 15, "warmup": 10}
    exact, half = (
        measure(tmp_path / name, strategy, **cell, precision=name)[0]["loss"]
        for name in ("fp32", "fp16")
    )
    assert half == pytest.approx(exact, rel=0.05)
    assert half != exact


def test_stages_compute_in_bf16_on_whichever_rank_they_are(tmp_path):
    cell = {"precision": "bf16", "model": "lenet", "batch_size": 64, "steps": 20}
    cell |= {"learning_rate": 0.1, "momentum": 0.0}
    alone = {"topology": "1x1", "backend": "none"}
    (one,) = measure(tmp_path, "single", **cell, **alone)
    for name, options in (
        ("pipeline", {"schedule": "gpipe", "microbatches": 8}),
        ("pipeline", {"schedule": "interleaved", "microbatches": 8}),
        ("rpc_pmp", {}),
    ):
        folder = tmp_path / str(options.get("schedule"))
        backend = backend_of(name)
        ranks = measure(folder, name, **cell, options=options, backend=backend)
        (loss,) = (rank["loss"] for rank in ranks if rank["loss"])
        assert loss["last"] == pytest.approx(one["loss"]["last"], rel=0.05)
        assert loss["last"] < 0.9 * loss["first"]
        if name == "pipeline":
            told = [rank["rank"]["details"] for rank in ranks]
            stages = 2 if options["schedule"] == "interleaved" else 1
            assert [len(rank["stages"]) for rank in told] == [stages] * 2
            assert all(0 < rank["bubble"] < 1 for rank in told)
