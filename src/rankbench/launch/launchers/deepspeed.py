"""DeepSpeed's launcher, once on each host: without ssh."""

from __future__ import annotations

from collections.abc import Mapping

from rankbench.launch.launchers import Start

NEEDS = {"program": "deepspeed"}


def build_argv(start: Start) -> list[str]:
    return [
        *start.meeting_argv,
        "--keep-devices",
        start.python,
        "-m",
        "deepspeed.launcher.runner",
        f"--hostfile={start.hostfile}",
        "--no_ssh",
        "--node_rank={node}",
        f"--master_addr={start.address}",
        "--master_port={port}",
        # Ranks take their place from the environment.
        "--no_local_rank",
        "--module",
        "rankbench.rank",
        str(start.spec),
    ]


def read_exits(log: str) -> Mapping[int, int]:
    """It tells an exit code, but not whose."""
    return {}
