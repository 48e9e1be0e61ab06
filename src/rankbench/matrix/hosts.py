"""The hosts that a site file lists: names, devices, and which of them a cell uses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankbench.matrix.schema import did_you_mean

if TYPE_CHECKING:
    from rankbench.matrix.site import Site

Host = dict[str, Any]

# No option of ssh, and no user: ranks find each other by these names.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def read_hostfile(path: Path) -> list[Host]:
    """Read the hosts from a file in the form of mpirun and DeepSpeed: `a slots=2`.

    Raises:
        ValueError: it cannot be read, or a line is wrong.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    hosts = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = [word.partition("=") for word in words[1:]]
        counts = [value for key, _, value in slots if key == "slots"]
        if (
            len(slots) != len(counts)
            or len(counts) > 1
            or not "".join(counts).isdigit()
        ):
            raise ValueError(
                f"{path}, line {number}: {line.strip()!r}: expected a name and its "
                "devices, such as `a slots=2`"
            )
        hosts.append({"name": words[0], "devices": int(counts[0])})
    return hosts


def check_hosts(hosts: Sequence[Host], source: str) -> None:
    """Check the hosts of a site.

    Raises:
        ValueError: there are none, or a name is wrong or appears twice.
    """
    if not hosts:
        raise ValueError(
            f"{source}: hosts: scheduler: ssh needs the hosts, such as "
            "[{name: a, devices: 2}, {name: b, devices: 2}], or a hostfile"
        )
    seen = set()
    for host in hosts:
        name = host["name"]
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{source}: hosts: {name!r} is no name of a host: users, ports and "
                "other names belong into ~/.ssh/config"
            )
        if name in seen:
            raise ValueError(f"{source}: hosts: {name} appears twice")
        if host["devices"] < 1:
            raise ValueError(f"{source}: hosts: {name} has no devices")
        seen.add(name)


def use_hosts(site: Site, wanted: Sequence[str] | None, source: str) -> Site:
    """Return the site with only these hosts, in this order.

    Args:
        site: the site.
        wanted: names; None for all of them in the order of the site file.
        source: name of the experiment file, for errors.

    Raises:
        ValueError: the site does not list such a host.
    """
    if wanted is None:
        return site
    known = {host["name"]: host for host in site.hosts}
    if not known:
        raise ValueError(
            f"{source}: hosts: this site lists no hosts (scheduler: {site.scheduler}): "
            "remove the key"
        )
    for name in wanted:
        if name not in known:
            raise ValueError(
                f"{source}: hosts: {name}: no such host{did_you_mean(name, known)} "
                f"(site.yaml lists {', '.join(known)})"
            )
    hosts = [known[name] for name in wanted]
    return replace(site, hosts=hosts, nodes=len(hosts))


def why_too_few(
    hosts: Sequence[Mapping[str, Any]], nodes: int, devices: int
) -> str | None:
    """Return which of the first hosts have too few devices; None if none has."""
    small = [one for one in hosts[:nodes] if one["devices"] < devices]
    if not small:
        return None
    listed = ", ".join(f"{one['name']} has {one['devices']}" for one in small)
    return (
        f"{nodes}x{devices} needs {devices} devices on each host; {listed} "
        "(hosts of the experiment chooses others)"
    )
