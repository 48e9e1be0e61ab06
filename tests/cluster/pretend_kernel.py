"""A setting of the kernel that is another while a pretend cluster is up."""

from __future__ import annotations

from pathlib import Path

AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")
NOTE = "autogroups"  # A file in the cluster's folder: the setting must be restored.


def set_autogroups_aside(state: Path) -> None:
    """Let the scheduler look at processes, not at one group for each session.

    Ranks over MPI that share cores yield while they wait. In groups of their own they
    kept a slurmd from its core for 13 s, and a process of the launch for 16 s (Linux
    6.18): hosts were lost, ranks ended themselves. Here hosts share a machine's cores.
    """
    note = state / NOTE
    try:
        if AUTOGROUPS.read_text().strip() == "1":
            # The note comes first, so that `down` restores even an incomplete change.
            note.touch()
            AUTOGROUPS.write_text("0")
    except OSError:
        # The kernel has no such setting, or a container may not change it: leave it.
        note.unlink(missing_ok=True)


def put_autogroups_back(state: Path) -> None:
    """As they were before the cluster of this folder came up."""
    if (state / NOTE).exists():
        AUTOGROUPS.write_text("1")
