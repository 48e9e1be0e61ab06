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
    minutes_of,
    parse_lines,
    try_slurm,
)

Fields = Mapping[str, str]

# States, and flags of states, with which a host gets no job. One that Slurm has powered
# down gets jobs: it is started for them.
_DOWN = {
    *("DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE"),
    *("INVAL", "UNKNOWN", "NOT_RESPONDING"),
}


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition for jobs.

    Attributes:
        name: in Slurm.
        is_default: whether jobs that name none get it.
        why_not: why this user cannot use it; None if nothing is against that.
        facts: key of a site file -> its value. Empty if `why_not` is set.
        notes: key of a site file -> what to know about its value.
    """

    name: str
    is_default: bool
    why_not: str | None
    facts: Mapping[str, Any]
    notes: Mapping[str, str]

    def describe(self) -> str:
        """In words, such as `gpu: 4 hosts of 64 cores and 4 gpu:a100, 2880 minutes`."""
        if self.why_not:
            return f"{self.name}: not usable: {self.why_not}"
        facts = self.facts
        gpus = "no GPU"
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
        up = [host for host in members if not _DOWN & _states(host)]
        facts, notes = _describe_hosts(up, fields) if up else ({}, {})
        if len(members) > len(up):
            lost = len(members) - len(up)
            notes["nodes"] = f"{lost} more {'is' if lost == 1 else 'are'} down"
        why_not = _why_not(fields, groups, accounts)
        if why_not is None and not up:
            why_not = "none of its hosts is up"
        if account := _choose_account(fields, accounts, notes):
            facts["account"] = account
        if qos := _names(fields, "AllowQos"):
            notes["qos"] = f"the partition takes only {_shorten(qos)}"
        listed = "`rankbench check --site DIR` lists them"
        notes["interface"] = f"Slurm does not know it; {listed}"
        found.append(
            Partition(
                name,
                fields.get("Default") == "YES",
                why_not,
                {} if why_not else {"partition": name, **facts},
                notes,
            )
        )
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


def _states(host: Fields) -> set[str]:
    """The state of a host and its flags: `DOWN*+DRAIN` is two of them."""
    return set(re.findall(r"[A-Z_]+", host.get("State", "")))


def _why_not(
    fields: Fields, groups: Collection[str], accounts: Collection[str]
) -> str | None:
    state = fields.get("State", "UP")
    if state != "UP":
        return f"its state is {state}"
    if fields.get("RootOnly") == "YES":
        return "it is for root (RootOnly=YES)"
    allowed = _names(fields, "AllowGroups")
    if allowed and not set(allowed) & set(groups):
        return f"you are in none of its groups (AllowGroups={_shorten(allowed)})"
    allowed = _names(fields, "AllowAccounts")
    if accounts and allowed and not set(allowed) & set(accounts):
        return f"you have none of its accounts (AllowAccounts={_shorten(allowed)})"
    denied = _names(fields, "DenyAccounts")
    if accounts and not set(accounts) - set(denied):
        return f"it refuses your accounts (DenyAccounts={_shorten(denied)})"
    return None


def _names(fields: Fields, key: str) -> list[str]:
    """Names in a field; none if it admits all."""
    names = fields.get(key, "ALL").split(",")
    return [name for name in names if name not in ("ALL", "(null)", "")]


def _choose_account(
    fields: Fields, accounts: Collection[str], notes: dict[str, str]
) -> str | None:
    """An account that the partition needs; None if Slurm's default will do."""
    allowed = _names(fields, "AllowAccounts")
    usable = [name for name in allowed if name in accounts]
    if allowed and not accounts:
        notes["account"] = (
            f"the partition takes only {_shorten(allowed)}, and Slurm does not say "
            "which is yours"
        )
    elif len(usable) > 1:
        notes["account"] = f"or {_shorten(usable[1:])}"
    return usable[0] if usable else None


def _describe_hosts(
    hosts: Sequence[Fields], partition: Fields
) -> tuple[dict[str, Any], dict[str, str]]:
    """Facts of a site file and notes on them, of one or more hosts.

    Of hosts with and without GPUs, or with several types, those of the most frequent
    type count: a job that asks for it gets no others.
    """
    facts: dict[str, Any] = {"device": "cpu", "devices_per_node": "auto", "gres": "gpu"}
    notes: dict[str, str] = {}
    gpus = [_read_gpus(host.get("Gres", "")) for host in hosts]
    types = Counter(name for of_host in gpus for name in of_host)
    if types:
        gres = types.most_common(1)[0][0]
        counts = [of_host[gres] for of_host in gpus if gres in of_host]
        if len(types) > 1:
            others = _shorten(name for name in types if name != gres)
            notes["gres"] = f"other hosts have {others}"
        chosen = zip(hosts, gpus, strict=True)
        hosts = [host for host, of_host in chosen if gres in of_host]
        facts |= {"device": "cuda", "devices_per_node": min(counts), "gres": gres}
        _note_smallest("devices_per_node", counts, notes)
    facts["nodes"] = len(hosts)
    most = partition.get("MaxNodes", "")
    if most.isdecimal() and int(most) < len(hosts):
        facts["nodes"] = int(most)
    cores = [_read_cores(host, partition) for host in hosts]
    memory = [_read_memory(host, partition) for host in hosts]
    for key, values in (("cores", cores), ("memory", memory)):
        facts[key] = min(values)
        _note_smallest(key, values, notes)
    limit = minutes_of(partition.get("MaxTime", ""))
    facts["max_job_minutes"] = None if math.isinf(limit) else int(limit)
    return facts, notes


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


def _note_smallest(key: str, values: Sequence[int], notes: dict[str, str]) -> None:
    """Note the other values if hosts differ."""
    if others := sorted(set(values) - {min(values)}):
        notes[key] = f"the least of all hosts; others have {_shorten(others)}"


def _shorten(values: Iterable[object]) -> str:
    """At most four values."""
    listed = [str(value) for value in values]
    return ", ".join(listed[:4]) + (", ..." if len(listed) > 4 else "")
