"""One side of a comparison: the launches of each cell, and the machine they ran on.

It is read from results, or from a stored baseline, which is small enough for git.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rankbench.record import Layout, Record, read_json, write_json
from rankbench.results.numbers.measures import measure
from rankbench.results.numbers.network import find_network
from rankbench.results.read.archive import open_results
from rankbench.results.read.rows import Results, Row, load
from rankbench.stopping import round_of

BASELINE_VERSION = 1

_UNITS = ("samples", "tokens")

# Keys of a host in a record that are not properties of the machine.
_PASSING = ("load_1min",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLaunches:
    """The launches of one cell of a side.

    Attributes:
        hash: identity of the cell, with all its options.
        status: one of `rankbench.record.STATUSES`.
        reason: None exactly if the status is ``ok``.
        throughput: of each launch, `unit` per second; empty unless the status is
            ``ok``.
        rounds: what identifies the round of each launch; empty if not known.
        unit: what throughput counts: samples or tokens.
    """

    hash: str
    status: str
    reason: str | None
    throughput: tuple[float, ...]
    rounds: tuple[tuple[int, int] | None, ...] = ()
    unit: str = "samples"

    @property
    def is_fixed(self) -> bool:
        """Whether it is one published number, without launches."""
        return not self.hash and len(self.throughput) == 1

    @property
    def by_round(self) -> dict[Any, float]:
        """Throughput by round; a launch outside of rounds has a key of its own."""
        rounds = self.rounds or (None,) * len(self.throughput)
        return {
            place or object(): value
            for place, value in zip(rounds, self.throughput, strict=True)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs that are compared.

    Attributes:
        name: the path that the user gave.
        experiment: its name.
        facts: key -> all its values: of hosts, software, images and code.
        cells: by id, in the order of the plan.
        span: when the first launch began and the last one ended, as ISO times; None if
            that is not known.
    """

    name: str
    experiment: str
    facts: Mapping[str, tuple[str, ...]]
    cells: Mapping[str, CellLaunches]
    span: tuple[str, str] | None = None


def read_side(path: Path) -> Side:
    """Read results, or a stored baseline.

    Raises:
        ValueError: the path leads to neither, or a file is damaged.
    """
    if path.suffix == ".json" and path.is_file():
        return _read_baseline(path)
    with open_results(path) as directory:
        results = load(Layout(directory))
        cells = {row.id: _measure(row) for row in results.rows}
        return _make_side(str(path), results, results.rows, cells)


def read_reference(path: Path) -> Side:
    """Read what `read_side` reads, or a table of published numbers.

    Such a table is a CSV file with the columns `cell` and `throughput`, one number for
    each cell, such as a `table.csv`. A column `unit` says what it is: ``samples/s``, as
    without such a column, or ``tokens/s``.

    Raises:
        ValueError: the path leads to none of them, or a file is damaged.
    """
    if path.suffix != ".csv" or not path.is_file():
        return read_side(path)
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        lacking = {"cell", "throughput"} - set(rows.fieldnames or ())
        if lacking:
            named = ", ".join(sorted(lacking))
            raise ValueError(
                f"{path}: no column {named}: a table of published numbers "
                "has the columns cell and throughput"
            )
        cells = {
            row["cell"]: _read_published(row, f"{path}, row {number}")
            for number, row in enumerate(rows, 2)
            if row["throughput"]
        }
    return Side(name=str(path), experiment=path.stem, facts={}, cells=cells)


def _read_published(row: Mapping[str, str], place: str) -> CellLaunches:
    try:
        value = float(row["throughput"])
    except ValueError:
        value = math.nan
    if not _is_rate(value):
        raise ValueError(
            f"{place}: throughput: expected samples/s or tokens/s, not "
            f"{row['throughput']!r:.40}"
        )
    unit = (row.get("unit") or "samples/s").removesuffix("/s")
    if unit not in _UNITS:
        raise ValueError(
            f"{place}: unit: expected samples/s or tokens/s, not {row['unit']!r}"
        )
    return CellLaunches(
        hash="", status="ok", reason=None, throughput=(value,), unit=unit
    )


def read_sides(path: Path, key: str, values: tuple[str, str]) -> tuple[Side, Side]:
    """Read two sides of one experiment: its cells with either value of a key.

    Cells that are otherwise the same are compared. They have the id of the second side.

    Args:
        path: leads to results.
        key: a field of a cell, such as `image`, or an option of its strategy.
        values: of the key, for OLD and for NEW.

    Raises:
        ValueError: no cell has one of the values; a file is damaged.
    """
    with open_results(path) as directory:
        results = load(Layout(directory))
        found: list[dict[str, Row]] = []
        for value in values:
            rows = [row for row in results.rows if _value_of(row, key) == value]
            if not rows:
                known = sorted({str(_value_of(row, key)) for row in results.rows})
                raise ValueError(
                    f"{path}: no cell has {key}={value} (there are {', '.join(known)})"
                )
            found.append({_without(row, key): row for row in rows})
        names = {rest: row.id for rest, row in found[1].items()}
        sides = [
            _make_side(
                f"{path}, {key}={value}",
                results,
                list(rows.values()),
                {
                    names.get(rest, row.id): replace(_measure(row), hash=rest)
                    for rest, row in rows.items()
                },
            )
            for value, rows in zip(values, found, strict=True)
        ]
        return sides[0], sides[1]


def _value_of(row: Row, key: str) -> str | None:
    fields = {**row.cell.to_dict(), **row.cell.model_options, **row.cell.options}
    return str(fields[key]) if key in fields and key not in _OPTIONS else None


def _without(row: Row, key: str) -> str:
    """The identity of a cell but for one field or option."""
    fields = row.cell.to_dict()
    for held in _OPTIONS:
        fields[held] = {name: v for name, v in fields[held].items() if name != key}
    kept = {name: value for name, value in fields.items() if name != key}
    return json.dumps(kept, sort_keys=True)


def _make_side(
    name: str, results: Results, rows: Iterable[Row], cells: Mapping[str, CellLaunches]
) -> Side:
    records = [launch.record for row in rows for launch in row.launches]
    times = [(one.get("started"), one.get("ended")) for one in records]
    known = [(begun, ended) for begun, ended in times if begun and ended]
    begun, ended = zip(*known, strict=True) if known else ((), ())
    return Side(
        name=name,
        experiment=results.experiment,
        facts=collect_facts(records),
        cells=cells,
        span=(min(begun), max(ended)) if known else None,
    )


def save_baseline(side: Side, path: Path) -> None:
    """Write a side as a file that `read_side` reads."""
    stored = asdict(side)
    del stored["name"]
    write_json(path, {"baseline": BASELINE_VERSION, **stored})


def _measure(row: Row) -> CellLaunches:
    return CellLaunches(
        hash=row.cell.hash(),
        status=row.status,
        reason=row.reason,
        throughput=tuple(
            measure(launch, row.cell.units_per_sample).throughput
            for launch in row.launches
        ),
        rounds=tuple(round_of(launch.record) for launch in row.launches),
        unit=row.cell.unit,
    )


def collect_facts(records: Iterable[Record]) -> dict[str, tuple[str, ...]]:
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


def find_differing(
    old: Mapping[str, Sequence[str]], new: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """Facts that differ; none if one side has no measurement."""
    if not old or not new:
        return {}
    keys = dict.fromkeys((*new, *old))
    sides = {key: (old.get(key, ()), new.get(key, ())) for key in keys}
    return {key: (a, b) for key, (a, b) in sides.items() if tuple(a) != tuple(b)}


# Fields of a cell that hold options.
_OPTIONS = ("options", "model_options")

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
        cells = {}
        for name, cell in stored["cells"].items():
            rounds = [
                place and (place[0], place[1]) for place in cell.get("rounds") or ()
            ]
            rates = {"throughput": tuple(cell["throughput"]), "rounds": tuple(rounds)}
            cells[str(name)] = CellLaunches(**{**cell, **rates})
        for name, cell in cells.items():
            if not all(_is_rate(value) for value in cell.throughput):
                raise ValueError(f"throughput of {name}")
            if cell.unit not in _UNITS:
                raise ValueError(f"unit of {name}")
        facts = {str(key): tuple(values) for key, values in stored["facts"].items()}
        experiment = str(stored["experiment"])
        begun, ended = map(str, stored.get("span") or ("", ""))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error
    return Side(
        name=str(path),
        experiment=experiment,
        facts=facts,
        cells=cells,
        span=(begun, ended) if begun and ended else None,
    )


def _is_rate(value: object) -> bool:
    return isinstance(value, float | int) and 0 < value < math.inf
