"""The environment of the ranks: a short list is passed on, all of it is recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rankbench.cell import Shape

_PASSED = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
)
_PASSED_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "UCX_", "FI_", "RANKBENCH_TEST_")

SOURCE = Path(__file__).resolve().parents[2]


def build_environment(
    shape: Shape, *, threads: int, inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Variables for the launcher and its ranks.

    Args:
        shape: processes of the launch.
        threads: CPU threads of each rank.
        inherited: the environment to pass the known variables on from.
    """
    passed = {
        key: value
        for key, value in inherited.items()
        if key in _PASSED or key.startswith(_PASSED_PREFIXES)
    }
    passed |= {
        # Packages of the user's home must not change what is measured.
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": str(SOURCE),
        "PYTHONUNBUFFERED": "1",
    }
    # torchrun would set it to 1 where it is not set, and other launchers would not.
    passed["OMP_NUM_THREADS"] = str(threads)
    if shape.nodes == 1:
        # Neither a name look-up nor a port on another interface is needed.
        passed.setdefault("GLOO_SOCKET_IFNAME", "lo")
        passed.setdefault("NCCL_SOCKET_IFNAME", "lo")
    return dict(sorted(passed.items()))


def rank_python() -> str:
    """The interpreter that ranks run under: the one that runs this."""
    return sys.executable
