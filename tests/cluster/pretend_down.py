"""Taking down whatever there is of a pretend cluster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path

from pretend_cluster import DESCRIPTION, slurm_environment
from pretend_host import CORE_GROUPS, MEMORY_GROUPS, PretendError, wait_until
from pretend_kernel import put_autogroups_back

INTERFACES = Path("/sys/class/net")
CABLES = "pc????????.*"  # of the hosts of all clusters


def bridge_of(state: Path) -> str:
    """The bridge's name, from the folder alone: `down` finds it after any failure."""
    return f"pc{zlib.crc32(str(state).encode()):08x}"


def down(state: Path) -> None:
    """Take down what there is of the cluster of this folder, the folder included."""
    state = state.resolve()
    bridge = bridge_of(state)
    ours = (state / DESCRIPTION).exists()
    if not (ours or members(state) or (INTERFACES / bridge).exists()):
        raise PretendError(f"{state}: no pretend cluster is there")
    wait_until(lambda: not kill(members(state)), f"processes of {state} ended")
    for link in sorted(INTERFACES.glob(f"{bridge}*"), reverse=True):
        # A virtual cable disappears together with the host at its other end.
        command = ("ip", "link", "delete", link.name)
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
    wait_until(lambda: not list(INTERFACES.glob(f"{bridge}*")), f"{bridge} is gone")
    wait_until(lambda: not remove_groups(bridge), f"groups of {bridge} are gone")
    if ours:
        if not list(INTERFACES.glob(CABLES)):
            put_autogroups_back()
        wait_until(lambda: remove(state), f"{state} is removed")


def remove(folder: Path) -> bool:
    """Whether it is gone: hosts that have just ended may have written meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def remove_groups(bridge: str) -> list[Path]:
    """Remove the hosts' control groups; those that are left."""
    folders = (MEMORY_GROUPS, CORE_GROUPS)
    found = [group for top in folders for group in top.glob(f"{bridge}.*/**/")]
    groups = sorted(found, reverse=True)
    for group in groups:
        try:
            group.rmdir()
        except OSError:
            continue  # Its last process has not ended yet.
    return [group for group in groups if group.exists()]


def members(state: Path) -> list[int]:
    """The cluster's living processes, known by their environment, on hosts too.

    Of its variables one is enough: what measures starts programs with a few only.
    """
    known = slurm_environment(state).items()
    marks = {f"{name}={value}".encode() for name, value in known}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # The process has ended, or belongs to the kernel.
        if not marks.isdisjoint(variables) and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


def kill(processes: Sequence[int]) -> Sequence[int]:
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return processes
