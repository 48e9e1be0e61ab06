"""Every strategy and option, one step as one rank of many, without the others.

Counted bytes are those that the strategy declares, no rank holds more of the model than
its strategy says, and the host waits for the device no more often than declared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from equipment import STRATEGIES

from factories import make_cell, make_site
from rankbench.cell import Cell
from rankbench.cli import main
from rankbench.matrix.candidate import make_candidate
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.feasible import find_least_state
from rankbench.project import open_run

pytestmark = pytest.mark.contract

MODEL = {"layers": 2, "width": 64, "heads": 8}
# A part for each of 8 stages.
LONG = {"layers": 6, "width": 64, "heads": 8}
GPT = {"model": "gpt", "data": "tokens", "context": 32, "batch_size": 8}
# Ranks agree upon numbers of so few bytes; they do not count.
AGREEMENT = 64
# torch's DDP reads which weights were used from memory of the host.
READS_HOST_MEMORY = "ddp static_graph=True"


@dataclass
class Case:
    """A cell, and which of its ranks are tried: the first and the last."""

    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    cell: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None

    @property
    def name(self) -> str:
        told = {**self.options, **self.cell}
        told.pop("model_options", None)
        return " ".join([self.strategy, *(f"{k}={v}" for k, v in told.items())])

    def make(self) -> Cell:
        changes = {"topology": "1x8", "model_options": MODEL, "momentum": 0.9}
        changes |= {**GPT, **self.cell}
        return make_cell(strategy=self.strategy, options=self.options, **changes)

    def candidate(self) -> Any:
        return make_candidate(self.make(), make_site(), load_catalog())

    def ask(self) -> dict[str, Any]:
        shape = self.candidate().shape
        return {
            "cell": self.make().to_dict(),
            "shape": shape.to_dict(),
            "own": {"strategy": str(self.file)} if self.file else {},
            "ranks": sorted({0, shape.ranks - 1}),
        }


BF16, MESH = {"precision": "bf16"}, {"topology": "2x8"}
STAGES = {"model_options": LONG}
CASES = [
    Case("single", cell={"topology": "1x1"}),
    Case("ddp"),
    Case("ddp", {"accumulation": 4}, BF16),
    Case("ddp", {"compression": "fp16"}),
    Case("ddp", {"compression": "powersgd", "powersgd_rank": 2}),
    Case("ddp", {"static_graph": True}),
    Case("ddp", {"gradient_as_bucket_view": True}, {"precision": "fp16"}),
    Case("ddp_dp", cell={"topology": "8x2"}),
    Case("zero1"),
    Case("zero1", {"parameters_as_bucket_view": True}),
    Case("fsdp"),
    Case("fsdp", {"reshard_after_forward": False}, BF16),
    Case("fsdp", {"shard_ranks": 4}, BF16),
    Case("fsdp", cell={"checkpointing": True}),
    Case("fsdp", {"implementation": "fsdp1"}),
    Case("fsdp", {"implementation": "fsdp1", "shard_ranks": 4}),
    Case("tp"),
    Case("tp", {"degree": 4}, {**MESH, **BF16}),
    Case("tp_fsdp", {}, MESH),
    Case("tp_fsdp", {"degree": 8, "reshard_after_forward": False}, {**MESH, **BF16}),
    Case("gpipe", {}, STAGES),
    Case("gpipe", {"schedule": "1f1b", "microbatches": 8}, {**STAGES, **BF16}),
    Case(
        "gpipe",
        {"schedule": "interleaved", "microbatches": 8},
        {**STAGES, "topology": "1x4"},
    ),
    Case("mp", {}, {"topology": "1x4"}),
    Case("pmp", {"backward": "early"}, {"topology": "1x4"}),
]
DEEPSPEED = [
    Case("deepspeed", {"stage": stage}, cell)
    for stage in range(4)
    for cell in ({}, BF16)
]


def estimate(cases: list[Case]) -> dict[str, dict[str, Any]]:
    """What the estimator says of each case, by its name."""
    done = subprocess.run(
        [sys.executable, "-m", "rankbench.rank.purposes.estimate"],
        input=json.dumps([case.ask() for case in cases]),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    return {
        case.name: json.loads(line) for case, line in zip(cases, lines, strict=True)
    }


def find_faults(case: Case, rank: dict[str, Any]) -> list[str]:
    """What a rank does that its strategy does not declare."""
    faults = []
    counted, declared = _bytes(rank["sent"]), _bytes(rank["declared"])
    for kind in counted.keys() | declared.keys():
        more = counted[kind] - declared[kind]
        if more < 0 or more > AGREEMENT:
            faults.append(f"sends {counted[kind]}, declares {declared[kind]}: {kind}")
    faults += rank["strays"]
    if rank["waits"] != rank["may_wait"] and case.name != READS_HOST_MEMORY:
        faults.append(f"waits {rank['waits']} times, declares {rank['may_wait']}")
    state = find_least_state(case.candidate())
    if state is not None:
        # Shards of a few weights more than its share; a stage may hold the head.
        devices = case.candidate().shape.devices_per_rank
        room = 1.1 * devices * state["weights"] + 4 * 64 * 513
        held = rank["parts"]["weights"]
        # ZeRO-3 keeps small weights gathered.
        if held > room and case.strategy != "deepspeed":
            faults.append(f"holds {held} bytes of weights, declares {room:.0f}")
        least = sum(state[kind] for kind in ("weights", "optimizer"))
        if case.strategy != "gpipe" and rank["step"] < 0.99 * least:
            faults.append(f"needs {rank['step']}, declares {least:.0f}")
    return faults


def _bytes(operations: list[dict[str, Any]]) -> dict[Any, float]:
    found: dict[Any, float] = defaultdict(float)
    for one in operations:
        found[one["operation"], one["group"], one["dtype"]] += one["bytes"]
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return estimate(CASES)


def test_every_strategy_is_tried():
    tried = {case.strategy for case in (*CASES, *DEEPSPEED)}
    # Those of UNKNOWN communicate outside of torch, or need several GPUs.
    assert tried | UNKNOWN.keys() >= STRATEGIES.keys()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rank_does_what_its_strategy_declares(case, found):
    assert "unknown" not in found[case.name], found[case.name]
    for rank in found[case.name]["ranks"]:
        assert find_faults(case, rank) == []
        assert sum(rank["parts"].values()) == rank["step"]


@pytest.mark.equipment
def test_deepspeed_does_what_it_declares():
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    found = estimate(DEEPSPEED)
    for case in DEEPSPEED:
        assert "unknown" not in found[case.name], found[case.name]
        faults = [find_faults(case, rank) for rank in found[case.name]["ranks"]]
        assert faults == [[], []], case.name


UNKNOWN = {
    "horovod": Case("horovod"),
    "rpc_pmp": Case("rpc_pmp", {}, STAGES),
    "dp": Case("dp", {}, {"device": "cuda"}),
}


def test_what_cannot_be_estimated_says_why():
    found = estimate(list(UNKNOWN.values()))
    for name, case in UNKNOWN.items():
        assert name in found[case.name]["unknown"]


PLANTED = """
import torch
from torch import distributed
from rankbench.rank.strategies.{base} import {kind}

class Planted({kind}):
    def train_on(self, batch, mark):
        loss = super().train_on(batch, mark)
        {fault}
        return loss
"""


@pytest.mark.parametrize(
    ("name", "fault", "said"),
    [
        (
            "undeclared",
            "distributed.all_gather_into_tensor(torch.empty(800), torch.empty(100))",
            "sends 3200.0, declares 0",
        ),
        ("waiting", "float(loss)", "waits 1 times, declares 0"),
    ],
)
def test_planted_faults_are_found(name, fault, said, tmp_path):
    file = tmp_path / f"{name}.py"
    file.write_text(PLANTED.format(base="tp", kind="TensorParallel", fault=fault))
    (rank, _) = estimate([Case("tp", file=file)])["tp"]["ranks"]
    assert any(said in one for one in find_faults(Case("tp"), rank))


WHOLE = """
from rankbench.rank.strategies.ddp import Ddp

class Whole(Ddp):
    pass
"""


def test_a_model_that_is_held_whole_is_found(tmp_path):
    file = tmp_path / "whole.py"
    file.write_text(WHOLE)
    options = {
        **make_cell(strategy="ddp").options,
        **make_cell(strategy="fsdp").options,
    }
    case = Case("fsdp", options, file=file)
    (rank, _) = estimate([case])[case.name]["ranks"]
    assert any("bytes of weights" in one for one in find_faults(Case("fsdp"), rank))


SEVEN = """
name: seven
strategy: [fsdp, ddp]
model: {gpt: {layers: 2, width: 512, heads: 8, vocabulary: 50368}}
data: tokens
context: 128
backend: nccl
device: cuda
precision: bf16
batch_size: 2
topology: 8x8
steps: 5
"""
SITE = """
scheduler: slurm
device: cuda
devices_per_node: 8
nodes: 8
cores: 16
software: native
device_memory_gib: 2
"""


def test_cells_says_what_fits_without_a_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("profile").mkdir()
    Path("profile/site.yaml").write_text(SITE)
    Path("seven.yaml").write_text(SEVEN)
    asked = ["cells", "seven.yaml", "--memory", "--site", "profile", "--json"]
    assert main(asked) == 0
    fsdp, ddp = (one["memory"] for one in json.loads(capsys.readouterr().out)["cells"])
    assert ddp["parts"]["weights"] > 60 * fsdp["parts"]["weights"]
    assert ddp["step"] > fsdp["step"]
    assert (fsdp["fits"], ddp["fits"]) == (True, False)
    assert {one["operation"] for one in fsdp["sent"]} == {
        "all_gather",
        "reduce_scatter",
    }
    # The second time nothing is computed.
    kept = Path("results/seven/memory.json")
    before = kept.stat().st_mtime_ns
    assert main([*asked, "--only", "strategy=fsdp", "--fit", "batch_size"]) == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert kept.stat().st_mtime_ns == before
    assert cell["memory"] == fsdp
    assert cell["largest_batch"] > 2
    # Planning knows what was found.
    plan = open_run({"experiment": "seven.yaml"}, profile=Path("profile"), write=False)
    assert [p.estimated_mib for p in plan.plan.cells.values()] == [
        one["step"] / 2**20 for one in (fsdp, ddp)
    ]
