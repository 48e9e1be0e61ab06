"""The software that ranks find where they run: torch, backends, packages, programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankbench.cell import PACKAGES

BACKENDS = ("gloo", "mpi", "nccl", "ccl")
PROGRAMS = ("torchrun", "mpirun", "mpiexec.hydra", "horovodrun", "deepspeed", "c++")

# Name -> None if it is available, else the reason why not and what to do.
Obstacles = dict[str, str | None]


@dataclass(frozen=True)
class Software:
    """The software that ranks can use, on the machine itself or in an image.

    Attributes:
        torch: version of the torch that ranks import.
        backends: runtime -> obstacles for each backend.
        packages: obstacles for each package.
        programs: obstacles for each program.
    """

    torch: str
    backends: dict[str, Obstacles]
    packages: Obstacles
    programs: Obstacles


def native_software(probe: Mapping[str, Any], gpus: int) -> Software:
    """The software of the machine itself.

    Args:
        probe: facts that `rankbench.launch.site.machine` found.
        gpus: number of GPUs of each host.
    """
    this_torch = f"this torch ({probe['torch']})"
    return _software(
        probe,
        gpus,
        torch=this_torch,
        no_backend=lambda name: f"{this_torch} has no {name.upper()}: {_REMEDY[name]}",
        no_operation=lambda name: f"this Horovod is built without {name.upper()}",
        not_there=lambda name: f"{name} is not installed: {_INSTALL[name]}",
    )


def image_software(name: str, facts: Mapping[str, Any], gpus: int) -> Software:
    """The software of an image.

    Args:
        name: name of the image.
        facts: torch, cuda, backends, rpc, horovod, packages and programs: as found in
            the image, or as promised in `images.yaml` if it is not built yet.
        gpus: number of GPUs of each host.
    """
    where = f"the image {name}"
    return _software(
        facts,
        gpus,
        torch=f"the torch of {where} ({facts['torch']})",
        no_backend=lambda backend: (
            f"{where} has no {backend.upper()}: name one that has (image: ...)"
        ),
        no_operation=lambda backend: (
            f"the Horovod of {where} is built without {backend.upper()}"
        ),
        not_there=lambda wanted: f"{where} has no {wanted}",
    )


_EXTRAS = "`make extras` builds it"

_INSTALL = {
    "horovod": _EXTRAS,
    "deepspeed": _EXTRAS,
    "torchvision": "pip install --no-deps torchvision",
    "timm": "pip install timm",
    "transformers": "pip install transformers",
    "torchrun": "install torch where the Python of rankbench is",
    "mpirun": "install Open MPI (Debian: openmpi-bin)",
    "mpiexec.hydra": "install Intel MPI (pip: impi-rt)",
    "horovodrun": _EXTRAS,
    "c++": "torch.compile needs a C++ compiler (Debian: g++)",
}

_REMEDY = {
    "mpi": "build torch with MPI, or take Debian 13's python3-torch",
    "gloo": "install a torch that has it",
    "nccl": "install a CUDA build of torch",
}

_NO_CCL = "torch's oneCCL bindings are no longer made; no strategy here uses them"


def _software(
    facts: Mapping[str, Any],
    gpus: int,
    *,
    torch: str,
    no_backend: Callable[[str], str],
    no_operation: Callable[[str], str],
    not_there: Callable[[str], str],
) -> Software:
    def of_torch(name: str) -> str | None:
        if name == "ccl":
            return _NO_CCL
        if name == "nccl" and not gpus:
            return f"nccl needs a CUDA device; {why_no_cuda(facts, torch)}"
        return None if name in facts["backends"] else no_backend(name)

    def look_for(kind: str, names: Sequence[str]) -> Obstacles:
        there = facts[kind]
        return {name: None if there.get(name) else not_there(name) for name in names}

    return Software(
        torch=facts["torch"],
        backends={
            "process_group": {"none": None, **{b: of_torch(b) for b in BACKENDS}},
            "horovod": {
                b: None if b in facts["horovod"] else no_operation(b) for b in BACKENDS
            },
            "rpc": {
                "tensorpipe": None
                if facts["rpc"]
                else f"{torch} is built without torch.distributed.rpc"
            },
        },
        packages=look_for("packages", PACKAGES),
        programs=look_for("programs", PROGRAMS),
    )


def why_no_cuda(facts: Mapping[str, Any], torch: str) -> str:
    """The reason why no CUDA device is available."""
    if not facts["cuda"]:
        return f"{torch} is built without CUDA"
    return "this machine has none that torch sees"
