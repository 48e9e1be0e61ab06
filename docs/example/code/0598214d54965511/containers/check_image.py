#!/usr/bin/env python3
"""Check that an image keeps its promises. Runs inside the image, without a network.

Prints a line for each check; the first promise that is not kept ends it with status 1.
Code that imports torch runs in processes of its own, with a time limit. Without a GPU,
NCCL is only loaded; with one GPU one rank reduces, with more GPUs two ranks do.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

TIME_LIMIT = 120.0  # seconds for each process, on a machine that is busy
RANKS = 2
KEYS = {
    *("flavour", "python", "torch", "backends", "rpc"),
    *("horovod", "packages", "programs"),
}
# Horovod's controller for each library that carries its data.
CONTROLLERS = {"gloo": "gloo", "nccl": "gloo", "mpi": "mpi", "ccl": "mpi"}
# All communication stays on this host. The builder of an image is root in it, which MPI
# must accept, and there may be only one core.
ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
    "HOROVOD_GLOO_IFACE": "lo",
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    # Apptainer passes the builder's TMPDIR on to %test; the image lacks that folder.
    "TMPDIR": "/tmp",  # noqa: S108
    "I_MPI_FABRICS": "shm",
    "I_MPI_HYDRA_BOOTSTRAP": "fork",
}


# Libraries of the driver, which a host with GPUs binds into the image.
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")


class Broken(Exception):
    """A promise that is not kept: what was promised, what was found."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--image-json",
        type=Path,
        default=Path(__file__).with_name("image.json"),
        help="what the image promises (default: beside this file)",
    )
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        name, *rest = arguments.part
        PARTS[name](*rest)
        return 0
    try:
        promise = json.loads(arguments.image_json.read_text())
        if missing := KEYS - set(promise):
            raise Broken(f"{arguments.image_json} has no {', '.join(sorted(missing))}")
        for proof in proofs(promise):
            print("ok", proof, flush=True)
    except (Broken, OSError, ValueError) as error:
        print("not ok", error, file=sys.stderr)
        return 1
    return 0


def proofs(promise: dict[str, Any]) -> Iterator[str]:
    """Prove one promise after the other, and say what each has shown.

    Raises:
        Broken: a promise is not kept.
    """
    # Imports may print before the line with the facts.
    facts = json.loads(run(part("facts", *promise["packages"])).splitlines()[-1])
    for what in ("python", "torch", "flavour"):
        if facts[what] != promise[what]:
            raise Broken(f"{what}: promised {promise[what]}, found {facts[what]}")
        yield f"{what} {facts[what]}"
    if facts["cuda"]:
        yield f"CUDA {facts['cuda']}, NCCL {facts['nccl']}"
    yield f"linkage: {len(linked())} libraries of torch and Horovod find all they need"
    for package, version in facts["packages"].items():
        yield f"import {package} {version}"
    if facts["unmet"]:
        raise Broken(f"requirements of packages are not met: {facts['unmet'][0]}")
    yield "requirements of these packages"
    for program in promise["programs"]:
        if shutil.which(program) is None:
            raise Broken(f"program {program}: promised, not on PATH")
        yield f"program {program}"

    for library in promise.get("libraries", []):
        run(part("load", library))
        yield f"library {library} loads"

    yield contains("torch.distributed", promise["backends"], facts["backends"])
    for backend in promise["backends"]:
        if ranks := ranks_over(backend, facts["gpus"]):
            mpi = backend == "mpi"
            alone = part("spawn", backend, str(ranks))
            run([*mpirun(ranks), *part("mpi")] if mpi else alone)
            yield f"{backend}: init_process_group, all-reduce of {ranks} ranks"
        else:
            yield f"{backend}: loads; no GPU here to reduce on"
    if promise["rpc"]:
        run(part("spawn", "rpc", str(RANKS)))
        yield f"rpc: a call between {RANKS} ranks"

    if promise["horovod"]:
        report = run(["horovodrun", "--check-build"])
        built = re.findall(r"\[X\] (\w+)", report.partition("Tensor Operations:")[2])
        yield contains("horovod", promise["horovod"], [name.lower() for name in built])
    for operation in promise["horovod"]:
        if ranks := ranks_over(operation, facts["gpus"]):
            run_horovod(operation, ranks)
            yield f"horovod over {operation}: all-reduce of {ranks} ranks"
        else:
            yield f"horovod over {operation}: loads; no GPU here to reduce on"


def ranks_over(carrier: str, gpus: int) -> int:
    """How many ranks can reduce over it here."""
    return min(RANKS, gpus) if carrier == "nccl" else RANKS


def linked() -> list[Path]:
    """The libraries of torch and Horovod.

    Raises:
        Broken: one of them is linked with something that is not there.
    """
    libraries = []
    for package in ("torch", "horovod"):
        found = importlib.util.find_spec(package)
        for folder in found.submodule_search_locations or [] if found else []:
            libraries += sorted(Path(folder).rglob("*.so"))
    for library in libraries:
        for line in run(["ldd", str(library)]).splitlines():
            name, _, place = line.strip().partition(" => ")
            if place == "not found" and name not in DRIVER:
                raise Broken(f"{library} is linked with {name}, which is not there")
    return libraries


def contains(what: str, promised: list[str], found: list[str]) -> str:
    if set(promised) - set(found):
        listed = ", ".join(found) or "none"
        raise Broken(f"{what}: promised {', '.join(promised)}, found {listed}")
    return f"{what}: {', '.join(found)} built in"


def run_horovod(operation: str, ranks: int) -> None:
    controller = CONTROLLERS[operation]
    launcher = mpirun(ranks)
    if controller == "gloo":
        # The cache of horovodrun would be in a home that may be read-only.
        launcher = ["horovodrun", "--gloo", "--disable-cache", "-np", str(ranks)]
    settings = {"HOROVOD_CONTROLLER": controller}
    if operation != "nccl":
        settings["HOROVOD_CPU_OPERATIONS"] = operation
    run([*launcher, *part("horovod", operation, str(ranks))], settings)


def mpirun(ranks: int) -> list[str]:
    return ["mpirun", "-n", str(ranks)]


def part(*name: str) -> list[str]:
    """The command of one of PARTS."""
    return [sys.executable, str(Path(__file__).resolve()), "--part", *name]


def run(command: list[str], settings: dict[str, str] | None = None) -> str:
    """What a command prints.

    Raises:
        Broken: it fails, takes longer than the limit, or is not there.
    """
    shown = " ".join(command)
    try:
        child = subprocess.Popen(
            command,
            env=os.environ | ENVIRONMENT | (settings or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise Broken(f"{command[0]} is not on PATH: {shown}") from None
    try:
        out, err = child.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        # End all processes, because ranks hold the pipes as well.
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise Broken(f"no end after {TIME_LIMIT:.0f} s: {shown}") from None
    if child.returncode:
        last = (out + err).strip().splitlines()[-20:]
        raise Broken("\n    ".join([f"exit status {child.returncode}: {shown}", *last]))
    return out


def print_facts(*packages: str) -> None:
    import torch
    from torch import distributed

    for package in packages:
        if package == "torchvision":
            import_torchvision()
        importlib.import_module("horovod.torch" if package == "horovod" else package)
    known = ("gloo", "mpi", "nccl")
    backends = [name for name in known if distributed.is_backend_available(name)]
    nccl = torch.cuda.nccl.version() if "nccl" in backends else ()
    facts = {
        "python": ".".join(map(str, sys.version_info[:2])),
        # The release without the suffix of the build: +cpu, +cu130.
        "torch": torch.__version__.partition("+")[0],
        "flavour": "cuda" if torch.version.cuda else "cpu",
        "cuda": torch.version.cuda,
        "gpus": torch.cuda.device_count(),
        "nccl": ".".join(map(str, nccl)),
        "backends": backends,
        "packages": {name: metadata.version(name) for name in packages},
        "unmet": [unmet for name in packages for unmet in unmet_requirements(name)],
    }
    print(json.dumps(facts))


def load(library: str) -> None:
    ctypes.CDLL(library)


def unmet_requirements(package: str) -> Iterator[str]:
    """What a package requires and does not get. `pip check` looks at all packages, and
    Debian's own do not always meet what their metadata says."""
    from packaging.requirements import Requirement

    for line in metadata.requires(package) or []:
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            found = "none"
        if found == "none" or not requirement.specifier.contains(found, True):
            yield f"{package} requires {requirement}, found {found}"


def import_torchvision() -> None:
    """Import torchvision, also its wheel for CUDA beside a torch for CPUs.

    Its compiled operators do not load there, and the import wants them declared. Models
    and data sets do not call them; ranks have the same remedy.
    """
    import torch

    try:
        importlib.import_module("torchvision")
        return
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
    importlib.import_module("torchvision")


def spawn(what: str, ranks: str) -> None:
    from torch import multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        target = call if what == "rpc" else reduce_over
        arguments = (what, f"file://{folder}/meeting", int(ranks))
        multiprocessing.spawn(target, arguments, nprocs=int(ranks))


def call(rank: int, _: str, meeting: str, ranks: int) -> None:
    import torch
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=meeting)
    rpc.init_rpc(str(rank), rank=rank, world_size=ranks, rpc_backend_options=options)
    other = str((rank + 1) % ranks)
    expect(rpc.rpc_sync(other, torch.add, (torch.ones(4), 2)).tolist(), [3.0] * 4)
    rpc.shutdown()


def reduce_over(rank: int, backend: str, meeting: str | None, ranks: int) -> None:
    import torch
    from torch import distributed

    if backend == "mpi":  # which numbers its processes itself
        distributed.init_process_group(backend)
        rank = distributed.get_rank()
    else:
        distributed.init_process_group(
            backend, init_method=meeting, rank=rank, world_size=ranks
        )
    expect(distributed.get_world_size(), ranks)
    tensor = torch.full((4,), rank + 1.0, device=device(backend, rank))
    distributed.all_reduce(tensor)
    expect(tensor.tolist(), sums(ranks))
    distributed.destroy_process_group()


def reduce_horovod(operation: str, ranks: str) -> None:
    import horovod.torch as horovod
    import torch

    horovod.init()
    rank = horovod.rank()
    expect(horovod.size(), int(ranks))
    tensor = torch.full((4,), rank + 1.0, device=device(operation, rank))
    expect(horovod.allreduce(tensor, op=horovod.Sum).tolist(), sums(int(ranks)))
    horovod.shutdown()


def sums(ranks: int) -> list[float]:
    """What ranks get that reduce four times their number, counted from one."""
    return [ranks * (ranks + 1) / 2] * 4


def device(carrier: str, rank: int) -> str:
    return f"cuda:{rank}" if carrier == "nccl" else "cpu"


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise Broken(f"expected {wanted}, found {found}")


PARTS: dict[str, Callable[..., None]] = {
    "facts": print_facts,
    "load": load,
    "spawn": spawn,
    "mpi": functools.partial(reduce_over, 0, "mpi", None, RANKS),
    "horovod": reduce_horovod,
}

if __name__ == "__main__":
    sys.exit(main())
