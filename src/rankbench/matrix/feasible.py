"""What a cell means in processes, and why it cannot run on a site: pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rankbench.cell import Cell, Shape, Topology
from rankbench.matrix.catalog import Catalog, StrategyFacts
from rankbench.matrix.schema import fits
from rankbench.matrix.site import Site


def shape_of(cell: Cell, facts: StrategyFacts) -> Shape:
    """Processes, devices and samples of a cell."""
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


@dataclass(frozen=True, slots=True)
class _Question:
    cell: Cell
    facts: StrategyFacts
    shape: Shape
    site: Site
    catalog: Catalog

    @property
    def topology(self) -> Topology:
        return Topology.parse(self.cell.topology)


def find_obstacle(cell: Cell, site: Site, catalog: Catalog) -> str | None:
    """Why the cell cannot run on the site, or None.

    The first reason counts: what the strategy is, then what the machine has.
    """
    facts = catalog.strategies[cell.strategy]
    question = _Question(cell, facts, shape_of(cell, facts), site, catalog)
    for ask in _OBSTACLES:
        reason = ask(question)
        if reason:
            return reason
    return None


def marks_of(cell: Cell, site: Site, catalog: Catalog) -> list[str]:
    """Marks that are known before the cell runs."""
    facts = catalog.strategies[cell.strategy]
    marks = []
    normalises = catalog.models[cell.model]["batch_statistics"]
    lossy = any(cell.options[o] in values for o, values in facts.approximate.items())
    splits = facts.needs["splits_batch"]
    if isinstance(splits, str):
        splits = cell.options[splits] > 1
    if lossy or (splits and normalises):
        marks.append("approximate")
    if cell.device == "cpu" and facts.needs["logical_on_cpu"]:
        marks.append("functional")
    if _oversubscribed(cell, site):
        marks.append("oversubscribed")
    return marks


def _backend_of_strategy(q: _Question) -> str | None:
    allowed = q.facts.needs["backends"] or [q.facts.needs["own_backend"]]
    if q.cell.backend not in allowed:
        return f"{q.cell.strategy} runs over {', '.join(allowed)}"
    if q.cell.device == "cuda" and q.cell.backend in q.facts.needs["cpu_backends"]:
        return f"{q.cell.backend} cannot carry what {q.cell.strategy} sends from GPUs"
    return None


def _devices_of_strategy(q: _Question) -> str | None:
    name, needs, topology = q.cell.strategy, q.facts.needs, q.topology
    if q.cell.device not in needs["device"]:
        kinds = " or ".join(needs["device"]).upper()
        count = f"{needs['min_devices']} " if needs["min_devices"] > 1 else ""
        has = (
            f"this machine has {q.site.cuda_devices}" if kinds == "CUDA" else "not cuda"
        )
        return f"{name} needs {count}{kinds} devices; {has}"
    if needs["max_nodes"] and topology.nodes > needs["max_nodes"]:
        return f"{name} runs on {needs['max_nodes']} host, {topology} has more"
    if topology.devices < needs["min_devices"]:
        return f"{name} needs {needs['min_devices']} devices, {topology} has fewer"
    most = needs["max_cuda_devices"]
    if most and q.cell.device == "cuda" and topology.devices > most:
        return f"{name} uses {most} GPU, {topology} has more"
    return None


def _options(q: _Question) -> str | None:
    for together in q.facts.needs["excluded"]:
        if all(q.cell.options[name] == value for name, value in together.items()):
            said = " and ".join(f"{name} {value}" for name, value in together.items())
            return f"{q.cell.strategy} has no {said} together"
    return None


def _ranks_of_replica(q: _Question) -> str | None:
    ranks, replica = q.shape.ranks, q.shape.replica_ranks
    if ranks % replica:
        option = q.facts.needs["replica_ranks"]
        return _does_not_divide(q, option, replica)
    group = q.facts.needs["group_ranks"]
    if group and ranks % (q.cell.options[group] or ranks):
        return _does_not_divide(q, group, q.cell.options[group])
    fact = q.facts.needs["divides"]
    if not fact:
        return None
    count = q.catalog.models[q.cell.model][fact]
    if not count:
        return f"{q.cell.strategy} shares {fact} out to ranks; {q.cell.model} has none"
    if count % replica:
        return f"{replica} ranks cannot share the {count} {fact} of {q.cell.model}"
    return None


def _does_not_divide(q: _Question, option: str, value: int) -> str:
    return f"{option} {value} does not divide the {q.shape.ranks} ranks of {q.topology}"


def _conditions(q: _Question) -> str | None:
    said = {**q.cell.to_dict(), **q.cell.options}
    for condition in q.facts.conditions:
        if fits(said, condition["if"]) and not fits(said, condition["then"]):
            return str(condition["else"])
    return None


def _launcher(q: _Question) -> str | None:
    name, needs = q.cell.launcher, q.catalog.launchers[q.cell.launcher]
    strategy, own = q.cell.strategy, q.facts.needs["launchers"]
    if own and name not in own:
        return f"{strategy} is started by {' or '.join(own)}, not by {name}"
    if q.facts.needs["runtime"] not in needs["runtimes"]:
        return f"{name} starts other programs than {strategy}"
    if q.cell.backend not in needs["backends"]:
        return f"{name} cannot start ranks that meet over {q.cell.backend}"
    method = q.cell.init_method
    if method not in needs["init_methods"]:
        return f"init_method {method} needs the manual launcher; {name} has its own"
    if needs["program"]:
        return q.site.programs[needs["program"]]
    return None


def _packages(q: _Question) -> str | None:
    for package in q.facts.needs["packages"]:
        if reason := q.site.packages[package]:
            return reason
    return None


def _hosts_of_site(q: _Question) -> str | None:
    if q.topology.nodes > q.site.nodes:
        return (
            f"{q.topology} needs {q.topology.nodes} hosts; this site has {q.site.nodes}"
        )
    return None


def _devices_of_site(q: _Question) -> str | None:
    if q.cell.device == "cuda" and not q.site.cuda_devices:
        return "the cell asks for CUDA devices; this machine has none"
    if _oversubscribed(q.cell, q.site) and not q.cell.oversubscribe:
        what, needed, present = _demand(q.cell, q.site)
        return (
            f"{q.topology} needs {needed} {what} on each host; this site has {present} "
            "(oversubscribe: true shares them, and marks the row)"
        )
    if q.cell.device == "cuda" and q.shape.devices_per_rank > q.site.cuda_devices:
        return (
            f"one process of {q.cell.strategy} drives {q.shape.devices_per_rank} GPUs; "
            f"this site has {q.site.cuda_devices} on a host"
        )
    return None


def _backend_of_site(q: _Question) -> str | None:
    backend = q.cell.backend
    if reason := q.site.backends[q.facts.needs["runtime"]][backend]:
        return reason
    if backend == "nccl" and q.cell.device != "cuda":
        return "nccl carries CUDA tensors only; the cell runs on cpu"
    if backend == "nccl" and _oversubscribed(q.cell, q.site):
        return "nccl refuses two ranks on one GPU"
    return None


def _model_and_data(q: _Question) -> str | None:
    data, needs = q.catalog.data[q.cell.data], q.catalog.models[q.cell.model]
    size = q.cell.image_size or data["image_size"]
    channels = q.cell.channels or data["channels"]
    if size < needs["min_image_size"]:
        return (
            f"{q.cell.model} needs images of {needs['min_image_size']} pixels or more, "
            f"not {size}"
        )
    if needs["channels"] and channels not in needs["channels"]:
        return f"{q.cell.model} takes {needs['channels']} channels, not {channels}"
    return None


def _batch(q: _Question) -> str | None:
    parts = max(q.shape.ranks // q.shape.replica_ranks, q.shape.replicas)
    if q.shape.global_batch % parts:
        return f"batch_size {q.cell.batch_size} (strong) does not split over {parts}"
    option = q.facts.needs["multiple_of"]
    if option and q.shape.rank_batch % q.cell.options[option]:
        return (
            f"{q.shape.rank_batch} samples do not split into "
            f"{q.cell.options[option]} {option}"
        )
    samples = q.catalog.data[q.cell.data]["train"]
    if q.shape.global_batch > samples:
        return (
            f"one step takes {q.shape.global_batch} samples, "
            f"{q.cell.data} has {samples} to train on"
        )
    return None


def _schedule(q: _Question) -> str | None:
    name = q.cell.options.get("schedule")
    needs = q.facts.needs["schedules"].get(name)
    if needs is None:
        return None
    since = needs["torch"].get(q.cell.backend)
    if since and _version(q.site.torch) < _version(since):
        return (
            f"schedule {name} hangs over {q.cell.backend} before torch {since}; "
            f"this is {q.site.torch}"
        )
    count, ranks = q.cell.options["microbatches"], q.shape.replica_ranks
    rounds = max(1, count // ranks)
    if needs["microbatches"] == "one_per_rank" and count < ranks:
        return f"schedule {name} needs {ranks} microbatches for {ranks} ranks"
    if needs["microbatches"] == "equal_rounds" and count % rounds:
        return (
            f"schedule {name} cannot send {count} microbatches through {ranks} ranks "
            f"in {rounds} equal rounds"
        )
    return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _precision(q: _Question) -> str | None:
    if q.cell.precision == "tf32" and q.cell.device != "cuda":
        return "tf32 is an arithmetic of NVIDIA GPUs; the cell runs on cpu"
    if q.cell.precision not in (can := q.facts.needs["precisions"]):
        return f"{q.cell.strategy} trains in {', '.join(can)}, not {q.cell.precision}"
    return None


def _compile(q: _Question) -> str | None:
    if not q.cell.compile:
        return None
    if not q.facts.needs["compiles"]:
        return f"{q.cell.strategy} takes the model apart: there is no whole to compile"
    return q.site.programs["c++"]


def _gpudirect(q: _Question) -> str | None:
    if q.cell.gpudirect == "auto":
        return None
    if q.cell.backend not in ("nccl", "mpi"):
        return f"gpudirect is of nccl and mpi; the cell has {q.cell.backend}"
    if q.cell.device != "cuda":
        return "gpudirect is of GPUs; the cell runs on cpu"
    return None


_OBSTACLES: tuple[Callable[[_Question], str | None], ...] = (
    _backend_of_strategy,
    _gpudirect,
    _devices_of_strategy,
    _options,
    _ranks_of_replica,
    _conditions,
    _packages,
    _backend_of_site,
    _launcher,
    _hosts_of_site,
    _devices_of_site,
    _model_and_data,
    _batch,
    _schedule,
    _precision,
    _compile,
)


def _demand(cell: Cell, site: Site) -> tuple[str, int, int]:
    """(what, how many a host must have, how many it has)."""
    devices = Topology.parse(cell.topology).devices_per_node
    if cell.device == "cuda":
        return "GPUs", devices, site.cuda_devices
    return "cores", devices * cell.cores_per_device, site.cores


def _oversubscribed(cell: Cell, site: Site) -> bool:
    _, needed, present = _demand(cell, site)
    return needed > present
