"""Computes the shape of a cell: its processes, devices and samples."""

from __future__ import annotations

from rankbench.cell import Cell, Shape, Topology
from rankbench.matrix.catalog import StrategyFacts
from rankbench.matrix.site import Site
from rankbench.templates import count_samples, values_of


def shape_of(cell: Cell, facts: StrategyFacts) -> Shape:
    """The numbers of processes, devices and samples of a cell."""
    topology = Topology.parse(cell.topology)
    ranks = {"one": 1, "node": topology.nodes, "device": topology.devices}[
        facts.needs["ranks"]
    ]
    replica_ranks = _replica_ranks(cell, facts, ranks)
    replicas = {
        "one": 1,
        "rank": max(1, ranks // replica_ranks),
        "device": topology.devices,
    }[facts.needs["replicas"]]
    devices_per_rank = topology.devices // ranks
    global_batch = cell.batch_size * (replicas if cell.scaling == "weak" else 1)
    if cell.script is not None:
        global_batch = count_samples(cell.script["samples_per_step"], values_of(cell))
    on_cpu = cell.device == "cpu"
    return Shape(
        nodes=topology.nodes,
        ranks=ranks,
        ranks_per_node=max(1, ranks // topology.nodes),
        devices_per_rank=devices_per_rank,
        cores_per_rank=cell.cores_per_device * devices_per_rank if on_cpu else 0,
        replicas=replicas,
        replica_ranks=replica_ranks,
        global_batch=global_batch,
        rank_batch=global_batch * replica_ranks // ranks,
    )


def _replica_ranks(cell: Cell, facts: StrategyFacts, ranks: int) -> int:
    wanted = facts.needs["replica_ranks"]
    if isinstance(wanted, str) and wanted != "all":
        wanted = cell.options[wanted] or "all"
    return ranks if wanted == "all" else int(wanted)


def demand(cell: Cell, site: Site) -> tuple[str, int, int]:
    """The GPUs or cores for a cell: (their name, needed per host, present per host)."""
    devices = Topology.parse(cell.topology).devices_per_node
    if cell.device == "cuda":
        return "GPUs", devices, site.cuda_devices
    return "cores", devices * cell.cores_per_device, site.cores


def is_oversubscribed(cell: Cell, site: Site) -> bool:
    """Whether the ranks on a host must share its cores or GPUs."""
    _, needed, present = demand(cell, site)
    return needed > present
