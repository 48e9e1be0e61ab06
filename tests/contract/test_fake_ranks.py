"""Every strategy and option, one step as one rank of many, without the others.

Counted bytes are those that the strategy declares, no rank holds more of the model than
its strategy says, and the host waits for the device no more often than declared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from equipment import STRATEGIES
from pretend_gpus import compile_gpus

from conftest import ROOT
from factories import make_cell, make_site
from rankbench.cell import Cell
from rankbench.cli import main
from rankbench.decoder import describe_decoder
from rankbench.matrix.candidate import make_candidate
from rankbench.matrix.catalog import load_catalog
from rankbench.project.run import open_run

pytestmark = pytest.mark.contract

MODEL = {"layers": 2, "width": 64, "heads": 8}
# A part for each of 8 stages.
LONG = {"layers": 6, "width": 64, "heads": 8}
GPT = {"model": "gpt", "data": "tokens", "context": 32, "batch_size": 8}
# Ranks agree upon numbers of so few bytes; they do not count.
AGREEMENT = 64
# Bytes by which shards of small weights, or their blocks of memory, are larger.
ROUNDING = 4 * 64 * 513
# torch's DDP reads which weights were used from memory of the host.
READS_HOST_MEMORY = "ddp static_graph=True"


# Strategies whose ranks are not alike: the first and the last are tried.
UNLIKE = ("pipeline", "mp", "pmp")


@dataclass
class Case:
    """A cell, and which of its ranks are tried."""

    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    cell: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None

    @property
    def name(self) -> str:
        told = {**self.options, **self.cell}
        told.pop("model_options", None)
        name = self.file.stem if self.file else self.strategy
        return " ".join([name, *(f"{k}={v}" for k, v in told.items())])

    def make(self) -> Cell:
        changes = {"topology": "1x8", "model_options": MODEL, "momentum": 0.9}
        changes |= {**GPT, **self.cell}
        return make_cell(strategy=self.strategy, options=self.options, **changes)

    def candidate(self) -> Any:
        return make_candidate(self.make(), make_site(), load_catalog())

    def ask(self, gpus: bool) -> dict[str, Any]:
        """What the estimator is asked; on pretended GPUs, of both ends."""
        shape = self.candidate().shape
        both = self.strategy in UNLIKE or "pipe" in self.options
        both |= gpus and not self.file
        return {
            "cell": self.make().to_dict() | ({"device": "cuda"} if gpus else {}),
            "shape": shape.to_dict(),
            "own": {"strategy": str(self.file)} if self.file else {},
            "ranks": sorted({0, shape.ranks - 1} if both else {0}),
        }

    def may_hold(self) -> float:
        """Bytes of the weights that belong to a rank."""
        cell, shape = self.make(), self.candidate().shape
        vocabulary = load_catalog().data["tokens"]["vocabulary"]
        model = describe_decoder(
            cell.model_options, vocabulary=vocabulary, context=cell.context or 0
        )
        if self.strategy == "mesh":
            # All but copies share.
            return 4 * model.parameters / shape.ranks * cell.options["copy"]
        ranks = {
            "pipeline": shape.replica_ranks,
            "fsdp": cell.options.get("shard_ranks") or shape.ranks,
        }
        return 4 * model.parameters / ranks.get(self.strategy, 1)


# Heads of keys and values that several heads share, and an MLP with a gate.
GATED = {"kv_heads": 8, "heads": 16, "mlp": "swiglu", "width": 96}
BF16, MESH = {"precision": "bf16"}, {"topology": "2x8"}
STAGES, FOUR, TWO = {"model_options": LONG}, {"topology": "1x4"}, {"topology": "1x2"}
TIED = {"model_options": {**MODEL, "tie_embeddings": True}}
EXPERTS = {"model": "llama", "model_options": {**MODEL, "experts": 8}}
LEARNED = {
    "model": "llama",
    "model_options": {**MODEL, "experts": 8, "routing": "learned"},
}
FEW_EXPERTS = {"model": "llama", "model_options": {**MODEL, "experts": 4}}
FEW_HEADS = {"model_options": {**MODEL, "kv_heads": 2}}
PIPE = {"pipe": 2, "microbatches": 4}
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
    Case("local_sgd"),
    Case("local_sgd", {"period": 16, "outer_momentum": 0.9}),
    Case("fsdp"),
    Case("fsdp", {"reshard_after_forward": False}, BF16),
    Case("fsdp", {"shard_ranks": 4}, BF16),
    Case("fsdp", {"offload": True}, BF16),
    Case("fsdp", {"offload": True}, {"device": "cuda", "precision": "fp8"}),
    Case("fsdp", {"accumulation": 2}, TIED),
    Case("fsdp", {}, EXPERTS),
    Case("mesh", {"tensor": 8}, {**MESH, **BF16}),
    Case("mesh", {"tensor": 2, "microbatches": 2}, {"checkpointing": "selective"}),
    Case("mesh", {"tensor": 2, "reshard_after_forward": False}, TIED),
    Case("mesh", {"context": 8}, BF16),
    Case("mesh", {"context": 8}, {**FEW_HEADS, "checkpointing": "selective"}),
    Case("mesh", {"expert": 8}, EXPERTS),
    Case("mesh", {"expert": 2}, {**LEARNED, "checkpointing": "selective"}),
    # More ranks than experts.
    Case("mesh", {"tensor": 2}, {**FEW_EXPERTS, "checkpointing": "full"}),
    Case("pipeline", {"schedule": "gpipe"}, STAGES),
    Case("pipeline", {}, {**FOUR, **BF16}),
    *(
        Case("pipeline", {"schedule": name, "microbatches": 4}, TWO)
        for name in ("interleaved", "zero-bubble", "zbv", "dualpipev")
    ),
    Case("mesh", {**PIPE, "tensor": 2}),
    Case("mesh", {**PIPE, "context": 2}, {"checkpointing": "full"}),
    Case("mp", {}, FOUR),
    Case("pmp", {"backward": "early"}, FOUR),
]
# Several of these at once. On pretended GPUs alone, which find the same faults.
MIXED = [
    Case("fsdp", cell={"checkpointing": "full"}),
    Case("fsdp", {"accumulation": 4}, BF16),
    Case("mesh"),
    Case("mesh", {"microbatches": 2}, {**BF16, "checkpointing": "full"}),
    Case("mesh", {"tensor": 4, "copy": 4}, {**MESH, "checkpointing": "full"}),
    Case("mesh", {"tensor": 8}, {"model_options": {**MODEL, **GATED}, **BF16}),
    Case("mesh", {"context": 4, "microbatches": 2}, {**MESH, "checkpointing": "full"}),
    Case("mesh", {"context": 4, "tensor": 2}, BF16),
    Case("mesh", {"expert": 4}, {**EXPERTS, **BF16, "checkpointing": "full"}),
    Case("mesh", {"expert": 4, "copy": 2}, {**LEARNED, **BF16}),
    Case("mesh", {"expert": 4, "tensor": 2}, EXPERTS),
    Case("pipeline", {}, {**FOUR, "checkpointing": "full"}),
    Case("mesh", {**PIPE, "tensor": 4, "copy": 2}, {**BF16, **MESH}),
    *(
        Case("mesh", {**PIPE, "tensor": 2, "schedule": name})
        for name in ("interleaved", "zero-bubble", "zbv", "dualpipev")
    ),
]
DEEPSPEED = [
    Case("deepspeed", {"stage": stage}, cell)
    for stage in range(4)
    for cell in ({}, BF16)
]


def estimate(
    cases: list[Case], *, gpus: Path | None = None
) -> dict[str, dict[str, Any]]:
    """What the estimator says of each case, by its name.

    Args:
        gpus: the library of `pretend_gpus`; None: tensors are on a CPU.
    """
    module, env = "rankbench.rank.purposes.estimate", {"OMP_NUM_THREADS": "1"}
    if gpus:
        module = "pretend_gpus"
        places = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        env |= {"LD_PRELOAD": str(gpus), "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps([case.ask(gpus is not None) for case in cases]),
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    return {
        case.name: json.loads(line) for case, line in zip(cases, lines, strict=True)
    }


def count_waits(cell: Cell) -> int:
    """How often the host reads a number, such as whether gradients have overflowed."""
    if cell.strategy != "deepspeed":
        return int(cell.precision == "fp16")
    low = cell.precision == "bf16"
    if cell.options["stage"] == 0:
        # Embeddings, norm and head, and ten weights of each block.
        return (5 + 10 * MODEL["layers"] + 3) * low
    return 2 if low and cell.options["stage"] < 3 else 1


def find_faults(case: Case, rank: dict[str, Any]) -> list[str]:
    """What a rank does that its strategy does not declare."""
    faults = []
    counted, declared = _bytes(rank["sent"]), _bytes(rank["declared"])
    for kind in counted.keys() | declared.keys():
        more = counted[kind] - declared[kind]
        if more < 0 or more > AGREEMENT:
            faults.append(f"sends {counted[kind]}, declares {declared[kind]}: {kind}")
    faults += rank["strays"]
    may_wait = count_waits(case.make())
    if rank["waits"] != may_wait and case.name != READS_HOST_MEMORY:
        faults.append(f"waits {rank['waits']} times, not {may_wait}")
    held, mine = rank["parts"]["weights"], case.may_hold()
    # Shards of a few weights more than its share; a stage may hold the head. ZeRO-3
    # keeps small weights gathered.
    if held > 1.1 * mine + ROUNDING and case.strategy != "deepspeed":
        faults.append(f"holds {held} bytes of weights, of which {mine:.0f} are its own")
    if rank["setup"] > rank["step"] + mine + ROUNDING:
        faults.append(f"set-up needs {rank['setup']}, a step {rank['step']}")
    return faults


def check(case: Case, found: dict[str, dict[str, Any]]) -> None:
    assert "unknown" not in found[case.name], (case.name, found[case.name])
    for rank in found[case.name]["ranks"]:
        assert find_faults(case, rank) == [], case.name
        assert sum(rank["parts"].values()) == rank["step"]


def _bytes(operations: list[dict[str, Any]]) -> dict[Any, float]:
    found: dict[Any, float] = defaultdict(float)
    for one in operations:
        found[one["operation"], one["group"], one["dtype"]] += one["bytes"]
    return found


UNKNOWN = {
    "horovod": Case("horovod"),
    "rpc_pmp": Case("rpc_pmp", {}, STAGES),
    "dp": Case("dp", {}, {"device": "cuda"}),
}
LLAMA = {**EXPERTS, "model_options": MODEL, **BF16, "topology": "1x1"}
NORMS = [Case("single", {}, {**LLAMA, "device": place}) for place in ("cpu", "cuda")]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return estimate([*CASES, *UNKNOWN.values(), *NORMS])


def test_every_strategy_is_tried():
    tried = {case.strategy for case in (*CASES, *DEEPSPEED)}
    # Those of UNKNOWN communicate outside of torch, or need several GPUs.
    assert tried | UNKNOWN.keys() >= STRATEGIES.keys()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rank_does_what_its_strategy_declares(case, found):
    check(case, found)


@pytest.mark.equipment
def test_deepspeed_does_what_it_declares():
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    found = estimate(DEEPSPEED)
    for case in DEEPSPEED:
        check(case, found)


def test_what_cannot_be_estimated_says_why(found):
    for name, case in UNKNOWN.items():
        assert name in found[case.name]["unknown"]


PLANTED = """
import torch
from torch import distributed
from rankbench.rank.strategies.fsdp import Fsdp

class Planted(Fsdp):
    like = "fsdp"

    def setup(self, model, make_optimizer):
        # BEFORE
        super().setup(model, make_optimizer)

    def step(self, batch, mark):
        inputs, targets = batch
        # WITHIN
        loss = super().step((inputs, targets), mark)
        # AFTER
        return loss
"""
# Name of a fault -> where it is, and the fault.
FAULTS = {
    "whole": ("# BEFORE", "self.load(model, self.world.device)"),
    "left": ("# WITHIN", "targets = targets.cpu()"),
    "waiting": ("# AFTER", "float(loss)"),
    "undeclared": (
        "# AFTER",
        "distributed.all_gather_into_tensor(loss.new_empty(800), loss.new_empty(100))",
    ),
    "strange": ("# AFTER", "distributed.all_reduce(torch.zeros(8))"),
}
SAID = {
    "whole": "set-up needs",
    "waiting": "waits 1 times, not 0",
    "undeclared": "('all_gather', 8, 'float32')",
}
# Larger than its activations.
WIDE = {"model_options": {"layers": 8, "width": 512, "heads": 8}, "context": 8}


def find_planted(folder: Path, gpus: Path | None = None) -> dict[str, str]:
    """What is said of each planted fault."""
    cases = {}
    for name, (place, fault) in FAULTS.items():
        file = folder / f"{name}.py"
        file.write_text(PLANTED.replace(place, fault))
        cases[name] = Case("fsdp", {}, WIDE if name == "whole" else {}, file)
    found = estimate([*cases.values()], gpus=gpus)
    said = {}
    for name, case in cases.items():
        of_case = found[case.name]
        faults = [of_case.get("unknown", "")]
        if "ranks" in of_case:
            faults = find_faults(case, of_case["ranks"][0])
        said[name] = "; ".join(faults)
    return said


def test_planted_faults_are_found(tmp_path):
    said = find_planted(tmp_path)
    for name, words in SAID.items():
        assert words in said.pop(name)
    # On a CPU every tensor is where it belongs.
    assert said == {"left": "", "strange": ""}


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    return compile_gpus(compiler, tmp_path_factory.mktemp("gpus"))


@pytest.mark.equipment
def test_ranks_on_pretend_gpus_do_what_their_strategies_declare(gpus):
    cases = [case for case in [*CASES, *MIXED] if case.name != READS_HOST_MEMORY]
    # Those with one process for several GPUs cannot be estimated.
    cases = [case for case in cases if case.candidate().shape.devices_per_rank == 1]
    found = estimate(cases, gpus=gpus)
    for case in cases:
        check(case, found)


@pytest.mark.equipment
def test_deepspeed_on_pretend_gpus_does_what_it_declares(gpus):
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    cases = [case for case in DEEPSPEED if case.cell == BF16]
    found = estimate(cases, gpus=gpus)
    for case in cases:
        check(case, found)


@pytest.mark.equipment
def test_faults_that_only_gpus_show(gpus, tmp_path):
    said = find_planted(tmp_path, gpus)
    for name, words in {
        **SAID,
        "left": "FakeTensorDeviceMismatchError",
        "strange": "all_reduce: cpu",
    }.items():
        assert words in said[name]


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
device_memory_gib: 2.2
"""


def test_cells_says_what_fits_without_a_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("profile").mkdir()
    Path("profile/site.yaml").write_text(SITE)
    Path("seven.yaml").write_text(SEVEN)
    asked = ["run", "seven.yaml", "-n", "--memory", "--site", "profile", "--json"]
    assert main(asked) == 0
    fsdp, ddp = (one["memory"] for one in json.loads(capsys.readouterr().out)["cells"])
    assert ddp["parts"]["weights"] > 60 * fsdp["parts"]["weights"]
    assert ddp["step"] > fsdp["step"]
    assert (fsdp["verdict"], ddp["verdict"]) == ("fits", "no")
    assert {one["operation"] for one in fsdp["sent"]} == {
        "all_gather",
        "reduce_scatter",
    }
    # The second time nothing is computed.
    kept = Path("results/seven/work/memory.json")
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


@pytest.mark.equipment
def test_the_fullest_row_of_the_study_fits_80_gib(tmp_path, monkeypatch, capsys):
    """Of all rows, those of 16 GPUs need most; it takes some seconds to estimate."""
    monkeypatch.chdir(tmp_path)
    Path("profile").mkdir()
    large = SITE.replace("device_memory_gib: 2.2", "device_memory_gib: 80")
    Path("profile/site.yaml").write_text(large)
    study = str(ROOT / "studies/gpt-scaling.yaml")
    asked = ["run", study, "-n", "--memory", "--site", "profile", "--json"]
    assert main([*asked, "--only", "topology=2x8"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["cells"]
    assert row["memory"]["verdict"] == "tight"
    assert 60 * 2**30 < row["memory"]["step"] < 78.5 * 2**30


def test_a_norm_keeps_its_input_and_a_number_of_each_token_on_a_gpu(found):
    """As CUDA's kernel does; a CPU keeps the input in float32, and the result."""
    cpu, gpu = (found[case.name]["ranks"][0]["parts"]["activations"] for case in NORMS)
    norms, tokens = 2 * MODEL["layers"] + 1, GPT["batch_size"] * GPT["context"]
    less = (4 + 2) * norms * tokens * MODEL["width"]
    assert cpu - gpu == pytest.approx(less, rel=0.05)
