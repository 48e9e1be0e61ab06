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
LLAMA = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2}
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
    return usual | more


def judge(folder: Path, strategy: str, **more: Any) -> str:
    """The status of the gate; asserts that what it passes is exact."""
    status, reason, numbers = run_gate(folder / "gate", **arguments(strategy, **more))
    if status == "ok":
        assert reason is None
        assert numbers["weights_error"] < TOLERANCE[numbers["dtype"]] / 10
    return status


SHARING = [
    n for n in COMPARED if STRATEGIES[n]["needs"]["shared_weights"] or n == "mesh"
]
OTHERS = [{"model": "llama", "model_options": sizes} for sizes in (LLAMA, EXPERTS)]
# Blocks that are compiled, with each checkpointing.
COMPILED = [
    ("ddp", "selective", {}),
    ("fsdp", "full", {"accumulation": 2}),
    ("mesh", "full", {"tensor": 2}),
    ("pipeline", "none", {"microbatches": 2}),
    ("deepspeed", "none", {"stage": 3}),
]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *(case(name, {}) for name in COMPARED),
        # Embeddings stay tied.
        *(case(name, {"model_options": TIED}) for name in SHARING),
        # Strategies that do not share experts out train them, too.
        *(case(name, more) for name in ("fsdp", "pipeline") for more in OTHERS),
        *(
            case(name, {"compile": True, "checkpointing": kind, "options": options})
            for name, kind, options in COMPILED
        ),
    ],
)
def test_a_decoder_is_trained_as_by_a_single_process(name, more, tmp_path):
    require_packages(name)
    assert judge(tmp_path, name, **more) == "ok"


FOUR_STAGES = {"pipe": 2, "microbatches": 4, "balance": "1,1,2,1"}
LEARNED = {**EXPERTS, "routing": "learned"}
# Axes -> topology, their sizes and other options, fields of the cell.
MESHES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tensor": ("1x2", {"tensor": 2, "microbatches": 2}, {"model": "llama"}),
    "copy": ("1x2", {"copy": 2}, {}),
    "pipe": (
        *("1x2", {"pipe": 2, "microbatches": 4}),
        {"checkpointing": "full", "compile": True},
    ),
    "context": ("1x2", {"context": 2, "microbatches": 2}, {"checkpointing": "full"}),
    # With fewer heads of keys and values than ranks.
    "context, gathered": ("1x4", {"context": 4}, {"model": "llama"}),
    "expert": ("1x2", {"expert": 2}, {"checkpointing": "selective"}),
    "expert, learned": ("1x2", {"expert": 2}, {"model_options": LEARNED}),
    "expert, idle": (
        "1x4",
        {"expert": 4},
        # Some experts get no tokens.
        {
            "model_options": {**LEARNED, "experts": 64, "top_k": 1},
            "context": 2,
            "batch_size": 2,
        },
    ),
    "shard tensor, tied": ("1x4", {"tensor": 2}, {"model_options": TIED}),
    "shard tensor": ("1x4", {"tensor": 2}, {"checkpointing": "selective"}),
    "context tensor": ("1x4", {"context": 2, "tensor": 2}, {}),
    "pipe tensor": ("1x4", {**FOUR_STAGES, "tensor": 2, "schedule": "zbv"}, {}),
    "pipe shard": ("1x4", {**FOUR_STAGES, "schedule": "interleaved"}, {}),
    "pipe context": ("1x4", {"pipe": 2, "context": 2, "microbatches": 2}, {}),
    "copy expert": ("1x4", {"copy": 2, "expert": 2}, {}),
    "tensor expert": ("1x4", {"tensor": 2, "expert": 4}, {}),
    "pipe shard tensor": ("1x8", {"pipe": 2, "tensor": 2, "microbatches": 2}, {}),
}


@pytest.mark.parametrize("axes", MESHES)
def test_a_mesh_trains_as_a_single_process(axes, tmp_path):
    topology, options, more = MESHES[axes]
    if more.get("model") == "llama":
        more = {"model_options": LLAMA, **more}
    elif "expert" in axes:
        more = {"model": "llama", "model_options": EXPERTS, **more}
    more = {**more, "topology": topology, "options": options, "clip_gradients": 0.5}
    assert judge(tmp_path, "mesh", **more) == "ok"


# Error -> strategy or axes of a mesh, file, the right line, and a wrong one.
ERRORS: dict[str, tuple[str | dict[str, int], str, str, str]] = {
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
        {"context": 2},
        "_axes.py",
        " + self.context.place * len(places)",
        "",
    ),
    "gradients are added up over context twice": (
        {"context": 2},
        "mesh.py",
        "            self.backward(loss)\n",
        "            self.backward(loss * self.axes['context'].size)\n",
    ),
    "a shard is drawn with a seed of its own": (
        {"shard": 4},
        "../models/_blueprint.py",
        "_seed_of(self._seed, number, block))",
        "_seed_of(self._seed, number, block) + begin)",
    ),
    "keys of another head are taken": (
        {"context": 4},
        "_axes.py",
        "own = axis.place // (axis.size // few)\n",
        "own = axis.place % few\n",
    ),
    "a token is sent to the wrong expert": (
        {"expert": 2},
        "_axes.py",
        "for i in range(few) for part in parts[i::few]",
        "for i in reversed(range(few)) for part in parts[i::few]",
    ),
    "gradients of experts are averaged over those who send": (
        {"expert": 2},
        "_axes.py",
        "factor = self.tensor.size / self.expert.size\n",
        "factor = 1.0\n",
    ),
    "gradients of norms are not added up": (
        {"tensor": 2},
        "_axes.py",
        '("same",), ("sum",)',
        '("same",), ("same",)',
    ),
    "the loss knows a rank's words alone": (
        {"tensor": 2},
        "_axes.py",
        "_sum(sums, axis.group)",
        "sums",
    ),
    "micro-batches are weighed by the size of a mesh": (
        {"pipe": 2, "microbatches": 2},
        "mesh.py",
        "both, *self._loss) / self.count\n",
        "both, *self._loss) / self.world.size\n",
    ),
    "gradients of other stages are not clipped along": (
        "pipeline",
        "pipeline.py",
        "clip(self.optimizer, max_norm, self.group)\n",
        "clip(self.optimizer, max_norm)\n",
    ),
}


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_is_found(error, tmp_path):
    strategy, file, right, wrong = ERRORS[error]
    code = copy_code(tmp_path)
    path = code / "rankbench/rank/strategies" / file
    assert path.read_text().count(right) == 1
    path.write_text(path.read_text().replace(right, wrong))
    more: dict[str, Any] = {"clip_gradients": 0.5} if "clipped" in error else {}
    if isinstance(strategy, dict):
        more |= {"topology": "1x4", "options": strategy}
        if "expert" in strategy:
            more |= {"model": "llama", "model_options": LEARNED}
        strategy = "mesh"
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
        (
            "mesh",
            {
                "topology": "1x4",
                "options": {"pipe": 2, "tensor": 2, "microbatches": 2},
            },
        ),
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
    more: dict[str, Any] = {"steps": 4, "epochs": None, "warmup": 2}
    more |= {"model": "llama", "model_options": LEARNED}
    for name in ("mesh", "single"):
        cell = arguments("mesh", **more, options={"expert": 2})
        if name == "single":
            cell |= {"strategy": name, "backend": "none", "topology": "1x1"}
            del cell["options"]
        for report in run_ranks(tmp_path / name, "measure", **cell):
            routed = report["rank"]["details"]["routed"]
            assert [*routed] == ["block1.mlp.experts", "block2.mlp.experts"]
            for counts in routed.values():
                assert len(counts) == EXPERTS["experts"]
                passes, rest = divmod(sum(counts), 2 * 8 * 16)
                assert rest == 0
                assert passes >= 6
