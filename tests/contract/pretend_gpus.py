"""The estimator on GPUs that are not there: on fake tensors that say they are on one.

`pretend_gpus.cpp` is the half of it that torch calls from C++; see `compile_gpus`. Run
as a program it does what `rankbench.rank.purposes.estimate` does, each rank on the GPU
of its number on the host.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import cpp_extension

from rankbench.cell import Cell, Shape
from rankbench.rank.purposes import estimate

SOURCE = Path(__file__).with_suffix(".cpp")


def compile_gpus(compiler: str, folder: Path) -> Path:
    """Compile the library that a child loads before torch (LD_PRELOAD)."""
    library = folder / "pretend_gpus.so"
    headers = [f"-I{path}" for path in cpp_extension.include_paths()]
    # The library needs torch's own, which are loaded with it.
    folders = cpp_extension.library_paths()
    torchs = [f"{flag}{path}" for path in folders for flag in ("-L", "-Wl,-rpath,")]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    options = ["-shared", "-fPIC", "-std=c++20", "-w", abi, *headers, str(SOURCE)]
    linked = [*torchs, "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10"]
    subprocess.run([compiler, *options, *linked, "-o", str(library)], check=True)
    return library


class Nothing:
    """A stream, an event or a context that does nothing, whatever it is asked to do."""

    device = torch.device("cuda", 0)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


GPU = SimpleNamespace(
    name="pretend", total_memory=2**36, major=9, minor=0, multi_processor_count=132
)
# Function of torch.cuda -> what it returns.
SAYS = {
    "is_available": True,
    "is_initialized": True,
    "device_count": 8,
    "current_device": 0,
    "is_bf16_supported": True,
    "get_device_capability": (9, 0),
    "get_device_properties": GPU,
    "mem_get_info": (2**36, 2**36),
    "memory_stats": {},
    "is_current_stream_capturing": False,
    "_is_in_bad_fork": False,
    "get_rng_state": torch.empty(16, dtype=torch.uint8),
    "current_stream": Nothing(),
    "default_stream": Nothing(),
    "stream": contextlib.nullcontext(),
    **dict.fromkeys(("_lazy_init", "set_device", "synchronize", "set_stream")),
    **dict.fromkeys(("manual_seed", "manual_seed_all", "set_rng_state")),
    **dict.fromkeys(("empty_cache", "reset_peak_memory_stats")),
    **dict.fromkeys(("memory_allocated", "max_memory_allocated"), 0),
}


def believe() -> None:
    """Let the Python half of torch believe in GPUs."""
    for name, value in SAYS.items():
        setattr(torch.cuda, name, lambda *_, value=value, **__: value)
    for name in ("Stream", "Event", "device"):
        setattr(torch.cuda, name, Nothing)
    torch.cuda.nvtx = Nothing()
    # DeepSpeed finds weights by their identity, also after it has converted a module.
    torch._has_compatible_shallow_copy_type = lambda a, b: a.device == b.device
    torch.Tensor.record_stream = lambda *_: None
    torch.Tensor.pin_memory = lambda tensor: tensor
    fake_tensor.init_gpu_context = lambda *_: None
    fake_tensor.FakeTensorMode.avoid_device_init = True
    wrap = DistributedDataParallel.__init__

    def wrap_without_timers(model: Any, *given: Any, **named: Any) -> None:
        wrap(model, *given, **named)
        # Its logger would read timers of the GPU.
        model.logger = Nothing()

    DistributedDataParallel.__init__ = wrap_without_timers


estimate_on = estimate.estimate


def estimate_on_own_gpu(
    cell: Cell, shape: Shape, rank: int, device: torch.device
) -> dict[str, Any]:
    """What a rank needs, on the GPU that `choose_devices` would give it."""
    number = rank % shape.ranks_per_node
    torch.cuda.current_device = lambda: number
    torch.accelerator.set_device_index(number)
    return estimate_on(cell, shape, rank, torch.device(device.type, number))


if __name__ == "__main__":
    believe()
    estimate.estimate = estimate_on_own_gpu
    answers, sys.stdout = sys.stdout, sys.stderr
    asked = json.load(sys.stdin)
    for answer in estimate.estimate_all(asked, torch.device("cuda")):
        print(json.dumps(answer), file=answers, flush=True)
