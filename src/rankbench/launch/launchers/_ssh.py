"""What mpirun, hydra and horovodrun share: one process that reaches others by ssh.

In a Slurm job and in images, a stand-in takes the place of ssh.
"""

from __future__ import annotations

from rankbench.launch.launchers import Start


def build_argv(start: Start, argv: list[str]) -> list[str]:
    """The command with a place to meet and, over several hosts, a way to them."""
    if not start.is_spread:
        return [*start.meeting_argv, *argv]
    if start.has_ssh:
        parent = "rankbench.rank.world.own_ssh"
        folder = str(start.spec.with_name("bin"))
        return [*start.meeting_argv, start.python, "-m", parent, folder, *argv]
    return [
        *start.meeting_argv,
        start.python,
        "-m",
        "rankbench.rank.world.remote",
        "--node={node}",
        f"--hosts={','.join(start.hosts)}",
        f"--port={start.port}",
        f"--secret={start.secret}",
        *argv,
    ]
