"""A temporary folder for each launch on each of its hosts.

``python -m rankbench.launch.process.scratch make|remove FOLDER`` does it on one host.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rankbench.environ import without_job
from rankbench.launch.hosts.base import Hosts, Step, run_to_end
from rankbench.launch_spec import LaunchSpec
from rankbench.record import first_line

MODULE = "rankbench.launch.process.scratch"

ROOM = 2**20  # Bytes of free space that ranks need to start.
PATIENCE = 60.0  # Seconds that the hosts may take.

# Name of a folder: this, the id of the job or 0, and what tells launches apart.
_MINE = f"rankbench.{os.getuid()}."
_NO_JOB = "0"


class NoScratch(Exception):
    """A host cannot provide the folder. The message names host, cause and remedy."""


def scratch_of(scratch: str | None, job: str | None, directory: Path) -> Path | None:
    """The folder of a launch: the same path on all hosts, and no other launch's.

    Args:
        scratch: the site's folder; None leaves ranks the TMPDIR that they find.
        job: id of the Slurm job.
        directory: of the launch.
    """
    if scratch is None:
        return None
    # The name is short, because paths of sockets in the folder have at most 107 bytes.
    launch = f"{zlib.crc32(os.fsencode(directory.resolve())):08x}"
    return Path(scratch, f"{_MINE}{job or _NO_JOB}.{launch}")


@contextmanager
def private_scratch(spec: LaunchSpec, hosts: Hosts) -> Iterator[None]:
    """A context in which every host of a launch has its folder, if one is wanted.

    Raises:
        NoScratch: a host cannot give it.
    """
    if spec.scratch is None:
        yield
        return
    try:
        if fault := _on_hosts(hosts, "make", spec.scratch, spec.work):
            raise NoScratch(fault)
        yield
    finally:
        # The next launch on a host removes files that a lost launch left there.
        _on_hosts(hosts, "remove", spec.scratch, spec.work)


def _on_hosts(hosts: Hosts, action: str, folder: Path, logs: Path) -> str | None:
    """Make or remove the folder on every host; returns the fault, or None."""
    command = [sys.executable, "-m", MODULE, action, str(folder)]
    try:
        done = run_to_end(
            hosts.step(command, Step(logs=logs)),
            env={**without_job(), **hosts.variables()},
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return f"hosts do not {action} {folder} within {PATIENCE:g} s"
    return None if done.returncode == 0 else first_line(done.stdout or done.stderr)


def make(folder: Path) -> None:
    """Make the folder on this host, and remove those of lost launches.

    Raises:
        OSError: it cannot be made, or nothing fits in.
    """
    from rankbench.launch.hosts import slurm

    job = folder.name.split(".")[2]
    for other in folder.parent.glob(f"{_MINE}*"):
        its_job = other.name.split(".")[2]
        # The job or the supervisor was killed. Without Slurm, only one measurement runs
        # at a time.
        if job == _NO_JOB if its_job == _NO_JOB else slurm.has_ended(its_job):
            shutil.rmtree(other, ignore_errors=True)
    folder.mkdir(mode=0o700)
    probe = folder / "probe"
    with open(probe, "wb") as file:
        file.write(bytes(ROOM))
        file.flush()
        os.fsync(file.fileno())
    probe.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    """0 if it is done; 1, and why not, if it is not."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("action", choices=["make", "remove"])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args(argv)
    folder = arguments.folder
    if arguments.action == "remove":
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    try:
        make(folder)
    except OSError as error:
        print(
            f"scratch of the host {socket.gethostname()}: {folder.parent}: "
            f"{error.strerror}: make room there, or correct scratch in site.yaml"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
