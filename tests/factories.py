"""Cells, sites and records for tests: whole, different only where one says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rankbench.cell import PROGRAMS, Cell, Shape
from rankbench.launch_spec import LaunchSpec
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import Experiment, load_experiment
from rankbench.matrix.plan import make_plan
from rankbench.matrix.site import Site, Software, describe_software
from rankbench.plan import Plan
from rankbench.record import complete
from rankbench.schema import keys_of, load_schema, with_defaults

NCCL_MISSING = "nccl needs a CUDA device; this torch (2.9.0) is built without CUDA"
MPI_MISSING = "this torch (2.9.0) has no MPI: build torch with MPI"


SCHEMA = load_schema("experiment")
SWEPT = [key for key in keys_of(SCHEMA) if key not in ("strategy", "script")]
CELL: dict[str, Any] = {
    **{key: SCHEMA["properties"][key]["default"][0] for key in SWEPT},
    **{"strategy": "ddp", "launcher": "torchrun", "device": "cpu", "options": {}},
    **{"epochs": 1, "steps": None, "warmup": 10, "evaluate": True},
}


def make_cell(**changes: Any) -> Cell:
    """A cell of `ddp` over gloo on one core."""
    values = {**CELL, **changes}
    assert changes.keys() <= set(Cell.__slots__)
    cell = Cell(**values)
    facts = load_catalog().strategies.get(cell.strategy)
    rules = facts["options"] if facts else {}
    defaults = {option: rule["default"] for option, rule in rules.items()}
    model = load_catalog().models.get(cell.model)
    rules = model.get("options", {}) if model else {}
    of_model = {option: rule["default"] for option, rule in rules.items()}
    return dataclasses.replace(
        cell,
        options={**defaults, **cell.options},
        model_options={**of_model, **cell.model_options},
    )


def make_surroundings(**changes: Any) -> dict[str, Any]:
    """Of a host on which nothing disturbs."""
    calm: dict[str, Any] = {"host": "node1", "quota": None}
    calm |= dict.fromkeys(("foreign", "steal", "throttled", "stopped"), 0.0)
    assert changes.keys() <= calm.keys()
    return calm | changes


def make_shape(ranks: int = 1, **changes: int) -> Shape:
    """`ranks` processes of one core each on one host."""
    values = {
        "nodes": 1,
        "ranks": ranks,
        "ranks_per_node": ranks,
        "devices_per_rank": 1,
        "cores_per_rank": 1,
        "replicas": ranks,
        "replica_ranks": 1,
        "global_batch": 64 * ranks,
        "rank_batch": 64,
    }
    return Shape(**{**values, **changes})


def make_spec(**changes: Any) -> LaunchSpec:
    """A launch of a cell on one core of this machine."""
    values: dict[str, Any] = {
        "directory": Path("/r"),
        "cell": make_cell(),
        "shape": make_shape(),
        "data_dir": Path("/data"),
        "threads": 1,
        "heartbeat_grace": 15.0,
    }
    return LaunchSpec(**{**values, **changes})


def prepare_launch(directory: Path, **changes: Any) -> LaunchSpec:
    """The files that ranks find in the directory of their launch; nobody watches it."""
    usual = {"data_dir": directory, "heartbeat_grace": 1e9}
    spec = make_spec(directory=directory, **{**usual, **changes})
    spec.progress.mkdir(parents=True)
    spec.heartbeat.write_text("1")
    spec.write()
    return spec


# All are there but one.
_PACKAGES = dict.fromkeys(
    ("horovod", "deepspeed", "torchao", "torchvision", "transformers")
)
_PACKAGES["timm"] = "timm is not installed: pip install timm"
_SOFTWARE = {"torch", "backends", "packages", "programs", "horovod_no_cuda"}


def make_site(**changes: Any) -> Site:
    """A host with two cores, no GPU, and a torch that has gloo only.

    Slurm gives it others, if it is to have more than one.
    """
    scheduler = "slurm" if changes.get("nodes", 1) > 1 else "none"
    values: dict[str, Any] = {
        **with_defaults({}, load_schema("site")),
        "device": "cpu",
        "cuda_devices": 0,
        "cores": 2,
        "scheduler": scheduler,
        "exclusive": scheduler == "slurm",
        "cuda_flavour": "cuda",
    }
    del values["devices_per_node"]
    software = {key: changes.pop(key) for key in _SOFTWARE & changes.keys()}
    values["native"] = make_software(**software)
    assert changes.keys() <= values.keys()
    return values | changes


def make_software(**changes: Any) -> Software:
    """A torch that has gloo only; all else is there."""
    values: dict[str, Any] = {
        "torch": "2.9.0",
        "backends": backends_of(mpi=MPI_MISSING, nccl=NCCL_MISSING),
        "packages": dict(_PACKAGES),
        "programs": dict.fromkeys(PROGRAMS),
        "no_cuda": None,
        "horovod_no_cuda": None,
    }
    assert changes.keys() <= values.keys()
    return {**values, **changes}


def backends_of(**missing: str | None) -> dict[str, dict[str, str | None]]:
    """All backends of all runtimes are there but these of torch."""
    of_torch = {**dict.fromkeys(("none", "gloo", "mpi", "nccl", "ccl")), **missing}
    of_horovod = dict.fromkeys(("gloo", "mpi", "nccl", "ccl"))
    rpc: dict[str, str | None] = {"tensorpipe": None}
    return {"process_group": of_torch, "horovod": of_horovod, "rpc": rpc}


def make_gpu_site(gpus: int = 4, **changes: Any) -> Site:
    """One host with GPUs, 16 cores, gloo and nccl."""
    backends = backends_of(mpi=MPI_MISSING)
    values = {"device": "cuda", "cuda_devices": gpus, "cores": 16, **changes}
    return make_site(**{"backends": backends, **values})


_GLOO = {
    "torch": "2.13.0",
    "cuda": False,
    "backends": ["gloo"],
    "rpc": True,
    "horovod": ["gloo"],
    "packages": {"horovod": True, "deepspeed": True},
    "programs": {"torchrun": True, "horovodrun": True, "deepspeed": True},
}
_MPI = {
    **_GLOO,
    "torch": "2.6.0",
    "backends": ["gloo", "mpi"],
    "horovod": ["gloo", "mpi"],
    "programs": {"mpirun": True, "horovodrun": True, "deepspeed": True},
}


def site_with_images(**changes: Any) -> Site:
    """Two cores, no GPU, the images of gloo and mpi."""
    images = {
        "gloo-cpu": describe_software(_GLOO, 0, "gloo-cpu"),
        "mpi-cpu": describe_software(_MPI, 0, "mpi-cpu"),
    }
    return make_site(software="container", native=None, images=images, **changes)


def make_probe(**changes: Any) -> dict[str, Any]:
    """What a look at a machine with two cores and no GPU finds."""
    values: dict[str, Any] = {
        "torch": "2.9.0",
        "python": "3.11",
        "cuda": None,
        "cuda_devices": [],
        "cuda_memory_gib": [],
        "cuda_capability": [],
        "backends": ["gloo"],
        "cores": 2,
        "rpc": True,
        "horovod": [],
        "horovod_cuda": False,
        "packages": dict(_PACKAGES),
        "programs": {**dict.fromkeys(PROGRAMS, False), "torchrun": True},
    }
    return {**values, **changes}


def make_record(status: str = "ok", cause: str | None = None, **changes: Any) -> Any:
    """As much of a record as judging needs."""
    reason = None if status == "ok" else f"it {status}"
    record = {"schema": 1, "status": status, "reason": reason, "cause": cause}
    return complete({**record, **changes})


def read_pairs(name: str) -> list[tuple[str, str]]:
    """The lines `LEFT -> RIGHT` of a file in unit/cases; `\\n` is a new line."""
    lines = (Path(__file__).parent / "unit/cases" / name).read_text().splitlines()
    pairs = [line.replace("\\n", "\n").split(" -> ", 1) for line in lines]
    return [(pair[0], pair[1]) for pair in pairs if pair[1:] and pair[0][0] != "#"]


def read_experiment(folder: Path, text: str, *, cuda: bool = False) -> Experiment:
    """The experiment that a file with this text is."""
    path = folder / "experiment.yaml"
    path.write_text(text)
    return load_experiment(path, load_catalog(), cuda=cuda)


def read_plan_of(folder: Path, text: str, site: Site | None = None) -> Plan:
    """The plan of an experiment with this text, by default on two cores."""
    site = site or make_site()
    experiment = read_experiment(folder, text, cuda=site["device"] == "cuda")
    return make_plan(
        experiment,
        site,
        load_catalog(),
        code=lambda _: "c0de",
        source="experiment.yaml",
    )
