"""Partitions of a cluster, as Slurm describes them: what its site file can say."""

from __future__ import annotations

import getpass
import grp
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankbench.launch.hosts.slurm import (
    ask_slurm,
    is_up,
    minutes_of,
    parse_lines,
    try_slurm,
)

Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition for jobs.

    Attributes:
        name: in Slurm.
        is_default: whether jobs that name none get it.
        why_not: why this user cannot use it; None if nothing is against that.
        facts: key of a site file -> its value. Empty if `why_not` is set.
        notes: key of `facts` -> what to know about its value.
    """

    name: str
    is_default: bool
    why_not: str | None
    facts: Mapping[str, Any]
    notes: Mapping[str, str]

    def describe(self) -> str:
        """In words, such as `gpu: hosts 2, each with 64 cores, ...; jobs of ...`."""
        if self.why_not:
            return f"{self.name}: not usable: {self.why_not}"
        facts, gpus = self.facts, "no GPU"
        if facts["device"] == "cuda":
            gpus = f"{facts['devices_per_node']} {facts['gres']}"
        limit = facts["max_job_minutes"]
        return (
            f"{self.name}: hosts {facts['nodes']}, each with {facts['cores']} cores, "
            f"{facts['memory']} MiB, {gpus}; jobs "
            + (f"of at most {limit} minutes" if limit else "without a time limit")
        )


def ask_partitions() -> list[Partition]:
    """The partitions of the cluster that this machine belongs to.

    Raises:
        ValueError: Slurm is not here, or does not answer.
    """
    show = ("scontrol", "--all", "--oneliner", "show")
    partitions, hosts = ask_slurm(*show, "partition"), ask_slurm(*show, "node")
    groups = set()
    for number in os.getgroups():
        try:
            groups.add(grp.getgrgid(number).gr_name)
        except KeyError:  # It has no name here.
            groups.add(str(number))
    return parse_partitions(partitions, hosts, groups=groups, accounts=_ask_accounts())


def _ask_accounts() -> set[str]:
    """Of this user in Slurm; empty if they are not known."""
    try:
        asked = ("user=" + getpass.getuser(), "format=account")
    except (KeyError, OSError):  # It has no name here. KeyError before Python 3.13.
        return set()
    # Clusters without accounting have no accounts.
    said = try_slurm(
        "sacctmgr", "--noheader", "--parsable2", "show", "associations", *asked
    )
    return set((said or "").split())


def parse_partitions(
    partitions: str, hosts: str, *, groups: Collection[str], accounts: Collection[str]
) -> list[Partition]:
    """The partitions in the output of ``scontrol --all --oneliner show``.

    Args:
        partitions, hosts: the output for ``partition`` and ``node``.
        groups: of this user.
        accounts: of this user in Slurm; empty if they are not known.

    Returns:
        In Slurm's order.
    """
    described = parse_lines(hosts, "NodeName")
    found = []
    for fields in parse_lines(partitions, "PartitionName"):
        name = fields["PartitionName"]
        members = [h for h in described if name in h.get("Partitions", "").split(",")]
        up = [host for host in members if is_up(host.get("State", ""))]
        why_not = _why_not(fields, groups, accounts)
        if not why_not and not up:
            why_not = "none of its hosts is up"
        facts: dict[str, Any] = {}
        notes: dict[str, str] = {}
        if not why_not:
            _describe_hosts(up, fields, facts, notes)
            if lost := len(members) - len(up):
                notes["nodes"] = f"{lost} more {'is' if lost == 1 else 'are'} down"
            facts["partition"] = name
            allowed = _names(fields, "AllowAccounts")
            if own := [account for account in allowed if account in accounts]:
                facts["account"] = own[0]
        is_default = fields.get("Default") == "YES"
        found.append(Partition(name, is_default, why_not, facts, notes))
    return found


def choose_partition(found: Sequence[Partition], wanted: str | None) -> Partition:
    """The partition that a site file is for.

    Args:
        found: all partitions.
        wanted: its name; None for the default, or without one the first usable.

    Raises:
        ValueError: there is none of this name, or it cannot be used.
    """
    known = {partition.name: partition for partition in found}
    usable = [partition for partition in found if partition.why_not is None]
    others = ", ".join(partition.name for partition in usable) or "none"
    if wanted is not None:
        if wanted not in known:
            raise ValueError(f"{wanted}: no such partition (usable: {others})")
        if why := known[wanted].why_not:
            raise ValueError(f"partition {wanted}: {why} (usable: {others})")
        return known[wanted]
    if not usable:
        said = "; ".join(f"{each.name}: {each.why_not}" for each in found)
        raise ValueError(
            f"no partition of this cluster can be used: {said or 'Slurm lists none'}"
        )
    return max(usable, key=lambda partition: partition.is_default)


def _why_not(
    fields: Fields, groups: Collection[str], accounts: Collection[str]
) -> str | None:
    state = fields.get("State", "UP")
    for_groups, for_accounts, denied = (
        _names(fields, key) for key in ("AllowGroups", "AllowAccounts", "DenyAccounts")
    )
    if state != "UP":
        return f"its state is {state}"
    if fields.get("RootOnly") == "YES":
        return "it is for root (RootOnly=YES)"
    if for_groups and not set(for_groups) & set(groups):
        return f"you are in none of its groups (AllowGroups={_shorten(for_groups)})"
    if accounts and for_accounts and not set(for_accounts) & set(accounts):
        return f"you have none of its accounts (AllowAccounts={_shorten(for_accounts)})"
    if accounts and not set(accounts) - set(denied):
        return f"it refuses your accounts (DenyAccounts={_shorten(denied)})"
    return None


def _names(fields: Fields, key: str) -> list[str]:
    """Names in a field; none if it admits all."""
    names = fields.get(key, "ALL").split(",")
    return [name for name in names if name not in ("ALL", "(null)", "")]


def _describe_hosts(
    hosts: Sequence[Fields],
    partition: Fields,
    facts: dict[str, Any],
    notes: dict[str, str],
) -> None:
    """Add the facts of one or more hosts, and notes on them.

    Of hosts with and without GPUs, or with several types, those of the most frequent
    type count: a job that asks for it gets no others.
    """
    facts |= {"device": "cpu", "devices_per_node": "auto", "gres": "gpu"}
    gpus = [_read_gpus(host.get("Gres", "")) for host in hosts]
    types = Counter(name for of_host in gpus for name in of_host)
    least: dict[str, list[int]] = {}
    if types:
        gres = types.most_common(1)[0][0]
        if others := [name for name in types if name != gres]:
            notes["gres"] = f"other hosts have {_shorten(others)}"
        chosen = zip(hosts, gpus, strict=True)
        hosts = [host for host, of_host in chosen if gres in of_host]
        least["devices_per_node"] = [of[gres] for of in gpus if gres in of]
        facts |= {"device": "cuda", "gres": gres}
    facts["nodes"] = min(len(hosts), _number(partition, "MaxNodes", len(hosts)))
    least["cores"] = [_read_cores(host, partition) for host in hosts]
    least["memory"] = [_read_memory(host, partition) for host in hosts]
    for key, values in least.items():
        facts[key] = min(values)
        if more := sorted(set(values) - {min(values)}):
            notes[key] = f"the least of all hosts; others have {_shorten(more)}"
    limit = minutes_of(partition.get("MaxTime", ""))
    facts["max_job_minutes"] = None if math.isinf(limit) else int(limit)


def _read_gpus(gres: str) -> dict[str, int]:
    """Name of each type of GPU, as a site file has it, -> how many a host has."""
    found: dict[str, int] = {}
    # gpu:a100:4(S:0-1),gpu:tesla:no_consume:2,nvme:1; or (null)
    for entry in re.sub(r"\([^)]*\)", "", gres).split(","):
        kind, *more = entry.split(":")
        if kind == "gpu" and more and more[-1].isdecimal():
            name = ":".join(["gpu", *more[:-1]]).removesuffix(":no_consume")
            found[name] = found.get(name, 0) + int(more[-1])
    return found


def _read_cores(host: Fields, partition: Fields) -> int:
    """Physical cores that a job may use; one if Slurm does not say."""
    cores = _number(host, "Sockets", 1) * _number(host, "CoresPerSocket", 1)
    cores -= _number(host, "CoreSpecCount", 0)
    cpus = _number(partition, "MaxCPUsPerNode", 0)
    if cpus:
        cores = min(cores, cpus // _number(host, "ThreadsPerCore", 1))
    return max(1, cores)


def _read_memory(host: Fields, partition: Fields) -> int:
    """MiB that a job may ask for."""
    memory = _number(host, "RealMemory", 1) - _number(host, "MemSpecLimit", 0)
    most = _number(partition, "MaxMemPerNode", 0)
    return max(1, min(memory, most) if most else memory)


def _number(fields: Fields, key: str, default: int) -> int:
    value = fields.get(key, "")
    return int(value) if value.isdecimal() else default


def _shorten(values: Iterable[object]) -> str:
    """At most four values."""
    listed = [str(value) for value in values]
    return ", ".join(listed[:4]) + (", ..." if len(listed) > 4 else "")
