"""The hosts of a site: what each says of itself, and what is wrong with it.

``python -m rankbench.launch.site.hosts PLAN`` says what the hosts are, and what is
wrong, each with a remedy. It runs this module on all hosts at the same time, each with
the standard library only: with ``FOLDER --look SITE`` a host inspects itself, with
``FOLDER --reach FACTS`` it exchanges bytes with the others.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from rankbench.environ import (
    host_name,
    physical_cores,
    read_driver,
    read_node,
    restore_job,
    without_job,
)
from rankbench.launch.hosts.base import (
    OUTPUT_SECONDS,
    Hosts,
    Needs,
    Step,
    container_program,
    hosts_of,
    output_of,
    run_to_end,
    take_lock,
    why_not,
)
from rankbench.launch.process.command import environment_for
from rankbench.launch.site.machine import find_misfits, list_gpus
from rankbench.launch.site.network import PORTS, TRIED, exchange
from rankbench.launch_spec import SOURCE
from rankbench.record import read_json, write_json
from rankbench.say import say
from rankbench.schedulers import scheduler_of

Facts = dict[str, Any]

# Seconds that hosts wait for each other's files, and for a name look-up.
PATIENCE = 60.0
_ASK_SECONDS = 30.0
# Seconds that all hosts may take.
_LOOK_SECONDS = 300.0
_ADAPTERS, _VERBS = "/sys/class/infiniband/*", "/dev/infiniband/uverbs*"

# Ranks of a host exchange data in /dev/shm: torch's loaders, NCCL, Open MPI.
LEAST_SHM_MIB = 256
LEAST_SCRATCH_MIB = 1024
# Files of other hosts are judged by their age (launch/job/claim.py).
MOST_CLOCK_SECONDS = 5.0
MOST_NAME_SECONDS = 2.0
MOST_LOAD = 0.5  # of a core
OVER_FABRIC = ("nccl", "mpi")  # backends that use InfiniBand by themselves


MODULE = "rankbench.launch.site.hosts"


def inspect(plan: Facts, root: Path) -> Facts:
    """Inspect the hosts of a plan, and whether listed hosts reach each other.

    Args:
        plan: the plan.
        root: a folder for temporary files, which the hosts of a Slurm job see.

    Returns:
        `hosts`: facts of each that reported; `said`: what the start of them said;
        `began`, `ended`: by the clock of this host; `pmix`: whether srun has PMIx;
        `faults`: hosts that cannot be used, with remedies; `reach`: name of a host ->
        what `exchange` found there.
    """
    site = plan["site"]
    used = sorted({cell["image"] for cell in plan["cells"] if cell["image"]})
    planned = [plan["images"][name] for name in used]
    made = [i for i in planned if i["sha256"] and os.path.exists(i["file"])]
    needs = Needs(
        source=SOURCE,
        code=plan["code"]["rank"],
        data_dir=Path(site["data_dir"]).resolve(),
        images={image["file"]: image["sha256"] for image in made},
        native=site["software"] == "native",
    )
    with (
        hosts_of(site).open(site, site["nodes"], needs, None) as hosts,
        tempfile.TemporaryDirectory(
            prefix=".hosts-", dir=root, ignore_cleanup_errors=True
        ) as place,
    ):
        # Without shared files, no image is there yet.
        is_there = site["shared"] or not site["hosts"]
        image = next(iter(needs.images), None) if is_there else None
        found = _look_at(site, hosts, Path(place), image)
        reach = {}
        if scheduler_of(site).lists_hosts:
            reach = _try_to_reach(site, hosts, found["hosts"], Path(place))
        return {**found, "pmix": _has_pmix(), "faults": hosts.faults, "reach": reach}


def _has_pmix() -> bool:
    """Whether srun can start ranks by PMIx. Older ones list their types as an error."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = run_to_end(("srun", "--mpi=list"), timeout=OUTPUT_SECONDS)
        return "pmix" in done.stdout + done.stderr
    return False


def measure_pairs(site: Facts, hosts: Hosts, folder: Path) -> tuple[list[Facts], str]:
    """What pairs of these hosts have measured; and what was said, faults first.

    Args:
        site: the site of the plan.
        hosts: at least two.
        folder: for temporary files, which the hosts see.
    """
    looked = _look_at({**site, "nodes": len(hosts.names)}, hosts, folder, None)
    reach = _try_to_reach(site, hosts, looked["hosts"], folder)
    links = [link for found in reach.values() for link in found["pairs"]]
    return links, "; ".join(_faults_of_network(reach)) or looked["said"]


def _look_at(site: Facts, hosts: Hosts, folder: Path, image: str | None) -> Facts:
    """Let every host inspect itself, and start the image if there is one."""
    listed = [host for host in site["hosts"] if host["name"] in hosts.names]
    plain = dict.fromkeys(("software", "native", "images"))
    asked = {**site, **plain, "hosts": listed, "image": image}
    began = time.time()
    said = _run_on(hosts, "--look", asked, folder) if hosts.names else ""
    ended = time.time()
    reports = sorted((folder / "work").glob("*.facts.json"))
    found = [read_json(path) for path in reports]
    return {"hosts": found, "said": said, "began": began, "ended": ended}


def _try_to_reach(
    site: Facts, hosts: Hosts, found: Sequence[Facts], folder: Path
) -> dict[str, Facts]:
    """Let hosts connect to each other at their addresses on the interface, if any."""
    by_name = {host["host"]: host for host in found}
    names = [name for name in hosts.names if name in by_name]
    addresses = {}
    for name in names:
        interfaces = by_name[name]["interfaces"] or {}
        on_interface = interfaces.get(site["interface"]) or []
        views = (by_name[other]["names"].get(name) for other in names if other != name)
        seen = [address for view in views if view for address in view["addresses"]]
        addresses[name] = next(iter([*on_interface, *seen]), None)
    if len(names) < 2 or len(names) < len(hosts.names) or None in addresses.values():
        return {}
    listed = [{"name": name, "address": addresses[name]} for name in names]
    ports = [port for span in PORTS for port in random.sample(range(*span), TRIED)]
    _run_on(hosts, "--reach", {"hosts": listed, "ports": ports}, folder)
    files = {name: folder / "work" / f"{name}.reach.json" for name in names}
    return {name: read_json(file) for name, file in files.items() if file.exists()}


def _run_on(hosts: Hosts, task: str, facts: Facts, folder: Path) -> str:
    """Run this module on every host; what it said.

    Args:
        folder: its subfolder `work` comes back with what the hosts write there.
    """
    work = folder / "work"
    work.mkdir(exist_ok=True)
    command = [sys.executable, "-m", MODULE, work.name, task, json.dumps(facts)]
    try:
        done = run_to_end(
            hosts.step(command, Step(logs=work)),
            env={**without_job(), "PYTHONPATH": str(SOURCE), **hosts.variables()},
            timeout=_LOOK_SECONDS,
            # Hosts that share no files have this folder elsewhere.
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_LOOK_SECONDS:g} s"
    return f"{done.stdout}{done.stderr}".strip()


def look(site: Facts, folder: Path) -> Facts:
    """The equipment of this host, and its view of the others."""
    now = time.time()
    listed = [host["name"] for host in site["hosts"]]
    # With Slurm, hosts find each other by the names that it uses.
    name = listed[read_node()] if listed else host_name()
    (folder / f"{name}.here").touch()
    # Where hosts share no files, each sees its own.
    count = 1 if listed and not site["shared"] else len(listed) or site["nodes"]
    deadline = time.monotonic() + PATIENCE
    while len(seen := sorted(path.stem for path in folder.glob("*.here"))) < count:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    if (lock := take_lock()) is not None:
        lock.close()
    scratch = Path(site["scratch"] or tempfile.gettempdir())
    program = container_program()
    container = None
    if program and site["image"]:
        # Empty if it starts.
        command = [program, "--quiet", "exec", site["image"], "true"]
        container = why_not(command, _ASK_SECONDS, env=environment_for({}))
    return {
        "host": name,
        "time": now,
        "python": sys.version.split()[0],
        "cores": len(physical_cores()),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "load": os.getloadavg()[0],
        # Whether another measurement of this user runs here.
        "measures": lock is None,
        "gpus": list_gpus("name"),
        "capabilities": list_gpus("compute_cap"),
        "driver": read_driver(),
        "adapters": sorted(os.path.basename(p) for p in glob.glob(_ADAPTERS)),
        "verbs": any(os.access(p, os.R_OK | os.W_OK) for p in glob.glob(_VERBS)),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "interfaces": _interfaces(),
        "slurm": output_of("sinfo", "--version"),
        "apptainer": output_of(program, "--version") if program else None,
        "container": container,
        "missing": [path for path in site["binds"] if not os.path.exists(path)],
        "fuse": os.access("/dev/fuse", os.R_OK | os.W_OK),
        "shm_mib": _free_mib(Path("/dev/shm")),  # noqa: S108
        "scratch": str(scratch),
        "scratch_mib": _free_mib(scratch),
        "seen": seen,
        "itself": _resolve(socket.gethostname())["addresses"],
        "names": {other: _resolve(other) for other in listed or seen},
    }


def _interfaces() -> dict[str, list[str]] | None:
    """Addresses of the interfaces that are up and have one; None without `ip`."""
    said = output_of("ip", "-json", "address", "show", "up", "scope", "global")
    if said is None:
        return None
    return {
        link["ifname"]: [entry["local"] for entry in link["addr_info"] if entry]
        for link in json.loads(said)
        if link
    }


def _resolve(host: str) -> Facts:
    """Addresses of a name, and the duration of the look-up in both directions."""
    begun = time.monotonic()
    try:
        # In the order in which libraries try them.
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, 22)]
        addresses = list(dict.fromkeys(found))
    except OSError:
        addresses = []
    for address in addresses:
        # Libraries look up the name of each peer: a name server that does not answer
        # makes each connection slow.
        socket.getnameinfo((address, 22), 0)
    return {"addresses": addresses, "seconds": time.monotonic() - begun}


def _free_mib(folder: Path) -> int | None:
    """Free space; None where the folder is missing or cannot be written to."""
    if not os.access(folder, os.W_OK):
        return None
    return shutil.disk_usage(folder).free // 2**20


def find_faults(site: Facts, found: Facts, cells: Sequence[Facts] = ()) -> list[str]:
    """The faults of a site, each with its remedy; empty if there are none.

    Args:
        site: the site of the plan.
        found: what `inspect` returned.
        cells: of the plan, those that can run here.
    """
    hosts = found["hosts"]
    faults = list(found["faults"])
    if not faults and len(hosts) < site["nodes"]:
        faults.append(
            f"{len(hosts)} of {site['nodes']} hosts reported "
            f"({', '.join(h['host'] for h in hosts) or 'none'}): all must see this "
            "folder and this Python at the same path, and Slurm must start a step "
            f"there; it said: {(found['said'].splitlines() or ['nothing'])[-1]}"
        )
    for host in hosts:
        faults += [
            f"{host['host']}: {fault}"
            for fault in (
                *_faults_of(host, site, hosts),
                *_faults_of_driver(host, site, cells),
                *_faults_of_fabric(host, cells),
            )
        ]
        # A clock that was read between two others.
        off = max(found["began"] - host["time"], host["time"] - found["ended"])
        if off > MOST_CLOCK_SECONDS:
            faults.append(
                f"{host['host']}: its clock is at least {off:.0f} s off: have chrony "
                "or ntpd run on all hosts"
            )
    return faults + list(_faults_of_network(found["reach"]))


def _faults_of_network(reach: Mapping[str, Facts]) -> Iterator[str]:
    for name, found in reach.items():
        for other, ports in found["unreached"].items():
            ranges = " and ".join(
                f"{first}-{last}"
                for first, last in PORTS
                if any(first <= port <= last for port in ports)
            )
            yield (
                f"{name}: cannot connect to {other} at TCP port "
                f"{', '.join(map(str, ports))}: on {other}, let the firewall accept "
                f"connections from {name} to the ports {ranges}"
            )


def _faults_of(host: Facts, site: Facts, hosts: Sequence[Facts]) -> Iterator[str]:
    declared: dict[str, int] = {o["name"]: o["devices"] for o in site["hosts"]}
    scheduler = scheduler_of(site)
    name = host["host"]
    gpus: int = declared[name] if declared else site["cuda_devices"]
    if len(host["gpus"]) < gpus and site["device"] == "cuda":
        gres = "is gres the name that `sinfo --Format=gres` has, and "
        yield (
            f"shows {len(host['gpus'])} GPUs, site.yaml says {gpus} "
            f"({'devices in hosts' if declared else 'devices_per_node'}): "
            f"{gres if scheduler.has_queue else ''}does nvidia-smi work there?"
        )
    counts_cores = declared and site["device"] == "cpu"
    cores: int = declared[name] if counts_cores else site["cores"]
    if host["cores"] < cores:
        yield (
            f"lets a job use {host['cores']} physical cores, site.yaml says {cores}: "
            f"correct {'devices in hosts' if declared else 'cores, or exclusive'}"
        )
    # No scheduler reserves a host that is only listed.
    if scheduler.lists_hosts and host["measures"]:
        yield "another run of rankbench measures there now: wait, or end it"
    if scheduler.lists_hosts and host["load"] > MOST_LOAD * host["cores"]:
        yield (
            f"is busy (load {host['load']:.1f} on {host['cores']} cores): find out by "
            "top what runs there, and end it"
        )
    wanted, interfaces = site["interface"], host["interfaces"]
    if wanted and interfaces is not None and not interfaces.get(wanted):
        there = [name for name, addresses in interfaces.items() if addresses]
        yield (
            f"has no interface {wanted} that is up and has an address; it has "
            f"{', '.join(there) or 'none'}: correct interface in site.yaml"
        )
    if site["software"] == "container":
        if host["apptainer"] is None:
            yield (
                "has no Apptainer on PATH: load its module before snakemake (jobs "
                "inherit PATH), or have it installed"
            )
        if host["container"]:
            yield (
                f"does not start containers: {host['container']}: enable user "
                "namespaces (sysctl user.max_user_namespaces), or have Apptainer "
                "installed setuid"
            )
        elif host["container"] is None and not host["fuse"]:
            yield (
                "does not let users mount images: /dev/fuse must be readable and "
                "writable for all (chmod 666), or Apptainer be installed setuid"
            )
    for path in host["missing"]:
        yield f"has no {path}: correct binds in site.yaml"
    if scheduler.has_queue and host["slurm"] is None:
        yield "has no Slurm commands on PATH: ranks are started by srun there"
    shm, scratch = host["shm_mib"], host["scratch_mib"]
    if shm is None or shm < LEAST_SHM_MIB:
        yield (
            f"has {shm or 0} MiB in /dev/shm, and ranks exchange data there: mount it "
            f"larger (at least {LEAST_SHM_MIB} MiB)"
        )
    if scratch is None:
        yield f"cannot write to {host['scratch']}: correct scratch in site.yaml"
    elif scratch < LEAST_SCRATCH_MIB:
        yield (
            f"has {scratch} MiB free in {host['scratch']}: empty it, or name another "
            "folder (scratch in site.yaml)"
        )
    share_files = site["shared"] or not scheduler.lists_hosts
    others = {other["host"] for other in hosts}
    if share_files and (unseen := sorted(others - set(host["seen"]))):
        yield (
            f"does not see files of {', '.join(unseen)}: the project must lie on a "
            "file system that all hosts share"
        )
    first = next(iter(host["itself"]), None)
    alone = site["nodes"] == 1 or site["interface"] is not None
    if not alone and first and ip_address(first).is_loopback:
        yield (
            f"calls itself {first}, and gloo would give this address to the others: "
            "set interface in site.yaml"
        )
    for other, answer in host["names"].items():
        if not answer["addresses"]:
            yield (
                f"cannot resolve {other}: ranks find each other by these names "
                "(/etc/hosts or a name server)"
            )
        elif answer["seconds"] > MOST_NAME_SECONDS:
            yield (
                f"takes {answer['seconds']:.0f} s to resolve {other} and its address: "
                "so long each connection takes; correct /etc/resolv.conf"
            )


def _faults_of_driver(
    host: Facts, site: Facts, cells: Sequence[Facts]
) -> Iterator[str]:
    """Images, or the torch of this environment, that the host's GPUs cannot run."""
    if host["driver"] is None:
        return
    capabilities = [float(capability) for capability in host["capabilities"]]
    for name in sorted({cell["image"] or "" for cell in cells}):
        software = site["images"][name] if name else site["native"]
        yield from find_misfits(
            software["torch"], name or None, host["driver"], capabilities
        )


def _faults_of_fabric(host: Facts, cells: Sequence[Facts]) -> Iterator[str]:
    """What keeps NCCL and UCX from using the adapters of a host."""
    users = {
        f"{cell['cell']['backend']} in the image {cell['image']}"
        if cell["image"]
        else cell["cell"]["backend"]
        for cell in cells
        if cell["cell"]["backend"] in OVER_FABRIC and cell["shape"]["nodes"] > 1
    }
    if not users or not host["adapters"]:
        return
    adapters, who = ", ".join(host["adapters"]), " and ".join(sorted(users))
    if not host["verbs"]:
        yield (
            f"has the adapters {adapters}, and users cannot open /dev/infiniband: "
            f"{who} would use TCP; load the module ib_uverbs, and allow the devices "
            "(chmod 666 /dev/infiniband/uverbs*)"
        )
    if host["memlock"] != resource.RLIM_INFINITY:
        yield (
            f"limits locked memory to {host['memlock'] >> 10} KiB, and {who} cannot "
            f"register memory with {adapters} then: LimitMEMLOCK=infinity for slurmd "
            "or sshd, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
        )


def describe(site: Facts, found: Facts) -> list[str]:
    """The equipment of the hosts, as lines."""
    lines = []
    for host in found["hosts"]:
        gpus, links = "none", host["interfaces"] or {}
        if host["gpus"]:
            gpus = f"{len(host['gpus'])} x {host['gpus'][0]}, driver {host['driver']}"
        network = ", ".join(
            f"{name} {'/'.join(ips)}" for name, ips in links.items() if ips
        )
        lines += [
            f"{host['host']}",
            f"  cores {host['cores']}, memory {host['memory_mib']} MiB, "
            f"/dev/shm {host['shm_mib']} MiB, "  # noqa: S108
            f"{host['scratch']} {host['scratch_mib']} MiB free",
            f"  GPUs {gpus}; network {network or 'none found'}",
            f"  Python {host['python']}; {host['slurm'] or 'no Slurm'}; "
            f"{host['apptainer'] or 'no Apptainer'}; "
            f"/dev/fuse {'usable' if host['fuse'] else 'not usable'}",
        ]
    if scheduler_of(site).has_queue and not found["pmix"]:
        lines.append(
            "srun has no PMIx (`srun --mpi=list`): cells over MPI that srun starts "
            "need it; mpirun does without"
        )
    return lines


def main(place: Path, task: str = "", given: str = "{}") -> int:
    """Do one of the tasks; the place is the plan, or on a host a folder."""
    asked = json.loads(given)
    if task == "--look":
        facts = look(asked, place)
        write_json(place / f"{facts['host']}.facts.json", facts)
    elif task == "--reach":
        node = read_node()
        found = exchange(node, asked["hosts"], asked["ports"])
        write_json(place / f"{asked['hosts'][node]['name']}.reach.json", found)
    else:
        restore_job()
        plan = read_json(place)
        found = inspect(plan, place.resolve().parent)
        cells = [cell for cell in plan["cells"] if cell["infeasible"] is None]
        faults = find_faults(plan["site"], found, cells)
        say(found["said"], aside=True)
        say(*describe(plan["site"], found), *(f"FAULT {fault}" for fault in faults))
        say(f"{len(faults)} faults" if faults else "all is as site.yaml says")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
