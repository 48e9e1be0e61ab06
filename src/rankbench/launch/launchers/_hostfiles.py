"""Hosts, and how many ranks each takes, as the launchers want to be told."""

from __future__ import annotations

from collections.abc import Mapping


def hostfile(slots: Mapping[str, int]) -> str:
    """A line for each host: what Open MPI and DeepSpeed read."""
    return "".join(f"{host} slots={count}\n" for host, count in slots.items())


def host_list(slots: Mapping[str, int]) -> str:
    """All in one word: what `-H` of mpirun and of horovodrun takes."""
    return ",".join(f"{host}:{count}" for host, count in slots.items())
