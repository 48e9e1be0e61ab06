"""The gate finds every planted error, and refuses no strategy that is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from equipment import (
    ON_CPU,
    STRATEGIES,
    backend_of,
    case,
    fitting_model,
    require_packages,
)
from gate_ranks import copy_code, run_gate

from rankbench.launch.process.classify import TOLERANCE
from rankbench.matrix.catalog import load_catalog

pytestmark = pytest.mark.contract

COMPARED = [name for name in ON_CPU if name != "single"]
# These are built of the same parts as resnet18.
DEEPER = ("resnet50", "resnet101")
# Torch computes its odd sizes slowly.
SLOW = ("pyramidnet",)

# A strategy that averages gradients after backward; each planted error changes one
# line.
RIGHT = '''
import torch
from torch import distributed
from rankbench.rank.strategies.base import Strategy


class Planted(Strategy):
    """An average of gradients, right or wrong."""

    needs = {"backends": ["gloo"]}
    phases = ["forward", "backward", "communication", "update"]

    def setup(self, model, make_optimizer):
        self.model = model
        self.optimizer = make_optimizer(model.parameters())

    def step(self, batch, mark):
        loss = self.compute_loss(self.model, batch)
        self.backward(loss)
        for parameter in self.model.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= self.world.size
        self.update()
        return loss.detach()

    def state_dict(self):
        return self.model.state_dict()
'''
ALL_REDUCE = "            distributed.all_reduce(parameter.grad)\n"
DIVIDE = "            parameter.grad /= self.world.size\n"
ERRORS = {
    "one shard is trained only": (
        ALL_REDUCE + DIVIDE,
        "            distributed.broadcast(parameter.grad, src=0)\n",
    ),
    "the sum is taken for the mean": (DIVIDE, ""),
    "the mean is taken twice": (DIVIDE, DIVIDE + DIVIDE),
    "the all-reduce is forgotten": (ALL_REDUCE + DIVIDE, "            pass\n"),
    "one bias is forgotten": (
        ALL_REDUCE + DIVIDE,
        "            if parameter.numel() != 84:\n"
        + "".join("    " + line + "\n" for line in (ALL_REDUCE + DIVIDE).splitlines()),
    ),
    "gradients are clipped": (
        "        self.update()\n",
        "        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)\n"
        "        self.update()\n",
    ),
    "gradients are not cleared": (
        "        self.update()\n",
        "        self.optimizer.step()\n",
    ),
}
SAMPLER = "        rank=_replica_of(duty.place.rank, ranks, sharing, cell),\n"


def plant(folder: Path, before: str, after: str) -> Path:
    """The code with a strategy `planted` that holds an error."""
    code = copy_code(folder)
    assert RIGHT.count(before) == 1
    path = code / "rankbench/rank/strategies/planted.py"
    path.write_text(RIGHT.replace(before, after))
    return code


def plant_in_sampler(folder: Path, after: str) -> Path:
    code = copy_code(folder)
    path = code / "rankbench/rank/purposes/setup.py"
    text = path.read_text()
    assert text.count(SAMPLER) == 1
    path.write_text(text.replace(SAMPLER, after))
    return code


def test_what_the_errors_are_planted_in_is_right(tmp_path):
    code = plant(tmp_path, DIVIDE, DIVIDE)
    status, reason, _ = run_gate(
        tmp_path / "gate", code=code, strategy="planted", topology="1x2"
    )
    assert (status, reason) == ("ok", None)


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_is_found(error, tmp_path):
    code = plant(tmp_path, *ERRORS[error])
    status, reason, numbers = run_gate(
        tmp_path / "gate", code=code, strategy="planted", topology="1x2"
    )
    assert status == "mismatch"
    assert "does not train what a single process trains" in str(reason)
    assert numbers["weights_error"] > 1000 * TOLERANCE["float64"]


@pytest.mark.parametrize(
    ("approximate", "period", "judged"),
    [
        ("[2, 4]", 3, ("mismatch", False)),
        ('"not default"', 3, ("ok", True)),
        # The outer step is exact, so an error in it would be found.
        ('"not default"', 1, ("ok", False)),
    ],
)
def test_every_value_but_the_default_may_be_lossy(
    approximate, period, judged, tmp_path
):
    code = copy_code(tmp_path)
    path = code / "rankbench/rank/strategies/local_sgd.py"
    text = path.read_text()
    assert text.count('"period": "not default"') == 1
    path.write_text(text.replace('"period": "not default"', f'"period": {approximate}'))
    status, _, numbers = run_gate(
        tmp_path / "gate",
        code=code,
        strategy="local_sgd",
        topology="1x2",
        optimizer="sgd",
        options={"period": period},
    )
    assert (status, numbers["lossy"]) == judged


def test_gradients_that_few_bits_lose_are_found_by_the_trend(tmp_path):
    """In float64 the strategy is right, so only the second comparison shows it."""
    lost = "            parameter.grad *= self.low_dtype is None\n"
    code = plant(tmp_path, DIVIDE, DIVIDE + lost)
    status, reason, numbers = run_gate(
        tmp_path / "gate",
        code=code,
        strategy="planted",
        topology="1x2",
        precision="bf16",
        **fitting_model("mesh"),
    )
    assert (status, numbers["trend"]["dtype"]) == ("mismatch", "bfloat16")
    assert "in bfloat16, the loss after 20 steps" in str(reason)
    assert numbers["weights_error"] < TOLERANCE["float64"]


def test_samples_that_are_seen_twice_are_found(tmp_path):
    code = plant_in_sampler(tmp_path, "        rank=0,\n")
    status, _, _ = run_gate(tmp_path / "gate", code=code, topology="1x2")
    assert status == "mismatch"


@pytest.mark.parametrize(("hosts", "status"), [(1, "ok"), (2, "mismatch")])
def test_a_sampler_by_local_rank_is_found_on_several_hosts(hosts, status, tmp_path):
    """The error of a published tutorial: one host alone does not show it."""
    code = plant_in_sampler(tmp_path, "        rank=duty.place.local_rank,\n")
    topology = f"{hosts}x{2 // hosts}"
    found, _, _ = run_gate(tmp_path / "gate", code=code, hosts=hosts, topology=topology)
    assert found == status


@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [case(name) for name in COMPARED])
def test_no_correct_strategy_is_refused(name, seeds, tmp_path):
    require_packages(name)
    status, reason, numbers = run_gate(
        tmp_path / "gate",
        seeds=range(seeds),
        strategy=name,
        topology="1x2",
        backend=backend_of(name),
        **fitting_model(name),
    )
    assert (status, reason, numbers["seeds"]) == ("ok", None, seeds)
    assert numbers["weights_error"] < TOLERANCE[numbers["dtype"]] / 10


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(name, marks=pytest.mark.further) if name in SLOW else name
        for name in load_catalog().models
        if name not in DEEPER
    ],
)
def test_it_judges_every_model(model, tmp_path):
    """Also those that normalise over the batch, which a split would change."""
    tokens = load_catalog().models[model]["inputs"] == "tokens"
    status, reason, numbers = run_gate(
        tmp_path / "gate",
        topology="1x2",
        model=model,
        data="tokens" if tokens else "synthetic",
        context=16 if tokens else None,
        batch_size=2,
    )
    assert (status, reason) == ("ok", None)
    assert numbers["dtype"] == "float64"


@pytest.mark.parametrize(
    "name", [case(name) for name in COMPARED if STRATEGIES[name]["needs"]["clips"]]
)
def test_gradients_are_clipped_by_the_norm_of_all_of_them(name, tmp_path):
    """The loss of the gate is scaled up, so every step is clipped."""
    require_packages(name)
    status, reason, _ = run_gate(
        tmp_path / "gate",
        strategy=name,
        topology="1x2",
        clip_gradients=0.5,
        fused_optimizer=True,
        optimizer="adam",
        learning_rate=0.01,
        backend=backend_of(name),
        **fitting_model(name),
    )
    assert (status, reason) == ("ok", None)


def test_gradients_that_are_clipped_by_the_norm_of_a_shard_are_found(tmp_path):
    code = plant(
        tmp_path,
        "        self.update()\n",
        """\
        for parameter in self.model.parameters():
            torch.nn.utils.clip_grad_norm_([parameter], self.max_norm)
        self.max_norm = None
        self.update()
        self.max_norm = 0.5
""",
    )
    status, _, _ = run_gate(
        tmp_path / "gate",
        code=code,
        strategy="planted",
        topology="1x2",
        clip_gradients=0.5,
    )
    assert status == "mismatch"


@pytest.mark.parametrize(
    ("optimizer", "more"),
    [
        ("adam", {}),
        ("adamw", {}),
        # Its own Adam, which it compiles where there is none yet.
        pytest.param(
            *("adamw", {"strategy": "deepspeed", "options": {"offload": "cpu"}}),
            marks=[pytest.mark.equipment, pytest.mark.further],
        ),
    ],
)
def test_it_judges_every_optimizer(optimizer, more, tmp_path):
    require_packages(more.get("strategy", "ddp"))
    cell = {"topology": "1x2", "optimizer": optimizer, "learning_rate": 0.001}
    status, reason, _ = run_gate(tmp_path / "gate", **cell, **more)
    assert (status, reason) == ("ok", None)


@pytest.mark.equipment
def test_an_optimizer_that_cannot_be_compiled_is_named(tmp_path):
    require_packages("deepspeed")
    nothing = {"PATH": str(tmp_path), "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    with pytest.raises(AssertionError, match=r"install a C\+\+ compiler, or take"):
        run_gate(
            tmp_path / "gate",
            strategy="deepspeed",
            options={"offload": "cpu"},
            optimizer="adamw",
            topology="1x1",
            variables=nothing,
        )
