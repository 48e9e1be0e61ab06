"""What mpirun, hydra and horovodrun share: one process that reaches others by ssh.

In a Slurm job and in images, a stand-in takes the place of ssh.
"""

from __future__ import annotations

from rankbench.launch.launchers import meeting_argv
from rankbench.launch_spec import LaunchSpec


def build_argv(spec: LaunchSpec, argv: list[str]) -> list[str]:
    """The command with a place to meet and, over several hosts, a way to them."""
    if not spec.is_spread:
        return [*meeting_argv(spec), *argv]
    if spec.goes_by_ssh:
        parent = "rankbench.rank.world.own_ssh"
        folder = str(spec.work / "bin")
        return [*meeting_argv(spec), spec.python, "-m", parent, folder, *argv]
    return [
        *meeting_argv(spec),
        spec.python,
        "-m",
        "rankbench.rank.world.remote",
        "--node={node}",
        f"--hosts={','.join(spec.hosts)}",
        f"--port={spec.port}",
        f"--secret={spec.secret}",
        *argv,
    ]
