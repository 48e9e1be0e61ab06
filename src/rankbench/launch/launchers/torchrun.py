"""torchrun, once on each host: torch's elastic agent starts the ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankbench.launch.launchers import meeting_argv
from rankbench.launch_spec import LaunchSpec

NEEDS = {"program": "torchrun"}

# The agent's summary lists every failed rank; the line before it only the first one.
_FAILED = re.compile(r"rank +: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)")


def build_argv(spec: LaunchSpec) -> list[str]:
    return agent_argv(spec, "torch.distributed.run")


def agent_argv(spec: LaunchSpec, module: str, *flags: str) -> list[str]:
    """The command of a module of torch that runs the agent of a host."""
    return [
        *meeting_argv(spec),
        spec.python,
        "-m",
        module,
        *flags,
        # A static rendezvous fixes the number of each node, so that ranks follow the
        # order of hosts. Of others, such as --standalone, agents unpickle what anybody
        # who reaches their port has put there.
        f"--nnodes={spec.shape.nodes}",
        "--node-rank={node}",
        f"--master-addr={spec.address}",
        "--master-port={port}",
        f"--nproc-per-node={spec.shape.ranks_per_node}",
        # No restarts: a restarted rank would be another measurement under the same
        # number.
        "--max-restarts=0",
        # Otherwise the agent would leave the files of its ranks in /tmp.
        f"--log-dir={spec.work / 'elastic'}",
        "--module",
        "rankbench.rank",
        str(spec.file),
    ]


def read_exits(log: str) -> Mapping[int, int]:
    """Exit codes by rank, from the summary that each agent prints at its end."""
    return {int(rank): int(code) for rank, code in _FAILED.findall(log)}
