"""The equipment of the hosts of a site. Each host inspects itself, all at once.

``python -m rankbench.launch.site.inventory PLAN --out FILE``; within it each host runs
``python -m rankbench.launch.site.inventory FOLDER --look SITE``, with the standard
library only.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankbench.cores import physical_cores
from rankbench.environ import read_node, restore_job, without_job
from rankbench.launch.hosts import hosts_of
from rankbench.launch.hosts.base import Hosts, Needs, Step, take_lock
from rankbench.launch.process.environment import SOURCE
from rankbench.launch.site.reach import MODULE as REACH
from rankbench.launch.site.reach import choose_ports
from rankbench.record import read_json, write_json
from rankbench.schedulers import scheduler_of

# Seconds that hosts wait for each other's files, and for a name look-up.
PATIENCE = 60.0
_ASK_SECONDS = 30.0
# Seconds that all hosts may take.
_LOOK_SECONDS = 300.0
# Of netdevice(7).
_GET_FLAGS, _GET_ADDRESS, _IS_UP = 0x8913, 0x8915, 0x1

Facts = dict[str, Any]

MODULE = "rankbench.launch.site.inventory"


def inspect(plan: Facts, root: Path) -> Facts:
    """Inspect the hosts of a plan, and whether listed hosts reach each other.

    Args:
        plan: the plan.
        root: a folder for temporary files, which the hosts of a Slurm job see.

    Returns:
        As `look_at_hosts`, and `faults`: hosts that cannot be used, with remedies;
        `reach`: name of a host -> what `reach` found there.
    """
    site = plan["site"]
    needs = Needs(
        source=SOURCE,
        code=plan["code"]["rank"],
        data_dir=Path(site["data_dir"]).resolve(),
        images=_images_of(plan),
        native=site["software"] == "native",
    )
    folder = Path(tempfile.mkdtemp(prefix=".hosts-", dir=root))
    try:
        with hosts_of(site).inspect(site, needs) as (hosts, faults):
            found: Facts = {"hosts": [], "said": "", "pmix": False, "reach": {}}
            if hosts is not None:
                found |= look_at_hosts(site, hosts, folder)
            if hosts is not None and scheduler_of(site).lists_hosts:
                found["reach"] = _try_to_reach(site, hosts, found["hosts"], folder)
            return found | {"faults": faults}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _images_of(plan: Facts) -> dict[str, str]:
    """File -> sha256 of the images that cells use, as far as they are there."""
    used = {cell["image"] for cell in plan["cells"] if cell["image"]}
    files = [Path(plan["images"][name]["file"]) for name in used]
    notes = {str(file): file.with_suffix(".json") for file in files if file.exists()}
    return {file: read_json(note)["sha256"] for file, note in notes.items()}


def _try_to_reach(
    site: Facts, hosts: Hosts, found: Sequence[Facts], folder: Path
) -> dict[str, Facts]:
    """Let hosts connect to each other at their addresses on the interface, if any."""
    by_name = {host["host"]: host for host in found}
    names = [name for name in hosts.names if name in by_name]
    addresses = {}
    for name in names:
        on_interface = by_name[name]["interfaces"].get(site["interface"]) or []
        views = (by_name[other]["names"].get(name) for other in names if other != name)
        seen = [address for view in views if view for address in view["addresses"]]
        addresses[name] = next(iter([*on_interface, *seen]), None)
    if len(names) < 2 or len(names) < len(hosts.names) or None in addresses.values():
        return {}
    listed = [{"name": name, "address": addresses[name]} for name in names]
    facts = {"hosts": listed, "ports": choose_ports()}
    run_on(hosts, [REACH, str(folder / "work"), json.dumps(facts)], folder)
    files = {name: folder / "work" / f"{name}.reach.json" for name in names}
    return {name: read_json(file) for name, file in files.items() if file.exists()}


def look_at_hosts(site: Facts, hosts: Hosts, folder: Path) -> Facts:
    """Let every host inspect itself.

    Args:
        site: the site of the plan.
        hosts: the hosts.
        folder: a new one for their facts.

    Returns:
        `hosts`: facts of each that reported; `said`: what the start of them said;
        `began`, `ended`: by the clock of this host; `pmix`: whether srun has PMIx.
    """
    listed = [host for host in site["hosts"] if host["name"] in hosts.names]
    asked = {**site, "hosts": listed, "software": None, "native": None, "images": None}
    began = time.time()
    said = run_on(
        hosts, [MODULE, str(folder / "work"), "--look", json.dumps(asked)], folder
    )
    found = sorted((folder / "work").glob("*.facts.json"))
    return {
        "hosts": [read_json(path) for path in found],
        "said": said,
        "began": began,
        "ended": time.time(),
        "pmix": "pmix" in (_output("srun", "--mpi=list") or ""),
    }


def run_on(hosts: Hosts, module: Sequence[str], folder: Path) -> str:
    """Run a module with its arguments on every host; what it said.

    Args:
        folder: its subfolder `work` comes back with what the hosts write there.
    """
    work = folder / "work"
    work.mkdir(exist_ok=True)
    command = hosts.step([sys.executable, "-m", *module], Step(logs=work))
    try:
        done = subprocess.run(
            command,
            env={**without_job(), "PYTHONPATH": str(SOURCE), **hosts.variables()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LOOK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_LOOK_SECONDS:g} s"
    return f"{done.stdout}{done.stderr}".strip()


def look(site: Facts, folder: Path) -> Facts:
    """The equipment of this host, and its view of the others."""
    now = time.time()
    listed = [host["name"] for host in site["hosts"]]
    name = listed[read_node()] if listed else socket.gethostname()
    (folder / f"{name}.here").touch()
    # Where hosts share no files, each sees its own.
    count = 1 if listed and not site["shared"] else len(listed) or site["nodes"]
    seen = _wait_for(lambda: [p.stem for p in folder.glob("*.here")], count)
    scratch = Path(site["scratch"] or tempfile.gettempdir())
    return {
        "host": name,
        "time": now,
        "python": sys.version.split()[0],
        "cores": len(physical_cores()),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "load": os.getloadavg()[0],
        "measures": _measures(),
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
        "itself": _resolve(socket.gethostname())["addresses"],
        "names": {other: _resolve(other) for other in listed or seen if other != name},
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
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode())
            flags = fcntl.ioctl(any_socket, _GET_FLAGS, asked)
            if name == "lo" or not struct.unpack("H", flags[16:18])[0] & _IS_UP:
                continue
            try:
                answer = fcntl.ioctl(any_socket, _GET_ADDRESS, asked)
            except OSError:
                found[name] = []
            else:
                found[name] = [socket.inet_ntoa(answer[20:24])]
    return found


def _measures() -> bool:
    """Whether another measurement of this user runs here."""
    lock = take_lock()
    if lock is not None:
        lock.close()
    return lock is None


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
    parser.add_argument("place", type=Path, help="the plan; for --look, a folder")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--out", type=Path, help="file for what was found")
    task.add_argument("--look", type=json.loads, help="facts of the site")
    arguments = parser.parse_args(argv)
    if arguments.look:
        facts = look(arguments.look, arguments.place)
        write_json(arguments.place / f"{facts['host']}.facts.json", facts)
        return 0
    restore_job()
    found = inspect(read_json(arguments.place), arguments.place.resolve().parent)
    write_json(arguments.out, found)
    print(f"{len(found['hosts'])} hosts have reported", found["said"], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
