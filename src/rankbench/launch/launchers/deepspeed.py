"""DeepSpeed's launcher, once on each host: without ssh."""

from __future__ import annotations

from collections.abc import Mapping

from rankbench.launch.launchers import meeting_argv
from rankbench.launch_spec import LaunchSpec

NEEDS = {"program": "deepspeed"}


def build_argv(spec: LaunchSpec) -> list[str]:
    return [
        *meeting_argv(spec),
        "--keep-devices",
        spec.python,
        "-m",
        "deepspeed.launcher.runner",
        f"--hostfile={spec.hostfile}",
        "--no_ssh",
        "--node_rank={node}",
        f"--master_addr={spec.address}",
        "--master_port={port}",
        # Ranks take their place from the environment.
        "--no_local_rank",
        "--module",
        "rankbench.rank",
        str(spec.file),
    ]


def read_exits(log: str) -> Mapping[int, int]:
    """It tells an exit code, but not whose."""
    return {}
