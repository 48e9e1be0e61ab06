"""Facts about the machine: what `<profile>/site.yaml` says and what a look found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankbench.matrix.schema import check, load_schema, load_yaml, with_defaults


@dataclass(frozen=True)
class Site:
    """A machine as the plan sees it.

    Attributes:
        nodes: hosts that a cell may use.
        device: what a device is where a cell says ``auto``: ``cpu`` or ``cuda``.
        cuda_devices: GPUs of each host.
        cores: physical cores of each host that processes may use.
        backends: runtime -> backend -> None where it is there, else why not.
        packages: name -> None where it is installed, else how to get it.
        programs: the same for programs that are started.
        torch: version of the torch that ranks will import.
        data_dir: folder of the prepared data sets.
        results_dir: folder of the results.
        cpu_threads_per_gpu: CPU threads of a rank that drives a GPU; 0 is its share
            of the cores.
    """

    nodes: int
    device: str
    cuda_devices: int
    cores: int
    backends: dict[str, dict[str, str | None]]
    packages: dict[str, str | None]
    programs: dict[str, str | None]
    torch: str
    data_dir: str
    results_dir: str
    cpu_threads_per_gpu: int

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def load_site(path: Path, probe: Mapping[str, Any]) -> Site:
    """Join the site file with what `rankbench.launch.probe` found.

    Raises:
        ValueError: the file is not as its schema wants it, or contradicts the machine.
    """
    schema = load_schema("site")
    given = load_yaml(path)
    check(given, schema, source=str(path))
    facts = with_defaults(given, schema)

    found = len(probe["cuda_devices"])
    if facts["device"] == "cuda" and not found:
        raise ValueError(f"{path}: device: cuda, but {_no_cuda(probe)}")
    device = facts["device"]
    if device == "auto":
        device = "cuda" if found else "cpu"
    cuda_devices, cores = found, probe["cores"]
    if facts["devices_per_node"] != "auto":
        if device == "cuda":
            cuda_devices = facts["devices_per_node"]
        else:
            cores = facts["devices_per_node"]
    return Site(
        nodes=facts["nodes"],
        device=device,
        cuda_devices=cuda_devices,
        cores=cores,
        backends=_backends(probe),
        packages={
            name: None if probe["packages"][name] else f"{name} is not installed: {how}"
            for name, how in _PACKAGES.items()
        },
        programs={
            name: None if probe["programs"][name] else f"{name} is not installed: {how}"
            for name, how in _PROGRAMS.items()
        },
        torch=probe["torch"],
        data_dir=facts["data_dir"],
        results_dir=facts["results_dir"],
        cpu_threads_per_gpu=facts["cpu_threads_per_gpu"],
    )


_EXTRAS = "`make extras` builds it"

_PACKAGES = {"horovod": _EXTRAS, "deepspeed": _EXTRAS}

_PROGRAMS = {
    "mpirun": "install Open MPI (Debian: openmpi-bin)",
    "horovodrun": _EXTRAS,
    "deepspeed": _EXTRAS,
    "c++": "torch.compile needs a C++ compiler (Debian: g++)",
}

_REMEDY = {
    "mpi": "build torch with MPI, or take Debian 13's python3-torch",
    "gloo": "install a torch that has it",
    "nccl": "install a CUDA build of torch",
}


def _backends(probe: Mapping[str, Any]) -> dict[str, dict[str, str | None]]:
    of_torch = {name: _why_not(name, probe) for name in ("gloo", "mpi", "nccl", "ccl")}
    of_horovod = {
        name: None
        if name in probe["horovod"]
        else f"this Horovod is built without {name.upper()}"
        for name in of_torch
    }
    no_rpc = "this torch is built without torch.distributed.rpc"
    return {
        "process_group": {"none": None, **of_torch},
        "horovod": of_horovod,
        "rpc": {"tensorpipe": None if probe["rpc"] else no_rpc},
    }


def _why_not(backend: str, probe: Mapping[str, Any]) -> str | None:
    if backend == "ccl":
        return "torch's oneCCL bindings are no longer made; no strategy here uses them"
    if backend == "nccl" and not probe["cuda_devices"]:
        return f"nccl needs a CUDA device; {_no_cuda(probe)}"
    if backend not in probe["backends"]:
        remedy = _REMEDY[backend]
        return f"this torch ({probe['torch']}) has no {backend.upper()}: {remedy}"
    return None


def _no_cuda(probe: Mapping[str, Any]) -> str:
    if not probe["cuda"]:
        return f"this torch ({probe['torch']}) is built without CUDA"
    return "this machine has none that torch sees"
