"""A setting of the kernel that is another while pretend clusters are up."""

from __future__ import annotations

from pathlib import Path

AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")
NOTE = Path("/run/pretend-autogroups")  # It exists while the setting is ours.


def set_autogroups_aside() -> None:
    """Let the scheduler look at processes, not at one group for each session.

    Ranks over MPI that share cores yield while they wait. In groups of their own they
    kept a slurmd from its core for 13 s, and a process of the launch for 16 s (Linux
    6.18): hosts were lost, ranks ended themselves. Here hosts share a machine's cores.
    """
    try:
        if AUTOGROUPS.read_text().strip() == "1":
            # The note comes first, so that `down` restores even an incomplete change.
            NOTE.touch()
            AUTOGROUPS.write_text("0")
    except OSError:
        # The kernel has no such setting, or a container may not change it: leave it.
        NOTE.unlink(missing_ok=True)


def put_autogroups_back() -> None:
    """As they were before the first cluster came up; for the last that goes down."""
    if NOTE.exists():
        AUTOGROUPS.write_text("1")
        NOTE.unlink()
