"""The equipment of the hosts of a site. Each host inspects itself, all in one job.

``python -m rankbench.launch.site.inventory PLAN --out FILE``; within it each host runs
``python -m rankbench.launch.site.inventory PLAN --look FOLDER``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from rankbench.cores import physical_cores
from rankbench.environ import restore_job
from rankbench.record import read_json, write_json

# Seconds that hosts wait for each other's files, and for a name look-up.
PATIENCE = 60.0
_ASK_SECONDS = 30.0

Facts = dict[str, Any]

MODULE = "rankbench.launch.site.inventory"


def look_at_hosts(site: Facts, folder: Path, *, plan: Path) -> Facts:
    """Let every host of this job inspect itself.

    Args:
        site: the site of the plan.
        folder: where hosts write their facts; all hosts should see it.
        plan: the file of the plan.

    Returns:
        `hosts`: facts of each that reported; `said`: what the start of them said;
        `began`, `ended`: by the clock of this host; `pmix`: whether srun has PMIx.
    """
    command = [sys.executable, "-m", MODULE, str(plan), "--look", str(folder)]
    slurm = site["scheduler"] == "slurm"
    if slurm:
        nodes = site["nodes"]
        step = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--mpi=none"]
        command = [*step, "--cpu-bind=none", *command]
    began = time.time()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ended = time.time()
    return {
        "hosts": [read_json(path) for path in sorted(folder.glob("*.facts.json"))],
        "said": done.stderr.strip(),
        "began": began,
        "ended": ended,
        "pmix": slurm and "pmix" in (_output("srun", "--mpi=list") or ""),
    }


def look(site: Facts, folder: Path) -> Facts:
    """The equipment of this host, and its view of the others."""
    name = socket.gethostname()
    now = time.time()
    (folder / f"{name}.here").touch()
    seen = _wait_for(lambda: [p.stem for p in folder.glob("*.here")], site["nodes"])
    scratch = Path(site["scratch"] or tempfile.gettempdir())
    return {
        "host": name,
        "time": now,
        "python": sys.version.split()[0],
        "cores": len(physical_cores()),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "gpus": _gpus(),
        "interfaces": _interfaces(),
        "slurm": _output("sinfo", "--version"),
        "apptainer": _output("apptainer", "--version")
        or _output("singularity", "--version"),
        "missing": [path for path in site["binds"] if not os.path.exists(path)],
        "fuse": os.access("/dev/fuse", os.R_OK | os.W_OK),
        "shm_mib": _free_mib(Path("/dev/shm")),  # noqa: S108
        "scratch": str(scratch),
        "scratch_mib": _free_mib(scratch),
        "seen": sorted(seen),
        "names": {other: _resolve(other) for other in seen if other != name},
    }


def _wait_for(find: Callable[[], list[str]], count: int) -> list[str]:
    deadline = time.monotonic() + PATIENCE
    while len(found := find()) < count and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _gpus() -> list[str]:
    said = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return said.splitlines() if said else []


def _interfaces() -> dict[str, list[str]]:
    """IPv4 addresses of the interfaces that are up; [] for one that has none."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return {
        name: [a.address for a in addresses if a.family == socket.AF_INET]
        for name, addresses in psutil.net_if_addrs().items()
        if name in up and name != "lo"
    }


def _resolve(host: str) -> Facts:
    """Addresses of a name, and the duration of the look-up in both directions."""
    begun = time.monotonic()
    try:
        addresses = {str(i[4][0]) for i in socket.getaddrinfo(host, 22)}
    except OSError:
        addresses = set()
    for address in addresses:
        # Libraries look up the name of each peer: a name server that does not answer
        # makes each connection slow.
        socket.getnameinfo((address, 22), 0)
    return {"addresses": sorted(addresses), "seconds": time.monotonic() - begun}


def _free_mib(folder: Path) -> int | None:
    """Free space; None where the folder is missing or cannot be written to."""
    if not os.access(folder, os.W_OK):
        return None
    return shutil.disk_usage(folder).free // 2**20


def _output(*command: str) -> str | None:
    """The output of a program; None if it is missing or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Some programs print their version to standard error.
    return (done.stdout or done.stderr).strip()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("plan", type=Path)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--out", type=Path, help="file for what was found")
    task.add_argument("--look", type=Path, help="folder that all hosts see")
    arguments = parser.parse_args(argv)
    site = read_json(arguments.plan)["site"]
    if arguments.look:
        facts = look(site, arguments.look)
        write_json(arguments.look / f"{facts['host']}.facts.json", facts)
        return 0
    restore_job()
    folder = Path(tempfile.mkdtemp(prefix=".hosts-", dir=arguments.plan.parent))
    try:
        found = look_at_hosts(site, folder.resolve(), plan=arguments.plan.resolve())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    write_json(arguments.out, found)
    print(f"{len(found['hosts'])} hosts have reported", found["said"], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
