"""One side of a comparison: the launches of each cell, and the machine they ran on.

It is read from results, or from a stored baseline, which is small enough for git.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankbench.record import Layout, Record, read_json, write_json
from rankbench.results.numbers.measures import measure
from rankbench.results.numbers.network import find_network
from rankbench.results.read.rows import Row, load
from rankbench.results.read.sources import open_results

BASELINE_VERSION = 1

# Keys of a host in a record that are not properties of the machine.
_PASSING = ("load_1min",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a side.

    Attributes:
        hash: identity of the cell, with all its options.
        status: one of `rankbench.record.STATUSES`.
        reason: None exactly if the status is ``ok``.
        throughput: samples/s of each launch; empty unless the status is ``ok``.
    """

    hash: str
    status: str
    reason: str | None
    throughput: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs that are compared.

    Attributes:
        name: the path that the user gave.
        experiment: its name.
        facts: key -> all its values: of hosts, software, images and code.
        cells: by id, in the order of the plan.
    """

    name: str
    experiment: str
    facts: Mapping[str, tuple[str, ...]]
    cells: Mapping[str, Cell]


def read_side(path: Path) -> Side:
    """Read results, or a stored baseline.

    Raises:
        ValueError: the path leads to neither, or a file is damaged.
    """
    if path.suffix == ".json" and path.is_file():
        return _read_baseline(path)
    with open_results(path) as directory:
        results = load(Layout(directory))
        records = [launch.record for row in results.rows for launch in row.launches]
        return Side(
            name=str(path),
            experiment=results.experiment,
            facts=_collect_facts(records),
            cells={row.id: _measure(row) for row in results.rows},
        )


def save_baseline(side: Side, path: Path) -> None:
    """Write a side as a file that `read_side` reads."""
    stored = asdict(side)
    del stored["name"]
    write_json(path, {"baseline": BASELINE_VERSION, **stored})


def _measure(row: Row) -> Cell:
    return Cell(
        hash=row.cell.hash(),
        status=row.status,
        reason=row.reason,
        throughput=tuple(measure(launch).throughput for launch in row.launches),
    )


def _collect_facts(records: Iterable[Record]) -> dict[str, tuple[str, ...]]:
    """All values of each fact of hosts, software, image and code."""
    found: dict[str, set[str]] = {}
    for record in records:
        for host in record["hosts"]:
            for key, value in host.items():
                if key not in _PASSING:
                    found.setdefault(_HOST.get(key, key), set()).add(_show(value))
        for key, value in record["software"].items():
            found.setdefault(key, set()).add(_show(value))
        image, code = record.get("image") or {}, record.get("code") or {}
        if network := find_network(record):
            found.setdefault("network", set()).add(network)
        found.setdefault("image", set()).add(_show(image.get("name")))
        found.setdefault("image sha256", set()).add(_show(image.get("sha256")))
        found.setdefault("code of ranks", set()).add(_show(code.get("rank")))
    return {key: tuple(sorted(values)) for key, values in found.items()}


_HOST = {"memory_gib": "memory (GiB)", "gpus": "GPUs", "nics": "network cards"}


def _show(value: Any) -> str:
    """``none``, ``4``, ``4 x NVIDIA H200 139.8 9.0 132``."""
    if isinstance(value, dict):
        return " ".join(_show(one) for one in value.values() if one is not None)
    if isinstance(value, list):
        names = [_show(one) for one in value]
        counted = {name: names.count(name) for name in names}
        texts = [name if n == 1 else f"{n} x {name}" for name, n in counted.items()]
        return ", ".join(texts) or "none"
    return "none" if value is None else str(value)


def _read_baseline(path: Path) -> Side:
    stored = read_json(path)
    version = stored.get("baseline") if isinstance(stored, dict) else None
    if version != BASELINE_VERSION:
        raise ValueError(
            f"{path} is no baseline of version {BASELINE_VERSION}: "
            "`rankbench compare RESULTS --save-baseline FILE` writes one"
        )
    try:
        cells = {
            str(name): Cell(**{**cell, "throughput": tuple(cell["throughput"])})
            for name, cell in stored["cells"].items()
        }
        for name, cell in cells.items():
            if not all(_is_rate(value) for value in cell.throughput):
                raise ValueError(f"throughput of {name}")
        facts = {str(key): tuple(values) for key, values in stored["facts"].items()}
        experiment = str(stored["experiment"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error
    return Side(name=str(path), experiment=experiment, facts=facts, cells=cells)


def _is_rate(value: object) -> bool:
    return isinstance(value, float | int) and 0 < value < math.inf
