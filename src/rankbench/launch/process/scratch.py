"""A temporary folder for each launch on each of its hosts.

``python -m rankbench.launch.process.scratch FOLDER`` makes it on one host.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rankbench.environ import without_job
from rankbench.launch.hosts.base import Hosts, Step, has_ended, run_to_end
from rankbench.launch_spec import LaunchSpec
from rankbench.record import first_line

MODULE = "rankbench.launch.process.scratch"

ROOM = 2**20  # Bytes of free space that ranks need to start.
PATIENCE = 60.0  # Seconds that the hosts may take.

# Name of a folder: this, the id of the job or 0, and what tells launches apart.
_MINE = f"rankbench.{os.getuid()}."
_NO_JOB = "0"


def scratch_of(scratch: str | None, job: str | None) -> Path | None:
    """The folder of a launch: the same path on all hosts, and no other launch's.

    Args:
        scratch: the site's folder; None leaves ranks the TMPDIR that they find.
        job: id of the Slurm job.
    """
    if scratch is None:
        return None
    # Nobody can guess the name, and make the folder before us. It is short, because
    # paths of sockets in the folder have at most 107 bytes.
    return Path(scratch, f"{_MINE}{job or _NO_JOB}.{secrets.token_hex(4)}")


@contextmanager
def private_scratch(spec: LaunchSpec, hosts: Hosts) -> Iterator[str | None]:
    """A context in which every host of a launch has its folder, if one is wanted.

    Yields:
        The fault of a host that cannot give it, with its remedy, or None.
    """
    if spec.scratch is None:
        yield None
        return
    folder = str(spec.scratch)
    try:
        yield _on_hosts(hosts, spec.work, [sys.executable, "-m", MODULE], folder)
    finally:
        # The next launch on a host removes files that a lost launch left there.
        _on_hosts(hosts, spec.work, ["rm", "-rf"], folder)


def _on_hosts(
    hosts: Hosts, logs: Path, command: Sequence[str], folder: str
) -> str | None:
    """Run a command on the folder of every host; returns the fault, or None."""
    try:
        done = run_to_end(
            hosts.step([*command, folder], Step(logs=logs)),
            env={**without_job(), **hosts.variables()},
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return f"hosts do not make {folder} within {PATIENCE:g} s"
    return None if done.returncode == 0 else first_line(done.stdout or done.stderr)


def make(folder: Path) -> None:
    """Make the folder on this host, and remove those of lost launches.

    Raises:
        OSError: it cannot be made, or nothing fits in.
    """
    job = folder.name.split(".")[2]
    for other in folder.parent.glob(f"{_MINE}*"):
        its_job = other.name.split(".")[2]
        # The job or the supervisor was killed. Without Slurm, only one measurement runs
        # at a time.
        if job == _NO_JOB if its_job == _NO_JOB else has_ended(its_job):
            shutil.rmtree(other, ignore_errors=True)
    folder.mkdir(mode=0o700)
    probe = folder / "probe"
    with open(probe, "wb") as file:
        file.write(bytes(ROOM))
        file.flush()
        os.fsync(file.fileno())
    probe.unlink()


def main(folder: Path) -> int:
    """0 if it is made; 1, and why not, if it is not."""
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
    sys.exit(main(Path(sys.argv[1])))
