"""Tests of whether a site can run a cell, and of the shape of its processes."""

from __future__ import annotations

from typing import Any

import pytest

from factories import (
    MPI_MISSING,
    NCCL_MISSING,
    backends_of,
    make_cell,
    make_gpu_site,
    make_site,
)
from rankbench.cell import Cell, Shape
from rankbench.matrix import feasible
from rankbench.matrix.candidate import make_candidate, shape_of
from rankbench.matrix.catalog import Catalog, load_catalog
from rankbench.matrix.site import Site

pytestmark = pytest.mark.unit


def find_obstacle(cell: Cell, site: Site, catalog: Catalog) -> str | None:
    return feasible.find_obstacle(make_candidate(cell, site, catalog))


def marks_of(cell: Cell, site: Site, catalog: Catalog) -> list[str]:
    return feasible.marks_of(make_candidate(cell, site, catalog))


NO_CXX = "c++ is not installed: torch.compile needs a C++ compiler (Debian: g++)"

NO_MPIRUN = "mpirun is not installed: install Open MPI (Debian: openmpi-bin)"

SINGLE = {"strategy": "single", "backend": "none"}
DP = {"strategy": "dp", "backend": "none"}
GPU = {"device": "cuda"}
GPIPE = {"strategy": "gpipe", "topology": "2x2"}
NCCL = {"backend": "nccl", **GPU}


@pytest.mark.parametrize(
    ("cell", "site", "reason"),
    [
        # Obstacles of the strategy.
        (DP, make_site(), "dp needs 2 CUDA devices; this machine has 0"),
        ({**DP, **GPU}, make_gpu_site(), "dp needs 2 devices, 1x1 has fewer"),
        (
            {**DP, **GPU, "topology": "2x1"},
            make_gpu_site(nodes=2),
            "dp runs on 1 host, 2x1 has more",
        ),
        (
            {**SINGLE, **GPU, "topology": "1x2"},
            make_gpu_site(),
            "single uses 1 GPU, 1x2 has more",
        ),
        (
            {**SINGLE, "topology": "2x1"},
            make_site(nodes=2),
            "single runs on 1 host, 2x1 has more",
        ),
        ({"backend": "ccl"}, make_site(), "ddp runs over gloo, mpi, nccl"),
        ({"strategy": "single"}, make_site(), "single runs over none"),
        (
            {
                "strategy": "deepspeed",
                "launcher": "deepspeed",
                "options": {"stage": 0, "offload": "cpu"},
            },
            make_site(),
            "deepspeed has nothing to offload at stage 0",
        ),
        (
            {"strategy": "horovod", "launcher": "torchrun"},
            make_site(),
            "horovod is started by horovodrun or mpirun or hydra or srun, not by "
            "torchrun",
        ),
        (
            {"launcher": "mpirun"},
            make_site(programs={"mpirun": NO_MPIRUN}),
            NO_MPIRUN,
        ),
        # Obstacles of the rendezvous.
        *(
            (
                {"launcher": launcher, "init_method": method},
                make_site(),
                f"init_method {method} needs the manual launcher; "
                f"{launcher} has its own",
            )
            for launcher in ("torchrun", "torch_launch", "spawn")
            for method in ("tcp", "file")
        ),
        # GPUDirect.
        (
            {"gpudirect": True},
            make_site(),
            "gpudirect is of nccl and mpi; the cell has gloo",
        ),
        (
            {**SINGLE, **GPU, "gpudirect": False},
            make_gpu_site(),
            "gpudirect is of nccl and mpi; the cell has none",
        ),
        (
            {"backend": "mpi", "gpudirect": True},
            make_site(backends=backends_of()),
            "gpudirect is of GPUs; the cell runs on cpu",
        ),
        # Obstacles of the site.
        (
            {"topology": "2x1"},
            make_site(),
            "2x1 needs 2 hosts; this site has 1",
        ),
        (
            {"topology": "2x1"},
            make_site(nodes=2, scheduler="none"),
            "2x1 needs several hosts, and this site is one machine "
            "(scheduler: slurm or ssh in the site file)",
        ),
        (
            {"launcher": "srun"},
            make_site(),
            "srun is a part of slurm; this site has none (scheduler: slurm)",
        ),
        (
            {"launcher": "job_array", "topology": "2x1"},
            make_site(nodes=2),
            "job_array does not know its hosts beforehand: init_method: file",
        ),
        (
            {"topology": "1x3"},
            make_site(),
            "1x3 needs 3 cores on each host; this site has 2 "
            "(oversubscribe: true shares them, and marks the row)",
        ),
        (
            {"topology": "1x2", "cores_per_device": 2},
            make_site(),
            "1x2 needs 4 cores on each host; this site has 2 "
            "(oversubscribe: true shares them, and marks the row)",
        ),
        (
            {**DP, **GPU, "topology": "1x2"},
            make_gpu_site(1),
            "1x2 needs 2 GPUs on each host; this site has 1 "
            "(oversubscribe: true shares them, and marks the row)",
        ),
        (GPU, make_site(), "the cell asks for CUDA devices; this machine has none"),
        # Obstacles of the backend.
        ({"backend": "mpi"}, make_site(), MPI_MISSING),
        (
            {"backend": "mpi"},
            make_site(backends=backends_of()),
            "torchrun cannot start ranks that meet over mpi",
        ),
        ({"backend": "nccl"}, make_site(), NCCL_MISSING),
        (
            {"backend": "nccl"},
            make_gpu_site(),
            "nccl carries CUDA tensors only; the cell runs on cpu",
        ),
        (
            {**NCCL, "topology": "1x2", "oversubscribe": True},
            make_gpu_site(1),
            "nccl refuses two ranks on one GPU",
        ),
        # The reason does not advise to oversubscribe, because NCCL would refuse that.
        (
            {**NCCL, "topology": "1x2"},
            make_gpu_site(1),
            "nccl refuses two ranks on one GPU",
        ),
        (
            {**DP, **GPU, "topology": "1x2", "oversubscribe": True},
            make_gpu_site(cuda_devices=1),
            "one process of dp drives 2 GPUs; this site has 1 on a host",
        ),
        # Obstacles of the model, the data, the batch and the arithmetic.
        (
            {"model": "resnet50", "image_size": 16},
            make_site(),
            "resnet50 needs images of 17 pixels or more, not 16",
        ),
        (
            {"scaling": "strong", "topology": "1x2", "batch_size": 63},
            make_site(),
            "batch_size 63 (strong) does not split over 2",
        ),
        (
            {**DP, **GPU, "scaling": "strong", "topology": "1x2", "batch_size": 63},
            make_gpu_site(),
            "batch_size 63 (strong) does not split over 2",
        ),
        (
            {"topology": "1x2", "batch_size": 719},
            make_site(),
            "one step takes 1438 samples, digits has 1437 to train on",
        ),
        (
            {"precision": "tf32"},
            make_site(),
            "tf32 is an arithmetic of NVIDIA GPUs; the cell runs on cpu",
        ),
        (
            {"strategy": "fsdp", "precision": "fp16"},
            make_site(),
            "fsdp trains in fp32, tf32, bf16, not fp16",
        ),
        (
            {"compile": True},
            make_site(programs={"torchrun": None, "c++": NO_CXX}),
            NO_CXX,
        ),
        (
            {"strategy": "mp", "backend": "none", "topology": "1x2", "compile": True},
            make_site(),
            "mp takes the model apart: there is no whole to compile",
        ),
        (
            {**GPIPE, "clip_gradients": 1.0},
            make_site(nodes=2),
            "gpipe cannot clip gradients: no rank has all of them",
        ),
        (
            {"strategy": "fsdp", "topology": "1x2", "fused_optimizer": True},
            make_site(),
            "torch has no fused sgd for weights that are sharded",
        ),
        (
            {**GPIPE, **GPU},
            make_gpu_site(nodes=2),
            "gloo cannot carry what gpipe sends from GPUs",
        ),
        # Obstacles of micro-batches.
        *(
            (
                {**GPIPE, "options": {"schedule": name, "microbatches": count}},
                make_site(nodes=2, cores=2, torch=torch),
                reason,
            )
            for name, count, torch, reason in (
                ("gpipe", 3, "2.9.0", "64 samples do not split into 3 microbatches"),
                (
                    "1f1b",
                    2,
                    "2.9.0",
                    "schedule 1f1b needs 4 microbatches for 4 ranks",
                ),
                (
                    "interleaved",
                    16,
                    "2.7.1+cpu",
                    "schedule interleaved hangs over gloo before torch 2.8; "
                    "this is 2.7.1+cpu",
                ),
            )
        ),
        (
            {
                **GPIPE,
                "batch_size": 50,
                "options": {"schedule": "interleaved", "microbatches": 25},
            },
            make_site(nodes=2, cores=2),
            "schedule interleaved cannot send 25 microbatches through 4 ranks "
            "in 6 equal rounds",
        ),
    ],
)
def test_obstacle(cell: dict[str, Any], site: Any, reason: str) -> None:
    assert find_obstacle(make_cell(**cell), site, load_catalog()) == reason


@pytest.mark.parametrize(
    ("cell", "site"),
    [
        ({}, make_site()),
        ({"launcher": "torch_launch"}, make_site()),
        ({"launcher": "manual"}, make_site()),
        ({"launcher": "manual", "init_method": "tcp"}, make_site()),
        ({"launcher": "manual", "init_method": "file"}, make_site()),
        (SINGLE, make_site(cores=1)),
        ({**SINGLE, "topology": "1x2"}, make_site()),
        ({"topology": "1x2"}, make_site()),
        ({"topology": "2x2"}, make_site(nodes=2)),
        ({"cores_per_device": 2}, make_site()),
        ({"topology": "1x3", "oversubscribe": True}, make_site()),
        ({**DP, **GPU, "topology": "1x4"}, make_gpu_site()),
        ({**NCCL, "topology": "1x4"}, make_gpu_site()),
        ({**GPU, "topology": "1x2", "oversubscribe": True}, make_gpu_site(1)),
        ({**GPU, "precision": "tf32"}, make_gpu_site()),
        ({**NCCL, "gpudirect": True}, make_gpu_site()),
        ({**NCCL, "gpudirect": False}, make_gpu_site()),
        ({"model": "resnet50", "image_size": 17}, make_site()),
        # Under strong scaling, `single` keeps the whole batch, so it need not be
        # divisible.
        ({**SINGLE, "topology": "1x2", "scaling": "strong", "batch_size": 63}, None),
        ({"scaling": "strong", "topology": "1x2", "batch_size": 64}, make_site()),
        ({"batch_size": 1437}, make_site()),
        (
            {**GPIPE, "options": {"schedule": "gpipe", "microbatches": 1}},
            make_site(nodes=2, torch="2.6.0"),
        ),
        *(
            (
                {**GPIPE, "options": {"schedule": name, "microbatches": 8}},
                make_site(nodes=2, torch="2.13.0+cpu"),
            )
            for name in ("1f1b", "interleaved")
        ),
        ({"strategy": "rpc_pmp", "backend": "tensorpipe", "topology": "1x2"}, None),
    ],
)
def test_feasible(cell: dict[str, Any], site: Any) -> None:
    obstacle = find_obstacle(make_cell(**cell), site or make_site(), load_catalog())
    assert obstacle is None


def test_models_may_want_certain_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = load_catalog()
    needs = {**catalog.models["lenet"], "channels": [3]}
    monkeypatch.setitem(catalog.models, "lenet", needs)
    cell = {"model": "lenet"}
    reason = find_obstacle(make_cell(**cell), make_site(), catalog)
    assert reason == "lenet takes [3] channels, not 1"
    assert find_obstacle(make_cell(**cell, channels=3), make_site(), catalog) is None


@pytest.mark.parametrize(
    ("cell", "site", "marks"),
    [
        ({"topology": "1x2", "oversubscribe": True}, make_site(), []),
        (
            {"strategy": "mp", "backend": "none", "topology": "1x2"},
            make_site(),
            ["functional"],
        ),
        (
            {
                "strategy": "pmp",
                "backend": "none",
                "topology": "1x2",
                "model": "resnet18",
            },
            make_site(),
            ["approximate", "functional"],
        ),
        # With accumulation, batch norm would use the statistics of a part of the batch.
        (
            {"model": "resnet18", "options": {"accumulation": 2}},
            make_site(),
            ["approximate"],
        ),
        ({"model": "resnet18"}, make_site(), []),
        ({"options": {"accumulation": 2}}, make_site(), []),
        ({"options": {"compression": "fp16"}}, make_site(), ["approximate"]),
        (
            {"strategy": "ddp_dp", "topology": "1x2"},
            make_site(),
            ["functional"],
        ),
        ({"topology": "1x3", "oversubscribe": True}, make_site(), ["oversubscribed"]),
        (
            {"cores_per_device": 3, "oversubscribe": True},
            make_site(),
            ["oversubscribed"],
        ),
        (
            {**GPU, "topology": "1x2", "oversubscribe": True},
            make_gpu_site(1),
            ["oversubscribed"],
        ),
        ({**GPU, "topology": "1x2", "oversubscribe": True}, make_gpu_site(2), []),
    ],
)
def test_marks(cell: dict[str, Any], site: Any, marks: list[str]) -> None:
    assert marks_of(make_cell(**cell), site, load_catalog()) == marks


def shape(*numbers: int) -> Shape:
    names = Shape.__dataclass_fields__
    return Shape(**dict(zip(names, numbers, strict=True)))


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        # The numbers are: nodes, ranks, ranks per node, devices per rank, cores per
        # rank, replicas, ranks per replica, global batch, batch of a rank.
        (SINGLE, shape(1, 1, 1, 1, 1, 1, 1, 64, 64)),
        ({**SINGLE, "topology": "1x2"}, shape(1, 1, 1, 2, 2, 1, 1, 64, 64)),
        (
            {**SINGLE, "topology": "1x2", "cores_per_device": 3},
            shape(1, 1, 1, 2, 6, 1, 1, 64, 64),
        ),
        ({**SINGLE, **GPU}, shape(1, 1, 1, 1, 0, 1, 1, 64, 64)),
        ({**DP, **GPU, "topology": "1x4"}, shape(1, 1, 1, 4, 0, 4, 1, 256, 256)),
        (
            {**DP, **GPU, "topology": "1x4", "scaling": "strong"},
            shape(1, 1, 1, 4, 0, 4, 1, 64, 64),
        ),
        ({}, shape(1, 1, 1, 1, 1, 1, 1, 64, 64)),
        ({"topology": "1x2"}, shape(1, 2, 2, 1, 1, 2, 1, 128, 64)),
        ({"topology": "1x2", "scaling": "strong"}, shape(1, 2, 2, 1, 1, 2, 1, 64, 32)),
        ({"topology": "2x4"}, shape(2, 8, 4, 1, 1, 8, 1, 512, 64)),
        ({"topology": "2x4", "scaling": "strong"}, shape(2, 8, 4, 1, 1, 8, 1, 64, 8)),
        (
            {"topology": "2x4", "cores_per_device": 2},
            shape(2, 8, 4, 1, 2, 8, 1, 512, 64),
        ),
        ({"topology": "2x4", **GPU}, shape(2, 8, 4, 1, 0, 8, 1, 512, 64)),
        # There is one process per host, and each of its devices has a replica.
        (
            {"strategy": "ddp_dp", "topology": "2x4"},
            shape(2, 2, 1, 4, 4, 8, 1, 512, 256),
        ),
    ],
)
def test_shape(cell: dict[str, Any], expected: Shape) -> None:
    whole = make_cell(**cell)
    facts = load_catalog().strategies[whole.strategy]
    assert shape_of(whole, facts) == expected


def test_ranks_of_one_replica_load_the_same_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog = load_catalog()
    facts = catalog.strategies["ddp"]
    monkeypatch.setitem(facts.needs, "replica_ranks", "degree")
    cell = make_cell(topology="2x2", options={"degree": 2})
    assert shape_of(cell, facts) == shape(2, 4, 2, 1, 1, 2, 2, 128, 64)
    whole = make_cell(topology="2x2", options={"degree": 0})
    assert shape_of(whole, facts) == shape(2, 4, 2, 1, 1, 1, 4, 64, 64)
    site = make_site(nodes=2)
    odd = make_cell(topology="2x2", options={"degree": 3})
    assert find_obstacle(odd, site, catalog) == (
        "degree 3 does not divide the 4 ranks of 2x2"
    )


def test_what_shares_a_model_out_must_divide_it() -> None:
    catalog, site = load_catalog(), make_site(nodes=2, cores=4)
    tp = {"strategy": "tp", "model": "transformer", "topology": "2x4"}
    for degree in (0, 3, 8):
        cell = make_cell(**tp, options={"degree": degree})
        reason = find_obstacle(cell, site, catalog)
        assert (
            reason
            == {
                0: "8 ranks cannot share the 4 heads of transformer",
                3: "degree 3 does not divide the 8 ranks of 2x4",
                8: "8 ranks cannot share the 4 heads of transformer",
            }[degree]
        )
    assert find_obstacle(make_cell(**tp, options={"degree": 4}), site, catalog) is None
    headless = make_cell(**{**tp, "model": "convnet", "topology": "1x2"})
    reason = find_obstacle(headless, site, catalog)
    assert reason == "tp shares heads out to ranks; convnet has none"
    fsdp = {"strategy": "fsdp", "topology": "2x2"}
    for ranks, reason in (
        (0, None),
        (2, None),
        (3, "shard_ranks 3 does not divide the 4 ranks of 2x2"),
    ):
        cell = make_cell(**fsdp, options={"shard_ranks": ranks})
        assert find_obstacle(cell, site, catalog) == reason


@pytest.mark.parametrize(
    ("backend", "reason"),
    [("gloo", None), ("ccl", "Horovod sends nothing of half precision over ccl")],
)
def test_horovod_compresses_over_all_but_ccl(backend: str, reason: str | None) -> None:
    site, catalog = make_site(), load_catalog()
    horovod = {"strategy": "horovod", "launcher": "horovodrun", "backend": backend}
    for compression, expected in (("none", None), ("fp16", reason)):
        options = {"compression": compression, "fusion_threshold_mb": 128}
        cell = make_cell(**horovod, options=options)
        assert find_obstacle(cell, site, catalog) == expected


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "ddp_dp"])
@pytest.mark.parametrize(
    ("options", "changes", "reason"),
    [
        ({"sync_bn": True}, {}, "torch's SyncBatchNorm does not train on a CPU"),
        ({"compression": "fp16"}, {}, None),
        (
            {"compression": "fp16"},
            {"backend": "mpi", "launcher": "mpirun"},
            "torch's MPI backend carries no numbers of 16 bits",
        ),
        (
            {"compression": "bf16"},
            {},
            "torch's bf16 compression hook runs over nccl only",
        ),
        ({"compression": "bf16"}, NCCL, None),
        ({"compression": "powersgd"}, {"warmup": 2}, None),
        (
            {"compression": "powersgd"},
            {"warmup": 1},
            "powersgd begins with the third step: take a warmup of 2 or more",
        ),
        (
            {"static_graph": True, "accumulation": 2},
            {},
            "torch's DDP cannot accumulate gradients of a static graph",
        ),
        ({"accumulation": 3}, {}, "64 samples do not split into 3 accumulation"),
        ({"accumulation": 4}, {}, None),
    ],
)
def test_options_of_ddp(
    strategy: str, options: dict[str, Any], changes: dict[str, Any], reason: str | None
) -> None:
    cell = make_cell(strategy=strategy, options=options, **changes)
    site = make_gpu_site() if cell.device == "cuda" else make_site()
    assert find_obstacle(cell, site, load_catalog()) == reason


def test_sync_bn_wants_gpus_and_a_process_for_each() -> None:
    catalog, site = load_catalog(), make_gpu_site()
    for strategy, reason in (
        ("ddp", None),
        ("zero1", None),
        ("ddp_dp", "SyncBatchNorm wants a process for each device"),
    ):
        cell = make_cell(strategy=strategy, options={"sync_bn": True}, **NCCL)
        assert find_obstacle(cell, site, catalog) == reason


def test_a_batch_must_split_into_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = load_catalog()
    needs = catalog.strategies["ddp"].needs
    monkeypatch.setitem(needs, "multiple_of", "microbatches")
    cell = make_cell(options={"microbatches": 5})
    assert find_obstacle(cell, make_site(), catalog) == (
        "64 samples do not split into 5 microbatches"
    )


def test_what_a_strategy_must_have_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = load_catalog()
    monkeypatch.setitem(catalog.strategies["ddp"].needs, "packages", ["horovod"])
    missing = "horovod is not installed: `make extras` builds it"
    site = make_site(packages={"horovod": missing})
    assert find_obstacle(make_cell(), site, catalog) == missing
    assert find_obstacle(make_cell(), make_site(), catalog) is None


def test_what_starts_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = load_catalog()
    needs = catalog.strategies["ddp"].needs
    monkeypatch.setitem(needs, "launchers", ["spawn", "manual"])
    reason = find_obstacle(make_cell(), make_site(), catalog)
    assert reason == "ddp is started by spawn or manual, not by torchrun"
    assert find_obstacle(make_cell(launcher="manual"), make_site(), catalog) is None
    monkeypatch.setitem(needs, "launchers", [])
    monkeypatch.setitem(needs, "runtime", "horovod")
    reason = find_obstacle(make_cell(), make_site(), catalog)
    assert reason == "torchrun starts other programs than ddp"
