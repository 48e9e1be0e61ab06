"""The experimental setup as a table: hardware and software of every host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rankbench.record import Record
from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import figures
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.summary import Summary

COLUMNS = ("part", "item", "value")

# Heading in the table -> key in the record.
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

Line = tuple[str, str, str]


def make(found: ResultSet) -> Content | None:
    """A row for each item of hardware and software."""
    lines = find_environment(found.summaries)
    rows = [dict(zip(COLUMNS, line, strict=True)) for line in lines]
    return Content(rows=rows) if rows else None


def find_environment(summaries: Sequence[Summary]) -> list[Line]:
    """Part, item and value; empty where no row is ok."""
    records = [launch.record for s in summaries for launch in s.row.launches]
    # If a host changed between launches, its latest state is shown.
    hosts = {host["host"]: host for record in records for host in record["hosts"]}
    if not hosts:
        return []
    return [
        ("hardware", "servers", str(len(hosts))),
        *_of_hosts(list(hosts.values())),
        *_of_software(records, list(hosts.values())),
    ]


def _of_hosts(hosts: Sequence[Record]) -> list[Line]:
    asked = {
        "CPU": lambda host: f"{host['cpu']}, {host['cores']} cores",
        "memory": lambda host: f"{host['memory_gib']:.0f} GiB",
        "network cards": lambda host: _count(map(_nic, host.get("nics") or [])),
        "GPUs": lambda host: _count(_gpu(gpu) for gpu in host["gpus"]),
        "links between GPUs": lambda host: ", ".join(host.get("gpu_links") or []),
    }
    return [
        ("hardware", item, _by_host([describe(host) for host in hosts]))
        for item, describe in asked.items()
    ]


def _of_software(records: Sequence[Record], hosts: Sequence[Record]) -> list[Line]:
    lines = [
        ("software", "operating system", _by_host([host.get("os") for host in hosts])),
        ("software", "kernel", _by_host([host.get("kernel") for host in hosts])),
        (
            "software",
            "GPU driver",
            _by_host([host.get("gpu_driver") for host in hosts]),
        ),
    ]
    for item, key in _SOFTWARE.items():
        found = _distinct(record["software"].get(key) for record in records)
        lines.append(("software", item, "; ".join(found) or "none"))
    images = _distinct(
        f"{image['name']} (sha256 {image['sha256'][:12]})"
        for record in records
        if (image := record.get("image"))
    )
    lines.append(("software", "images", "; ".join(images) or "none: native"))
    return lines


def _by_host(values: Sequence[str | None]) -> str:
    """The value of all hosts, or each value with the number of its hosts."""
    told = [value or "none" for value in values]
    counts = {value: told.count(value) for value in told}
    if len(counts) == 1:
        return told[0]
    return "; ".join(
        f"{value} ({count} hosts)" if count > 1 else f"{value} (1 host)"
        for value, count in counts.items()
    )


def _nic(nic: Mapping[str, Any]) -> str:
    parts = [nic.get("model"), f"driver {nic['driver']}" if nic.get("driver") else None]
    if nic.get("gbit_s"):
        parts.append(f"{figures(nic['gbit_s'])} Gbit/s")
    described = ", ".join(part for part in parts if part)
    return f"{nic['name']} ({described})" if described else str(nic["name"])


def _gpu(gpu: Mapping[str, Any]) -> str:
    memory = gpu.get("memory_gib")
    return str(gpu["name"]) if memory is None else f"{gpu['name']}, {memory:.0f} GiB"


def _count(names: Iterable[str]) -> str:
    listed = list(names)
    return "; ".join(f"{listed.count(name)} x {name}" for name in dict.fromkeys(listed))


def _distinct(values: Iterable[Any]) -> list[str]:
    """Each value once, in order of appearance, without missing ones."""
    return list(dict.fromkeys(str(value) for value in values if value is not None))


SECTION = Section(
    name="environment",
    title="Environment",
    reading=(
        "Hardware and software of every host, from the records of all rows. Several "
        "values: hosts or rows differ. Hardware then says how many hosts have it."
    ),
    order=110,
    make=make,
    columns={name: (str, name) for name in COLUMNS},
)
