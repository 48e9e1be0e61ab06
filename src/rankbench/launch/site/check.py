"""Check whether the hosts match the site file; each fault has a remedy.

``python -m rankbench.launch.site.check PLAN HOSTS`` reads what `hosts` has found.
"""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from rankbench.launch.launchers import find_launcher, is_by_ssh
from rankbench.launch.site.cuda import find_misfits
from rankbench.launch.site.inventory import PORTS
from rankbench.record import read_json
from rankbench.say import say
from rankbench.schedulers import scheduler_of

Facts = dict[str, Any]

# Ranks of a host exchange data in /dev/shm: torch's loaders, NCCL, Open MPI.
LEAST_SHM_MIB = 256
LEAST_SCRATCH_MIB = 1024
# Files of other hosts are judged by their age (launch/job/claim.py).
MOST_CLOCK_SECONDS = 5.0
MOST_NAME_SECONDS = 2.0
MOST_LOAD = 0.5  # of a core
LEAST_SLURM = (20, 11)  # for `srun --overlap`
OVER_FABRIC = ("nccl", "mpi")  # backends that use InfiniBand by themselves


def find_faults(site: Facts, found: Facts, cells: Sequence[Facts] = ()) -> list[str]:
    """The faults of a site, each with its remedy; empty if there are none.

    Args:
        site: the site of the plan.
        found: what `inspect` returned.
        cells: of the plan, those that can run here.
    """
    hosts = found["hosts"]
    faults = list(found["faults"])
    by_ssh = any(
        cell["shape"]["nodes"] > 1
        and is_by_ssh(find_launcher(cell["cell"]["launcher"]))
        for cell in cells
    )
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
    for name, view in found["reach"].items():
        for other, ports in view["unreached"].items():
            ranges = " and ".join(
                f"{first}-{last}"
                for first, last in PORTS
                if any(first <= port <= last for port in ports)
            )
            faults.append(
                f"{name}: cannot connect to {other} at TCP port "
                f"{', '.join(map(str, ports))}: on {other}, let the firewall accept "
                f"connections from {name} to the ports {ranges}"
            )
        faults += [
            f"{name}: ssh to {other} fails ({said}): mpirun, hydra and horovodrun need "
            f"it; let `ssh-copy-id {other}` on {name} install a key, or use another "
            "launcher"
            for other, said in view["ssh"].items()
            if by_ssh and said is not None
        ]
    return faults


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
    elif scheduler.has_queue and _numbers(host["slurm"])[:2] < LEAST_SLURM:
        yield f"has {host['slurm']}: rankbench needs 20.11 or newer (srun --overlap)"
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


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers in the text of a version, such as `slurm 22.05.8`."""
    return tuple(map(int, re.findall(r"\d+", version)))


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
        interfaces = ", ".join(
            f"{name} {'/'.join(addresses)}"
            for name, addresses in (host["interfaces"] or {}).items()
            if addresses
        )
        gpus = "none"
        if host["gpus"]:
            gpus = f"{len(host['gpus'])} x {host['gpus'][0]}, driver {host['driver']}"
        lines += [
            f"{host['host']}",
            f"  cores {host['cores']}, memory {host['memory_mib']} MiB, "
            f"/dev/shm {host['shm_mib']} MiB, "  # noqa: S108
            f"{host['scratch']} {host['scratch_mib']} MiB free",
            f"  GPUs {gpus}; network {interfaces or 'none found'}",
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


def main(plan_file: Path, hosts_file: Path) -> int:
    """Return 0 without faults, else 1.

    The file of the hosts is removed, so that the next check looks anew.
    """
    plan, found = read_json(plan_file), read_json(hosts_file)
    hosts_file.unlink()
    site = plan["site"]
    say(*describe(site, found))
    cells = [cell for cell in plan["cells"] if cell["infeasible"] is None]
    faults = find_faults(site, found, cells)
    for fault in faults:
        say(f"FAULT {fault}")
    say(f"{len(faults)} faults" if faults else "all is as site.yaml says")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
