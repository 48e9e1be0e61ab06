"""Decides whether a cell can run on a site, and which marks its row will have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from rankbench.cell import Cell, Shape, is_lossy
from rankbench.matrix import obstacles
from rankbench.matrix.candidate import Candidate
from rankbench.matrix.declarations import SCRIPT
from rankbench.record import OVERSUBSCRIBED
from rankbench.schedulers import SCHEDULERS


def find_obstacle(candidate: Candidate, *, anywhere: bool = False) -> str | None:
    """The reason why the cell cannot run on the site; None if it can.

    Only the first reason is given. Limits of the strategy come before those of the
    site.

    Args:
        candidate: the cell.
        anywhere: whether limits of the site do not count.
    """
    rules = obstacles.RULES if anywhere else (*obstacles.RULES, *RULES)
    reasons = chain.from_iterable(rule(candidate) for rule in rules)
    return next(filter(None, reasons), None)


def marks_of(candidate: Candidate) -> list[str]:
    """Marks that are known before the cell runs."""
    cell, facts = candidate.cell, candidate.facts
    marks = []
    lossy = is_lossy(cell.options, facts["approximate"], facts["options"])
    splits = facts["needs"]["splits_batch"]
    if isinstance(splits, str):
        splits = cell.options[splits] > 1
    if lossy or (splits and candidate.model["batch_statistics"]):
        marks.append("approximate")
    if cell.device == "cpu" and facts["needs"]["logical_on_cpu"]:
        marks.append("functional")
    if cell.precision in facts["needs"]["other_arithmetic"]:
        marks.append("other-arithmetic")
    if candidate.model["emulated"]:
        marks.append("emulated")
    if facts["on_meta"] and not candidate.model["on_meta"]:
        marks.append("built-whole")
    if candidate.is_oversubscribed:
        marks.append(OVERSUBSCRIBED)
    if "LD_PRELOAD" in {**candidate.site["env"], **cell.env}:
        marks.append("preload")
    return marks


def _software(c: Candidate) -> Iterator[str | None]:
    """The image, packages, and what a file of the user's own imports."""
    yield c.no_place
    of_precision = ["torchao"] if c.cell.precision.startswith("fp8") else []
    for package in (*c.needs["packages"], *c.model["packages"], *of_precision):
        yield c.software["packages"][package]
    # An image may have other packages than this machine.
    facts = {c.cell.model: c.model, c.cell.data: c.data, c.cell.strategy: c.needs}
    for name, known in facts.items() if c.image is None else ():
        for missing in known.get("missing", ()):
            yield f"{name} imports {missing}, which is not installed here"


def _backend(c: Candidate) -> Iterator[str | None]:
    backend = c.cell.backend
    runtime = c.needs["runtime"]
    # Rankbench does not know whether a script joins by torch or by Horovod.
    runtimes = ("process_group", "horovod") if runtime == SCRIPT else (runtime,)
    reasons = [c.software["backends"][name][backend] for name in runtimes]
    if all(reasons):
        yield reasons[0]
    if runtime == "horovod" and c.cell.device == "cuda":
        yield c.software["horovod_no_cuda"]
    if backend == "nccl" and c.cell.device != "cuda":
        yield "nccl carries CUDA tensors only; the cell runs on cpu"
    if backend == "nccl" and c.is_oversubscribed:
        yield "nccl refuses two ranks on one GPU"


def _launcher(c: Candidate) -> Iterator[str | None]:
    name, needs = c.cell.launcher, c.catalog.launchers[c.cell.launcher]
    strategy, own = c.cell.strategy, c.needs["launchers"]
    if (wanted := needs["scheduler"]) and c.site["scheduler"] != wanted:
        yield f"{name} is a part of {wanted}; this site has none (scheduler: {wanted})"
    if own and name not in own:
        yield f"{strategy} is started by {' or '.join(own)}, not by {name}"
    if c.needs["runtime"] not in needs["runtimes"]:
        yield f"{name} starts other programs than {strategy}"
    if c.cell.backend not in needs["backends"]:
        yield f"{name} cannot start ranks that meet over {c.cell.backend}"
    method = c.cell.init_method
    if "env" not in needs["init_methods"] and method == "env":
        yield f"{name} does not know its hosts beforehand: init_method: file"
    apart = SCHEDULERS[c.site["scheduler"]].lists_hosts and not c.site["shared"]
    if method == "file" and apart and c.cell.size.nodes > 1:
        yield "init_method file needs hosts that share files (shared: true)"
    if method not in needs["init_methods"]:
        yield f"init_method {method} needs the manual launcher; {name} has its own"
    if needs["program"]:
        yield c.software["programs"][needs["program"]]


def _hosts(c: Candidate) -> Iterator[str | None]:
    topology, size = c.cell.topology, c.cell.size
    if size.nodes > c.site["nodes"]:
        yield f"{topology} needs {size.nodes} hosts; this site has {c.site['nodes']}"
    scheduler = SCHEDULERS[c.site["scheduler"]]
    if size.nodes > 1 and not scheduler.has_hosts:
        yield (
            f"{topology} needs several hosts, and this site is one machine "
            "(scheduler: slurm or ssh in the site file)"
        )
    devices, hosts = size.devices_per_node, c.site["hosts"][: size.nodes]
    small = [host for host in hosts if host["devices"] < devices]
    if scheduler.lists_hosts and not c.cell.oversubscribe and small:
        listed = ", ".join(f"{host['name']} has {host['devices']}" for host in small)
        yield (
            f"{topology} needs {devices} devices on each host; {listed} "
            "(hosts of the experiment chooses others)"
        )


# The first whose tensor cores multiply numbers of 8 bits.
FLOAT8_CAPABILITY = 8.9


def _devices(c: Candidate) -> Iterator[str | None]:
    if c.cell.device == "cuda" and not c.site["cuda_devices"]:
        yield "the cell asks for CUDA devices; this machine has none"
    if c.cell.device == "cuda" and c.image:
        yield c.software["no_cuda"]
    has = c.site["compute_capability"]
    low = c.cell.precision.startswith("fp8")
    if low and has is not None and has < FLOAT8_CAPABILITY:
        yield (
            f"fp8 needs GPUs of compute capability {FLOAT8_CAPABILITY}, such as H100; "
            f"one here has {has}"
        )
    if c.is_oversubscribed and not c.cell.oversubscribe:
        what, needed, present = c.demand
        yield (
            f"{c.cell.topology} needs {needed} {what} on each host; this site has "
            f"{present} (oversubscribe: true shares them, and marks the row)"
        )
    if c.cell.device == "cuda" and c.shape.devices_per_rank > c.site["cuda_devices"]:
        yield (
            f"one process of {c.cell.strategy} drives {c.shape.devices_per_rank} GPUs; "
            f"this site has {c.site['cuda_devices']} on a host"
        )


def _last(c: Candidate) -> Iterator[str | None]:
    if c.needs["runtime"] == "rpc" and not c.site["exclusive"]:
        yield (
            "torch.distributed.rpc runs what anybody sends who reaches its port, such "
            "as another user of the host: exclusive: true in site.yaml says that there "
            "is none"
        )
    yield why_too_large(c)
    if c.cell.compile:
        yield c.software["programs"]["c++"]


GIB = 2**30
# The share of the memory above which a cell that fits is `tight`: peaks on GPUs were up
# to a fifth larger than estimates.
TIGHT = 0.85
# Memory on a GPU that is no tensor: the CUDA context, buffers of NCCL, and what torch's
# allocator loses to fragments. It is an allowance; see docs/gpus.md for its source.
ALLOWANCE_GIB = {"cuda": 1.5, "cpu": 0.0}


def judge_memory(
    found: Mapping[str, Any], cell: Cell, shape: Shape, memory: float | None
) -> Mapping[str, Any]:
    """What the rank that needs most holds, and whether that fits.

    Args:
        found: what `rankbench.rank.purposes.estimate` found of some of its ranks.
        memory: GiB of a GPU, or without GPUs of a host; None: not known.

    Returns:
        What was found of that rank; gib: what a GPU needs, with the allowance, or a
        host; and verdict: `fits`, `tight`, `no`, or None if the memory is not known. If
        there is no estimate, what was given: unknown, the reason.
    """
    if "unknown" in found:
        return found
    worst = max(found["ranks"], key=lambda rank: max(rank["setup"], rank["step"]))
    # Ranks of a host share its memory.
    count = shape.ranks_per_node if cell.device == "cpu" else 1
    needed = count * max(worst["setup"], worst["step"]) / GIB
    needed += ALLOWANCE_GIB[cell.device]
    kept = ("rank", "setup", "step", "parts", "sent")
    verdict = None
    if memory is not None:
        tight = "tight" if needed <= memory else "no"
        verdict = "fits" if needed <= TIGHT * memory else tight
    return {**{key: worst[key] for key in kept}, "gib": needed, "verdict": verdict}


def peak_of_step(found: Mapping[str, Any] | None) -> float | None:
    """MiB of a step's tensors on the rank that needs most; None: not known."""
    ranks = (found or {}).get("ranks", ())
    return max((rank["step"] / 2**20 for rank in ranks), default=None)


def describe_peaks(found: Mapping[str, Any]) -> str:
    """The peaks of a rank, as `judge_memory` returns them, in words."""
    unit, size = ("GiB", GIB) if found["step"] >= GIB / 10 else ("MiB", 2**20)
    parts = ", ".join(
        f"{kind} {part / size:.3g}" for kind, part in found["parts"].items() if part
    )
    return (
        f"rank {found['rank']}: set-up {found['setup'] / size:.3g} {unit}, step "
        f"{found['step'] / size:.3g} {unit} ({parts})"
    )


def why_too_large(c: Candidate) -> str | None:
    """Why the model does not fit on the devices of this site, if that was estimated."""
    has, found = c.site["device_memory_gib"], c.estimate
    if has is None or found is None or "unknown" in found or found.get("measured"):
        return None
    judged = judge_memory(found, c.cell, c.shape, has)
    if judged["verdict"] != "no":
        return None
    where = "host" if c.cell.device == "cpu" else "GPU"
    return (
        f"{c.cell.strategy} needs {judged['gib']:.3g} GiB on each {where} for "
        f"{c.cell.model}; there are {has:.3g} (estimate of {describe_peaks(judged)}): "
        "a smaller batch_size, checkpointing, or fsdp or mesh on more devices take less"
    )


RULES = (_software, _backend, _launcher, _hosts, _devices, _last)
