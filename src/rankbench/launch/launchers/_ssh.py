"""What mpirun, hydra and horovodrun share: one process that reaches others by ssh."""

from __future__ import annotations

from rankbench.launch.launchers import Start


def build_argv(start: Start, argv: list[str]) -> list[str]:
    """The command with a place to meet and, over several hosts, a stand-in for ssh."""
    if not start.is_spread:
        return [*start.meeting_argv, *argv]
    return [
        *start.meeting_argv,
        start.python,
        "-m",
        "rankbench.rank.parents.remote",
        "--node={node}",
        f"--hosts={','.join(start.hosts)}",
        f"--port={start.port}",
        f"--secret={start.secret}",
        *argv,
    ]
