"""Which way NCCL chose between the ranks of a launch, in a few words."""

from __future__ import annotations

from rankbench.record import Record


def find_network(record: Record) -> str | None:
    """``IB with GPUDirect``, ``Socket``, on one host ``P2P/CUMEM``; None if unknown.

    Ranks that went different ways are joined by semicolons.
    """
    direct = {True: " with GPUDirect", False: " without GPUDirect", None: ""}
    ways = set()
    for entry in (record.get("transport") or {}).get("seen") or []:
        nccl = entry["libraries"].get("nccl") or {}
        transports = [str(name) for name in nccl.get("transports") or ()]
        way = ", ".join(transports)
        if any(name.startswith(("NET/", "COLLNET/")) for name in transports):
            way = f"{nccl.get('network') or 'network'}"
            way += direct[nccl.get("gpudirect_rdma")]
        ways.add(way)
    return "; ".join(sorted(ways - {""})) or None
