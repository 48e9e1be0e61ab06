"""Rules for cells that cannot run on this site: software or hardware is missing.

Each rule returns the reason for the table, or None if the cell obeys it.
"""

from __future__ import annotations

from rankbench.matrix.catalog import SCRIPT
from rankbench.matrix.hosts import why_too_few
from rankbench.matrix.memory import why_too_large
from rankbench.matrix.question import Question
from rankbench.matrix.shape import demand, is_oversubscribed
from rankbench.schedulers import SCHEDULERS


def _place(q: Question) -> str | None:
    return q.no_place


def _packages(q: Question) -> str | None:
    of_model = q.catalog.models[q.cell.model]["packages"]
    for package in (*q.facts.needs["packages"], *of_model):
        if reason := q.software.packages[package]:
            return reason
    return None


def _imports(q: Question) -> str | None:
    """What a file of the user's own imports; an image may have other packages."""
    if q.image is not None:
        return None
    facts = {
        q.cell.model: q.catalog.models[q.cell.model],
        q.cell.data: q.catalog.data[q.cell.data],
        q.cell.strategy: q.facts.needs,
    }
    for name, known in facts.items():
        for missing in known.get("missing", ()):
            return f"{name} imports {missing}, which is not installed here"
    return None


def _backend(q: Question) -> str | None:
    backend = q.cell.backend
    runtime = q.facts.needs["runtime"]
    # Rankbench does not know whether a script joins by torch or by Horovod.
    runtimes = ("process_group", "horovod") if runtime == SCRIPT else (runtime,)
    reasons = [q.software.backends[one][backend] for one in runtimes]
    if all(reasons):
        return reasons[0]
    if backend == "nccl" and q.cell.device != "cuda":
        return "nccl carries CUDA tensors only; the cell runs on cpu"
    if backend == "nccl" and is_oversubscribed(q.cell, q.site):
        return "nccl refuses two ranks on one GPU"
    return None


def _launcher(q: Question) -> str | None:
    name, needs = q.cell.launcher, q.catalog.launchers[q.cell.launcher]
    strategy, own = q.cell.strategy, q.facts.needs["launchers"]
    if (wanted := needs["scheduler"]) and q.site.scheduler != wanted:
        return f"{name} is a part of {wanted}; this site has none (scheduler: {wanted})"
    if own and name not in own:
        return f"{strategy} is started by {' or '.join(own)}, not by {name}"
    if q.facts.needs["runtime"] not in needs["runtimes"]:
        return f"{name} starts other programs than {strategy}"
    if q.cell.backend not in needs["backends"]:
        return f"{name} cannot start ranks that meet over {q.cell.backend}"
    method = q.cell.init_method
    if "env" not in needs["init_methods"] and method == "env":
        return f"{name} does not know its hosts beforehand: init_method: file"
    apart = SCHEDULERS[q.site.scheduler].lists_hosts and not q.site.shared
    if method == "file" and apart and q.topology.nodes > 1:
        return "init_method file needs hosts that share files (shared: true)"
    if method not in needs["init_methods"]:
        return f"init_method {method} needs the manual launcher; {name} has its own"
    if needs["program"]:
        return q.software.programs[needs["program"]]
    return None


def _hosts(q: Question) -> str | None:
    if q.topology.nodes > q.site.nodes:
        return (
            f"{q.topology} needs {q.topology.nodes} hosts; this site has {q.site.nodes}"
        )
    scheduler = SCHEDULERS[q.site.scheduler]
    if q.topology.nodes > 1 and not scheduler.has_hosts:
        return (
            f"{q.topology} needs several hosts, and this site is one machine "
            "(scheduler: slurm or ssh in the site file)"
        )
    if scheduler.lists_hosts and not q.cell.oversubscribe:
        return why_too_few(q.site.hosts, q.topology.nodes, q.topology.devices_per_node)
    return None


def _devices(q: Question) -> str | None:
    if q.cell.device == "cuda" and not q.site.cuda_devices:
        return "the cell asks for CUDA devices; this machine has none"
    if is_oversubscribed(q.cell, q.site) and not q.cell.oversubscribe:
        what, needed, present = demand(q.cell, q.site)
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


def _compiler(q: Question) -> str | None:
    return q.software.programs["c++"] if q.cell.compile else None


RULES = (
    _place,
    _packages,
    _imports,
    _backend,
    _launcher,
    _hosts,
    _devices,
    why_too_large,
    _compiler,
)
