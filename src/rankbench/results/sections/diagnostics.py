"""What explains a number that surprises, and what nobody reads first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from rankbench.cell import REFERENCE
from rankbench.record import Record
from rankbench.results.elements.section import (
    Content,
    Section,
    make_grid,
    read_docstring,
    show_value,
)
from rankbench.results.elements.text import Note, figures
from rankbench.results.numbers.launches import EXCHANGE, peak_memory
from rankbench.results.numbers.result_set import ResultSet, Summary
from rankbench.results.numbers.statistics import Estimate, mean, spread

# Of more ranks or devices than this, the least and the most are shown.
_LISTED = 8

# With more classes than this, accuracy by class is in the records alone.
_MOST_CLASSES = 20

# Phase -> the timer of DDP that is nearest to it, less another one.
_TIMERS = {
    "forward": ("forward_ms",),
    "backward": ("backward_ms",),
    EXCHANGE: ("communication_ms", "overlap_ms"),
}

# Heading -> key in the record.
_SOFTWARE = {
    "Python": "python",
    "PyTorch": "torch",
    "torchvision": "torchvision",
    "Horovod": "horovod",
    "DeepSpeed": "deepspeed",
    "NumPy": "numpy",
    "mpi4py": "mpi4py",
    "CUDA": "cuda",
    "cuDNN": "cudnn",
    "NCCL": "nccl",
    "MPI": "mpi",
    "oneCCL": "oneccl",
    "C library": "libc",
}


Fields = dict[str, Any]


def make(found: ResultSet) -> Content | None:
    """What explains a number that surprises: every launch, how launches and steps
    scatter, how training went, how busy ranks were, and what the machine is. Fields of
    the CSV have 4 digits.
    """
    every = {
        title: [(s.id, fields) for s in found.measured for fields in find(s)]
        for title, find in _TABLES.items()
    }
    tables = {title: rows for title, rows in every.items() if rows}
    # Launches stand in the order in which they began.
    tables.get("Launches", []).sort(key=lambda row: row[1]["started"] or "")
    if not tables:
        return None
    grids = [
        make_grid(title, [{"cell": cell, **fields} for cell, fields in rows])
        for title, rows in tables.items()
    ]
    if environment := _find_environment(found.measured):
        # A row for each item, of no cell.
        tables["Environment"] = [("", {k: v}) for k, v in environment.items()]
        lines = [{"item": k, "value": v} for k, v in environment.items()]
        grids.append(make_grid("Environment", lines))
    # Not a mapping for each field: of ten thousand launches, these take 30 MB.
    rows = pd.DataFrame(_to_rows(tables), columns=list(SECTION.columns))
    shown = [grid.title for grid in grids]
    told: dict[str, Callable[..., Any]] = {**_TABLES, "Environment": _find_environment}
    reading = [Note(k, read_docstring(v)) for k, v in told.items() if k in shown]
    details = _collect_details(found.rows)
    return Content(rows=rows, grids=grids, notes=[*details, *reading])


def _to_rows(
    tables: Mapping[str, Sequence[tuple[str, Fields]]],
) -> Iterator[tuple[str, int, str, str, str]]:
    for title, rows in tables.items():
        for number, (cell, fields) in enumerate(rows, start=1):
            for column, value in fields.items():
                yield title, number, cell, column, _to_csv(value)


def _to_csv(value: object) -> str:
    """Text with 4 digits of each number, whatever its interval."""
    if isinstance(value, Estimate):
        ends = ", ".join(map(figures, value.interval or ()))
        return f"{figures(value.value)} [{ends}]" if ends else figures(value.value)
    return str(show_value(value))


def _list_launches(summary: Summary) -> Iterator[Fields]:
    """If the numbers of a cell rise or fall from its first launch to its last, the
    machine changed meanwhile. p95: 95 % of the steps are shorter. Steady: step times
    settled at a level before the end of the timed window.
    """
    shown = {
        "launch": "launch",
        "hosts": "hosts",
        f"throughput ({summary.cell.unit}/s)": "throughput",
        "step (ms)": "step_ms",
        "p95 (ms)": "step_p95_ms",
        "memory (MiB)": "memory_mib",
        "warm-up (steps)": "warmup",
        "steady": "steady",
    }
    columns = [summary.launches[name].tolist() for name in shown.values()]
    for place, values in enumerate(zip(*columns, strict=True)):
        own = dict(zip(shown, values, strict=True))
        own["hosts"] = ",".join(own["hosts"])
        own["steady"] = "yes" if own["steady"] else "no"
        yield {
            "started": summary.records[place]["started"],
            "attempt": summary.attempt,
            **own,
            "disturbed": "yes" if place in summary.disturbed else None,
        }


def _describe_scatter(summary: Summary) -> Iterator[Fields]:
    """Interquartile range over the median. Between: of the throughput of launches. More
    launches show it, more steps do not. Within: of the steps of a launch, median over
    launches. Warm-up: the most steps that any launch leaves out.
    """
    names = ("throughput", "step_spread", "warmup", "steady")
    rates, spreads, warmups, steady = (summary.launches[n].to_numpy() for n in names)
    yield {
        "launches": len(rates),
        "between (%)": 100 * spread(rates) if len(rates) > 1 else None,
        "within (%)": 100 * float(np.median(spreads)),
        "warm-up (steps)": warmups.max(),
        "steady": f"{steady.sum()}/{len(rates)}",
    }


def _describe_training(summary: Summary) -> Iterator[Fields]:
    """Means over launches. An epoch lasts as long as its slowest rank; later epochs:
    all whole epochs but the first. Loss: at the first and the last timed step. Busiest
    expert: its tokens over an equal share, mean over blocks.
    """
    if summary.cell.script is not None:
        return  # Nobody knows its epochs.
    records, epochs = (summary.counted[n].tolist() for n in ("record", "epochs_s"))
    later = [mean(one[1:]).value for one in epochs if len(one) > 1]
    losses = [record["loss"] for record in records]
    accuracies = [record["accuracy"] for record in records]
    by_class = [one.get("per_class") or () for one in accuracies]
    classes = min(map(len, by_class))
    fields: dict[str, Sequence[float | None]] = {
        "first epoch (s)": [one[0] if one else None for one in epochs],
        "later epochs (s)": later if len(later) == len(records) else [],
        "first loss": [one.get("first") for one in losses],
        "last loss": [one.get("last") for one in losses],
        "accuracy": [one.get("overall") for one in accuracies],
        "busiest expert": [_busiest_expert(record["ranks"]) for record in records],
    }
    for number in range(classes if classes <= _MOST_CLASSES else 0):
        fields[f"class {number}"] = [one[number] for one in by_class]
    yield {
        heading: mean([value for value in values if value is not None])
        for heading, values in fields.items()
        if values and None not in values
    }


def _busiest_expert(ranks: Sequence[Record]) -> float | None:
    """Tokens of the expert that gets most over an equal share, mean over blocks."""
    found = (one["details"].get("routed") for one in ranks)
    routed = [pd.DataFrame(one) for one in found if one]
    if not routed:
        return None
    counts = pd.concat(routed).groupby(level=0).sum()  # experts x blocks
    return float((counts.max() / counts.mean()).mean())


def _describe_ranks(summary: Summary) -> Iterator[Fields]:
    """Means over launches. CPU: of one core, so that a rank with two busy threads has
    200 %. GPU: share of the time in which any kernel ran. A GPU that is idle while
    another is busy waits for it. Memory: peak of each rank, median.
    """
    records = summary.counted["record"].tolist()
    shares = {
        "CPU of each rank": _means(records, "ranks", "cpu_utilisation"),
        "GPU of each device": _means(records, "devices", "utilisation_mean"),
    }
    if summary.cell.num_workers:
        shares["its loaders"] = _means(records, "ranks", "loader_utilisation")
    by_rank = zip(*(record["ranks"] for record in records), strict=True)
    peaks = [
        float(np.median([peak_memory([one]) for one in ranks])) for ranks in by_rank
    ]
    yield {
        **{
            heading: _list(own, lambda share: f"{100 * share:.0f} %")
            for heading, own in shares.items()
            if not all(map(math.isnan, own))
        },
        "memory of each rank (MiB)": _list(peaks, figures),
    }


def _compare_timers(summary: Summary) -> Iterator[Fields]:
    """Milliseconds of a step, means over ranks and launches. Ours: over the timed
    window. DDP times its first 10 steps and then one in 100, warm-up included. Its
    forward ends with the model's output, ours with the loss. Its communication, less
    what overlaps with backward, begins with the first full bucket, ours with the last
    gradient.
    """
    ours = summary.counted["phase_ms"].tolist()
    ranks = [rank for one in summary.counted["record"] for rank in one["ranks"]]
    theirs = [rank["details"].get("ddp_timers") or {} for rank in ranks]
    for phase, (timer, *less) in _TIMERS.items():
        known = all(phase in own for own in ours)
        if known and all(own.keys() >= {timer, *less} for own in theirs):
            each = [own[timer] - sum(own[name] for name in less) for own in theirs]
            yield {
                "phase": phase,
                "ours (ms)": fmean(own[phase] for own in ours),
                "DDP's (ms)": fmean(each),
            }


def _means(records: Sequence[Record], members: str, name: str) -> list[float]:
    """Mean over launches of each rank or device; NaN if no launch recorded it."""
    launches = [[one.get(name) for one in r[members]] for r in records]
    known = [[v for v in own if v is not None] for own in zip_longest(*launches)]
    return [fmean(own) if own else math.nan for own in known]


def _list(values: Sequence[float], show: Callable[[float], str]) -> str:
    """``98 %, 3 %``; of many values the least and the most."""
    if len(values) <= _LISTED:
        return ", ".join("?" if math.isnan(value) else show(value) for value in values)
    return f"{show(np.nanmin(values))} to {show(np.nanmax(values))} of {len(values)}"


def _find_environment(measured: Sequence[Summary]) -> dict[str, str]:
    """Of all rows. Several values: hosts or rows differ; hardware then says how many
    hosts have it.

    Empty if no record names a host.
    """
    records = [record for s in measured for record in s.records]
    # If a host changed between launches, its latest state is shown.
    hosts = {one["host"]: one for record in records for one in record["hosts"]}
    if not hosts:
        return {}
    images = [record["image"] for record in records if record["image"]]
    named = _join(f"{one['name']} (sha256 {str(one['sha256'])[:12]})" for one in images)
    return {
        "servers": str(len(hosts)),
        **{
            item: _by_host([describe(host) or "none" for host in hosts.values()])
            for item, describe in _HOST.items()
        },
        **{
            item: _join(record["software"].get(key) for record in records)
            for item, key in _SOFTWARE.items()
        },
        "images": named if images else "none: native",
    }


# What is said of a host.
_HOST: dict[str, Callable[[Record], str | None]] = {
    "CPU": lambda host: f"{host['cpu']}, {host['cores']} cores",
    "memory": lambda host: f"{host['memory_gib']:.0f} GiB",
    "network cards": lambda host: _count(map(_describe_nic, host["nics"])),
    "GPUs": lambda host: _count(map(_describe_gpu, host["gpus"])),
    "links between GPUs": lambda host: ", ".join(host["gpu_links"]),
    "operating system": lambda host: host.get("os"),
    "kernel": lambda host: host.get("kernel"),
    "GPU driver": lambda host: host.get("gpu_driver"),
}


def _by_host(told: Sequence[str]) -> str:
    """The value of all hosts, or each value with the number of its hosts."""
    counts = {value: told.count(value) for value in told}
    if len(counts) == 1:
        return told[0]
    each = (f"{value} ({n} host{'s' * (n > 1)})" for value, n in counts.items())
    return "; ".join(each)


def _describe_nic(nic: Record) -> str:
    driver = f"driver {nic['driver']}" if nic.get("driver") else None
    speed = f"{figures(nic['gbit_s'])} Gbit/s" if nic.get("gbit_s") else None
    described = ", ".join(filter(None, [nic.get("model"), driver, speed]))
    return f"{nic['name']} ({described})" if described else str(nic["name"])


def _describe_gpu(gpu: Record) -> str:
    memory = gpu.get("memory_gib")
    return str(gpu["name"]) if memory is None else f"{gpu['name']}, {memory:.0f} GiB"


def _count(names: Iterable[str]) -> str:
    listed = list(names)
    return "; ".join(f"{listed.count(name)} x {name}" for name in dict.fromkeys(listed))


def _join(values: Iterable[Any]) -> str:
    """Each value once, in order of appearance, without missing ones."""
    found = dict.fromkeys(str(value) for value in values if value is not None)
    return "; ".join(found) or "none"


# --- notes ----------------------------------------------------------------------------


def _collect_details(summaries: Sequence[Summary]) -> list[Note]:
    """What else is known of rows: units, scripts, the gate, GPUDirect."""
    said = (
        f"{_name_units(summaries)} of all replicas per second of the slowest rank, "
        "over the timed window, from where step times have reached their last level."
    )
    rest = (*_of_scripts(summaries), *_of_gate(summaries), *_of_gpudirect(summaries))
    return [Note("throughput", said), *rest]


def _name_units(summaries: Sequence[Summary]) -> str:
    """What throughput counts: samples, tokens, or both in columns of their own."""
    cells = [s.cell for s in summaries if s.numbers]
    contexts = sorted({c.context for c in cells if c.context is not None})
    if not contexts:
        return "samples"
    named = " or ".join(f"{context:,}" for context in contexts)
    tokens = f"tokens (a sample is a sequence of {named} tokens)"
    return f"samples or {tokens}" if any(c.context is None for c in cells) else tokens


def _of_scripts(summaries: Sequence[Summary]) -> Iterator[Note]:
    scripts = [(s, s.cell.script) for s in summaries if s.cell.script is not None]
    if each := dict.fromkeys(script["samples_per_step"] for _, script in scripts):
        said = f"of a step over all ranks, as the experiment says: {', '.join(each)}."
        yield Note("samples", said)
    for s, _ in scripts:
        details = [record["ranks"][0]["details"] for record in s.records]
        if told := dict.fromkeys(map(_of_steps, filter(None, details))):
            yield Note("steps", f"of {s.id}: {'; or '.join(told)}.")


def _of_steps(details: Mapping[str, Any]) -> str:
    """What a rank of a script has counted."""
    by = f"by {details.get('optimizer', 'marks of the script')}"
    if not (counted := details.get("counted")):
        return by
    return (
        "{by}, inputs of {inputs} samples in the timed window, where the experiment "
        "says {planned}".format(by=by, **counted)
    )


def _of_gate(summaries: Sequence[Summary]) -> list[Note]:
    """How many rows were checked, and how far off the worst of them was."""
    rows = [s for s in summaries if s.records and s.cell.strategy != REFERENCE]
    gates = [gate for s in rows if (gate := s.records[0]["gate"])]
    if not gates:
        return []
    said = f"{len(gates)} of {_rows(len(rows))} compared with {REFERENCE}."
    distances: dict[str, list[float]] = {}
    for gate in (one for one in gates if one.get("tolerance")):
        kind, what = f"in {gate.get('dtype')}", "weights and loss"
        errors = ["weights", "loss"]
        if gate["lossy"]:
            kind, what, errors = "with a lossy option", "loss", ["loss"]
        text = f"{kind} (tolerance {gate['tolerance']:g}), {what}"
        distance = max(gate[f"{name}_error"] for name in errors)
        distances.setdefault(text, []).append(distance)
    for text, own in distances.items():
        said += f" {_rows(len(own))} {text} off by at most {max(own):.2g}."
    return [Note("gate", said)]


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"


def _of_gpudirect(summaries: Sequence[Summary]) -> list[Note]:
    """Rows that asked for GPUDirect, or for none, and what their logs say of it."""
    found = []
    for s in summaries:
        if s.cell.gpudirect == "auto" or not s.records:
            continue
        told = {
            library["gpudirect_rdma"]
            for record in s.records
            for seen in record["transport"].get("seen", [])
            for library in seen["libraries"].values()
            if library.get("gpudirect_rdma") is not None
        }
        asked = "on" if s.cell.gpudirect else "off"
        words = {True: "it was in effect", False: "it was not in effect"}
        said = [words[one] for one in (True, False) if one in told]
        unknown = "no log says whether it was in effect (backend_logs: true asks them)"
        says = "; on other ranks ".join(said) or unknown
        found.append(Note(s.id, f"gpudirect {asked}: {says}."))
    return found


# Title of a table -> what gives the rows of a cell: heading -> value; and says in its
# docstring how to read it.
_TABLES: dict[str, Callable[[Summary], Iterable[Fields]]] = {
    "Launches": _list_launches,
    "Scatter": _describe_scatter,
    "Training": _describe_training,
    "Ranks": _describe_ranks,
    "DDP's own timers": _compare_timers,
}

SECTION = Section(
    title="Diagnostics",
    order=90,
    make=make,
    columns={
        "table": str,
        "row": int,
        **dict.fromkeys(("cell", "column", "value"), str),
    },
)
