"""Find out which transport carried the bytes, from the logs of NCCL and UCX.

These two fall back to slower ways without a word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

# Connections are made before the timed window, so the facts are at the beginning of a
# log. A library with a more verbose level could fill a disk.
READ_AT_MOST = 4 * 1024 * 1024  # bytes


def read_logs(directory: Path, ranks: int) -> list[Facts]:
    """The facts in the logs of a launch, see `group`; [] if they have none."""
    found = {}
    for rank in range(ranks):
        try:
            with open(directory / f"rank{rank}.log", "rb") as file:
                text = file.read(READ_AT_MOST).decode(errors="replace")
        except FileNotFoundError:
            continue
        if facts := read_log(text):
            found[rank] = facts
    return group(found)


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
    """Facts by library out of the log of one rank.

    A library is named if it said something of how it sends. Of its facts those are None
    that its log does not tell.
    """
    found = {}
    for name, (sign, read) in _READERS.items():
        if sign in text and (facts := read(text)):
            found[name] = facts
    return found


def group(found: Mapping[int, Facts]) -> list[Facts]:
    """Group ranks with equal facts: one entry if all ranks agree."""
    groups: list[Facts] = []
    for rank, facts in sorted(found.items()):
        libraries = {}
        for name, said in facts.items():
            told = {
                all_of[name].get("version")
                for all_of in found.values()
                if name in all_of
            }
            told.discard(None)
            if "version" in said and len(told) == 1:
                # A version that only one rank prints is that of all.
                said = {**said, "version": min(told)}
            libraries[name] = said
        for known in groups:
            if known["libraries"] == libraries:
                known["ranks"].append(rank)
                break
        else:
            groups.append({"ranks": [rank], "libraries": libraries})
    return groups


_CHANNEL = re.compile(
    r"NCCL INFO (?:Channel|CollNet) .*? via (.+?)(?: comm 0x.*)?\s*$", re.MULTILINE
)


def _read_nccl(text: str) -> Facts | None:
    """NCCL, and RCCL, which prints the same."""
    transports = {_name_channel(said) for said in _CHANNEL.findall(text)}
    network = _first(r"NCCL INFO Using network (.+?)\s*$", text)
    if not transports and network is None:
        return None
    crossing = [name for name in transports if name.startswith(("NET/", "COLLNET/"))]
    hcas = re.findall(r"GPU Direct RDMA (Enabled|Disabled) for HCA \d+ '", text)
    return {
        "version": _first(r"NCCL version (\S+)", text),
        "network": network,
        "interfaces": _nccl_interfaces(text, network),
        "transports": sorted(transports),
        "gpudirect_possible": "Enabled" in hcas if hcas else None,
        "gpudirect_rdma": any("GDRDMA" in c for c in crossing) if crossing else None,
    }


def _name_channel(said: str) -> str:
    """The transport without the numbers of peers, which differ between channels."""
    if said == "direct shared memory":  # up to NCCL 2.13
        return "SHM/direct"
    if said.startswith("P2P/indirect"):
        return "P2P/indirect"
    return re.sub(r"\(\d+\)", "", said).removesuffix("/Shared")


def _nccl_interfaces(text: str, network: str | None) -> list[str] | None:
    # IBext_v8 and the like are plugins for the same adapters.
    kind = re.escape((network or "").partition("ext_")[0])
    said = _first(rf"NCCL INFO NET/{kind} : Using (.+)", text)
    if said is None:
        return None
    # [0]mlx5_0:1/RoCE or [0]eth0:ADDRESS<PORT>; addresses are private and left out.
    found = re.findall(r"\[\d+\](\S+)", said.partition(";")[0])
    return [name.partition(":")[0] if "<" in name else name for name in found]


_UCX_LANE = re.compile(r"\b[a-z]\w*/[\w.:-]+")
_UCX_GPU = re.compile(r"\b(?:from|into|to) (?:cuda|rocm|ze-)")
_UCX_NETWORK = re.compile(r"\b(?:rc|dc|ud)(?:_\w+)?/")


def _read_ucx(text: str) -> Facts | None:
    lanes = []
    for said in re.findall(r"UCX  INFO .*\b(?:cfg#\d+|ep_cfg\[\d+\]:) (.+)", text):
        # ka: keep-alive messages
        lanes += _UCX_LANE.findall(re.sub(r"\bka\([^)]*\)", "", said))
    gpu_aware = gpudirect = None
    from_gpu = False
    for line in text.splitlines():
        # |  mpi ep_cfg[1] | tagged message by ucp_tag_send*() from cuda/GPU0 |
        # |       0..8246  | eager zero-copy copy-out      | rc_mlx5/mlx5_0:1   |
        cells = line.split("|")[1:-1]
        if len(cells) == 2 and "cfg" in cells[0]:
            from_gpu = bool(_UCX_GPU.search(cells[1]))
            gpu_aware = gpu_aware or from_gpu
        elif len(cells) == 3 and re.match(r"\s*\d", cells[0]):
            lanes += _UCX_LANE.findall(cells[2])
            if from_gpu and _UCX_NETWORK.search(cells[2]):
                # This protocol goes through a buffer in host memory.
                direct = "zero-copy" in cells[1] and "pipeline" not in cells[1]
                gpudirect = gpudirect or direct
    transports = {lane for lane in lanes if not lane.startswith("self/")}
    if not transports:
        return None
    return {
        "version": _first(r"UCX  INFO  Version (\S+)", text),
        "transports": sorted(transports),
        "gpu_aware": gpu_aware,
        "gpudirect_rdma": gpudirect,
    }


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else None


# A reader is applied only to logs that contain this text.
_READERS = {
    "nccl": ("NCCL INFO", _read_nccl),
    "ucx": ("UCX  INFO", _read_ucx),
}
