"""Print the facts about this environment that planning needs, as JSON.

Arguments are names of programs; the output says which of them are installed.
launch/site/machine.py runs it on this machine, launch/images runs it in an image.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
from typing import Any

import torch

from rankbench.cell import PACKAGES
from rankbench.environ import version_of
from rankbench.rank.facts.host import built_backends


def main() -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
    facts = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cuda_devices": [gpu.name for gpu in gpus],
        "cuda_memory_gib": [gpu.total_memory / 2**30 for gpu in gpus],
        "cuda_capability": [float(f"{gpu.major}.{gpu.minor}") for gpu in gpus],
        "backends": built_backends(),
        "rpc": torch.distributed.rpc.is_available(),
        **_ask_horovod(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "programs": {name: shutil.which(name) is not None for name in sys.argv[1:]},
    }
    print(json.dumps(facts))


def _ask_horovod() -> dict[str, Any]:
    """The backends that Horovod was built with, and whether it takes CUDA tensors."""
    try:
        import horovod.torch as horovod
    except ImportError:
        return {"horovod": [], "horovod_cuda": False}
    kinds = ("gloo", "mpi", "nccl", "ccl")
    return {
        "horovod": [kind for kind in kinds if getattr(horovod, f"{kind}_built")()],
        "horovod_cuda": bool(horovod.cuda_built()),
    }


if __name__ == "__main__":
    main()
