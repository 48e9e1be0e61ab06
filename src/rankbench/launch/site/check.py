"""Check whether the hosts match the site file; each fault has a remedy.

``python -m rankbench.launch.site.check PLAN HOSTS`` reads what `hosts` has found.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rankbench.record import read_json

Facts = dict[str, Any]

# Ranks of a host exchange data in /dev/shm: torch's loaders, NCCL, Open MPI.
LEAST_SHM_MIB = 256
LEAST_SCRATCH_MIB = 1024
# Files of other hosts are judged by their age (launch/cell/claim.py).
MOST_CLOCK_SECONDS = 5.0
MOST_NAME_SECONDS = 2.0


def find_faults(site: Facts, found: Facts) -> list[str]:
    """The faults of a site, each with its remedy; empty if there are none.

    Args:
        site: the site of the plan.
        found: what `look_at_hosts` returned.
    """
    hosts = found["hosts"]
    faults = []
    if len(hosts) < site["nodes"]:
        faults.append(
            f"{len(hosts)} of {site['nodes']} hosts reported "
            f"({', '.join(h['host'] for h in hosts) or 'none'}): all must see this "
            "folder and this Python at the same path, and Slurm must start a step "
            f"there; it said: {_last_line(found['said'])}"
        )
    for host in hosts:
        faults += [
            f"{host['host']}: {fault}" for fault in _faults_of(host, site, hosts)
        ]
        if off := _clock_seconds(host, found):
            faults.append(
                f"{host['host']}: its clock is at least {off:.0f} s off: have chrony "
                "or ntpd run on all hosts"
            )
    return faults


def _faults_of(host: Facts, site: Facts, hosts: Sequence[Facts]) -> Iterator[str]:
    if len(host["gpus"]) < site["cuda_devices"] and site["device"] == "cuda":
        yield (
            f"shows {len(host['gpus'])} GPUs, site.yaml says {site['cuda_devices']} "
            "(devices_per_node): is gres the name that `sinfo --Format=gres` has, and "
            "does nvidia-smi work there?"
        )
    if host["cores"] < site["cores"]:
        yield (
            f"lets a job use {host['cores']} physical cores, site.yaml says "
            f"{site['cores']}: correct cores, or exclusive"
        )
    wanted = site["interface"]
    if wanted is not None and not host["interfaces"].get(wanted):
        there = [name for name, addresses in host["interfaces"].items() if addresses]
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
        if not host["fuse"]:
            yield (
                "does not let users mount images: /dev/fuse must be readable and "
                "writable for all (chmod 666), or Apptainer be installed setuid"
            )
    for path in host["missing"]:
        yield f"has no {path}: correct binds in site.yaml"
    if site["scheduler"] == "slurm" and host["slurm"] is None:
        yield "has no Slurm commands on PATH: ranks are started by srun there"
    yield from _memory_and_disk(host)
    yield from _neighbours(host, hosts)


def _memory_and_disk(host: Facts) -> Iterator[str]:
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


def _neighbours(host: Facts, hosts: Sequence[Facts]) -> Iterator[str]:
    """Faults between this host and the others."""
    names = {other["host"] for other in hosts}
    if unseen := sorted(names - set(host["seen"])):
        yield (
            f"does not see files of {', '.join(unseen)}: the project must lie on a "
            "file system that all hosts share"
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


def _last_line(said: str) -> str:
    return (said.splitlines() or ["nothing"])[-1]


def _clock_seconds(host: Facts, found: Facts) -> float | None:
    """The least error of a clock that was read between two others, if too large."""
    off: float = max(found["began"] - host["time"], host["time"] - found["ended"])
    return off if off > MOST_CLOCK_SECONDS else None


def describe(site: Facts, found: Facts) -> list[str]:
    """The equipment of the hosts, as lines."""
    lines = []
    for host in found["hosts"]:
        interfaces = ", ".join(
            f"{name} {'/'.join(addresses)}"
            for name, addresses in host["interfaces"].items()
            if addresses
        )
        gpus = f"{len(host['gpus'])} x {host['gpus'][0]}" if host["gpus"] else "none"
        lines += [
            f"{host['host']}",
            f"  cores {host['cores']}, memory {host['memory_mib']} MiB, "
            f"/dev/shm {host['shm_mib']} MiB, "  # noqa: S108
            f"{host['scratch']} {host['scratch_mib']} MiB free",
            f"  GPUs {gpus}; network {interfaces or 'none'}",
            f"  Python {host['python']}; {host['slurm'] or 'no Slurm'}; "
            f"{host['apptainer'] or 'no Apptainer'}; "
            f"/dev/fuse {'usable' if host['fuse'] else 'not usable'}",
        ]
    if site["scheduler"] == "slurm" and not found["pmix"]:
        lines.append(
            "srun has no PMIx (`srun --mpi=list`): cells over MPI that srun starts "
            "need it; mpirun does without"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """0 without faults, else 1."""
    parser = argparse.ArgumentParser(prog="python -m rankbench.launch.site.check")
    parser.add_argument("plan", type=Path)
    parser.add_argument(
        "hosts", type=Path, help="is removed: the next check looks anew"
    )
    arguments = parser.parse_args(argv)
    site, found = read_json(arguments.plan)["site"], read_json(arguments.hosts)
    os.unlink(arguments.hosts)
    print(*describe(site, found), sep="\n")
    faults = find_faults(site, found)
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{len(faults)} faults" if faults else "all is as site.yaml says")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
