"""Which way NCCL chose between the ranks of a launch, in a few words."""

from __future__ import annotations

from rankbench.record import Record


def find_network(record: Record) -> str | None:
    """``IB with GPUDirect``, ``Socket``, on one host ``P2P/CUMEM``; None if unknown.

    Ranks that went different ways are joined by semicolons.
    """
    seen = (record.get("transport") or {}).get("seen") or []
    ways = {_describe(entry["libraries"].get("nccl") or {}) for entry in seen}
    return "; ".join(sorted(ways - {""})) or None


def _describe(nccl: Record) -> str:
    transports = [str(name) for name in nccl.get("transports") or ()]
    if not any(name.startswith(("NET/", "COLLNET/")) for name in transports):
        return ", ".join(transports)
    direct = {True: " with GPUDirect", False: " without GPUDirect", None: ""}
    return f"{nccl.get('network') or 'network'}{direct[nccl.get('gpudirect_rdma')]}"
