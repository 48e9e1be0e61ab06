"""Print the facts about this environment that planning needs, as JSON.

Arguments are names of programs; the output says which of them are installed.
launch/site/machine.py runs it on this machine, launch/images runs it in an image.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys

import torch

from rankbench.cell import PACKAGES
from rankbench.environ import version_of
from rankbench.rank.facts.host import built_backends


def main() -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    facts = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(count)],
        "cuda_memory_gib": [
            torch.cuda.get_device_properties(i).total_memory / 2**30
            for i in range(count)
        ],
        "cuda_capability": [
            float("{}.{}".format(*torch.cuda.get_device_capability(i)))
            for i in range(count)
        ],
        "backends": built_backends(),
        "rpc": torch.distributed.rpc.is_available(),
        "horovod": _horovod_operations(),
        "horovod_cuda": _horovod_has_cuda(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "programs": {name: shutil.which(name) is not None for name in sys.argv[1:]},
    }
    print(json.dumps(facts))


def _horovod_operations() -> list[str]:
    """The backends that Horovod was built with; [] if it is not installed."""
    try:
        import horovod.torch as horovod
    except ImportError:
        return []
    built = {
        "gloo": horovod.gloo_built(),
        "mpi": horovod.mpi_built(),
        "nccl": horovod.nccl_built(),
        "ccl": horovod.ccl_built(),
    }
    return [name for name, present in built.items() if present]


def _horovod_has_cuda() -> bool:
    """Whether Horovod takes tensors on GPUs."""
    try:
        import horovod.torch as horovod
    except ImportError:
        return False
    return bool(horovod.cuda_built())


if __name__ == "__main__":
    main()
