"""Find out which transport carried the bytes, from the logs of NCCL and UCX.

These two fall back to slower ways without a word.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

# Connections are made before the timed window, so the facts are at the beginning of a
# log. A library with a more verbose level could fill a disk.
READ_AT_MOST = 4 * 1024 * 1024  # bytes


def read_logs(directory: Path, ranks: int) -> list[Facts]:
    """The facts in the logs of a launch: one entry for all ranks whose facts agree."""
    groups: list[Facts] = []
    for rank in range(ranks):
        try:
            with open(directory / f"rank{rank}.log", "rb") as file:
                text = file.read(READ_AT_MOST).decode(errors="replace")
        except FileNotFoundError:
            continue
        if libraries := read_log(text):
            known = (group for group in groups if group["libraries"] == libraries)
            if (group := next(known, None)) is None:
                groups.append(group := {"ranks": [], "libraries": libraries})
            group["ranks"].append(rank)
    return groups


def join(asked: Facts | None, seen: list[Facts]) -> Facts | None:
    """The `transport` of a record: what was asked for, and what the logs say of it.

    Args:
        asked: what the ranks reported; None where none of them sends to another.
        seen: from `read_logs`. A single process may have something to tell as well: one
            of `dp` sends between its own GPUs.
    """
    if asked is None and not seen:
        return None
    return {**(asked or {"backend": "none", "asked": {}}), "seen": seen}


def read_log(text: str) -> Facts:
    """Facts by library out of the log of one rank; a library without any is left out.

    ``gpudirect_rdma`` is None if no adapter was used, or if that is unknown.
    """
    found = {"nccl": _read_nccl(text), "ucx": _read_ucx(text)}
    return {name: facts for name, facts in found.items() if facts}


_CHANNEL = re.compile(
    r"NCCL INFO (?:Channel|CollNet) .*? via (.+?)(?: comm 0x.*)?\s*$", re.MULTILINE
)
_NETWORK = re.compile(r"NCCL INFO Using network (.+?)\s*$", re.MULTILINE)
# Switches add up the data of GPUs; NCCL chooses by the size of a message.
_NVLS = re.compile(r"NCCL INFO \d+ coll channels,.* [1-9]\d* nvls channels")


def _read_nccl(text: str) -> Facts | None:
    """NCCL, and RCCL, which prints the same."""
    transports = {_name_channel(said) for said in _CHANNEL.findall(text)}
    if _NVLS.search(text):
        transports.add("NVLS")
    network = _NETWORK.search(text)
    if not transports and network is None:
        return None
    crossing = [name for name in transports if name.startswith(("NET/", "COLLNET/"))]
    return {
        "network": network and network[1],
        "transports": sorted(transports),
        "gpudirect_rdma": any("GDRDMA" in c for c in crossing) if crossing else None,
    }


def _name_channel(said: str) -> str:
    """The transport without the numbers of peers, which differ between channels."""
    if said == "direct shared memory":  # up to NCCL 2.13
        return "SHM/direct"
    if said.startswith("P2P/indirect"):
        return "P2P/indirect"
    return re.sub(r"\(\d+\)", "", said).removesuffix("/Shared")


_UCX_CHOICE = re.compile(r"UCX  INFO .*\b(?:cfg#\d+|ep_cfg\[\d+\]:) (.+)")
_UCX_LANE = re.compile(r"\b[a-z]\w*/[\w.:-]+")
_UCX_GPU = re.compile(r"\b(?:from|into|to) (?:cuda|rocm|ze-)")
_UCX_NETWORK = re.compile(r"\b(?:rc|dc|ud)(?:_\w+)?/")


def _read_ucx(text: str) -> Facts | None:
    # ka: keep-alive messages
    said = " ".join(re.sub(r"\bka\([^)]*\)", "", s) for s in _UCX_CHOICE.findall(text))
    gpudirect, from_gpu = None, False
    for line in text.splitlines() if "UCX  INFO" in text else ():
        # |  mpi ep_cfg[1] | tagged message by ucp_tag_send*() from cuda/GPU0 |
        # |       0..8246  | eager zero-copy copy-out      | rc_mlx5/mlx5_0:1   |
        cells = line.split("|")[1:-1]
        if len(cells) == 2 and "cfg" in cells[0]:
            from_gpu = bool(_UCX_GPU.search(cells[1]))
        elif len(cells) == 3 and re.match(r"\s*\d", cells[0]):
            said += cells[2]
            if from_gpu and _UCX_NETWORK.search(cells[2]):
                # This protocol goes through a buffer in host memory.
                direct = "zero-copy" in cells[1] and "pipeline" not in cells[1]
                gpudirect = gpudirect or direct
    transports = {x for x in _UCX_LANE.findall(said) if not x.startswith("self/")}
    if not transports:
        return None
    return {"transports": sorted(transports), "gpudirect_rdma": gpudirect}
