"""The software that ranks find where they run: torch, backends, packages, programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def describe_software(
    facts: Mapping[str, Any], gpus: int, image: str | None = None
) -> Software:
    """The software of the machine itself, or of an image.

    Args:
        facts: torch, cuda, backends, rpc, horovod, packages and programs: as found
            there, or as promised in `images.yaml` if the image is not built yet.
        gpus: number of GPUs of each host.
        image: name of the image; None for the machine.
    """
    where = f"the image {image}"
    torch, horovod = f"the torch of {where}", f"the Horovod of {where}"
    if image is None:
        torch, horovod = "this torch", "this Horovod"
    torch += f" ({facts['torch']})"

    def why_no_backend(name: str) -> str | None:
        if name == "ccl":
            return _NO_CCL
        if name == "nccl" and not gpus:
            return f"nccl needs a CUDA device; {why_no_cuda(facts, torch)}"
        if name in facts["backends"]:
            return None
        if image is None:
            return f"{torch} has no {name.upper()}: {_REMEDY[name]}"
        return f"{where} has no {name.upper()}: name one that has (image: ...)"

    def look_for(kind: str, names: Sequence[str]) -> Obstacles:
        return {
            name: None
            if facts[kind].get(name)
            else f"{name} is not installed: {_INSTALL[name]}"
            if image is None
            else f"{where} has no {name}"
            for name in names
        }

    return Software(
        torch=facts["torch"],
        backends={
            "process_group": {"none": None, **{b: why_no_backend(b) for b in BACKENDS}},
            "horovod": {
                b: None
                if b in facts["horovod"]
                else f"{horovod} is built without {b.upper()}"
                for b in BACKENDS
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
