"""One side of a comparison: the launches of each cell, and the machine they ran on.

It is read from results or from the file of a run, which is small enough for git: a
baseline of `rankbench compare`, or a run in the store of `rankbench history`.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rankbench.cell import spell_value
from rankbench.record import Layout, Record, round_of
from rankbench.results.numbers.fit import Fit
from rankbench.results.numbers.network import find_network
from rankbench.results.numbers.summary import measure_row
from rankbench.results.read.archive import open_results
from rankbench.results.read.launches import read_launches
from rankbench.results.read.rows import Row, load
from rankbench.results.read.schema import check, read_checked

_VERSION = 1  # of the file of a run

_UNITS = ("samples", "tokens")

# Facts of the code that starts launches, which measures nothing.
_LAUNCHING = ("commit", "rankbench")

Facts = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLaunches:
    """The launches of one cell of a side.

    Attributes:
        hash: identity of the cell, with all its options; empty for a published number.
        status: one of `rankbench.record.STATUSES`.
        reason: None exactly if the status is ``ok``.
        marks: of its row.
        facts: of hosts, software, image and code of its launches: key -> all values.
        throughput: of each launch, `unit` per second; empty unless the status is
            ``ok``.
        started: when each of these launches began.
        rounds: what identifies the round of each launch; empty if not known.
        unit: what throughput counts: samples or tokens.
    """

    hash: str
    status: str
    reason: str | None
    marks: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)
    throughput: tuple[float, ...]
    started: tuple[str, ...] = ()
    rounds: tuple[tuple[int, int] | None, ...] = ()
    unit: str = "samples"

    @property
    def is_fixed(self) -> bool:
        """Whether it is one published number, without launches."""
        return not self.hash and len(self.throughput) == 1

    @property
    def by_round(self) -> list[tuple[Hashable, float]]:
        """Round and throughput; a launch outside of rounds has a key of its own."""
        rounds = self.rounds or (None,) * len(self.throughput)
        return [
            (place or object(), value)
            for place, value in zip(rounds, self.throughput, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Side:
    """The launches of one run of an experiment, or of a part of its cells.

    Attributes:
        name: the path that the user gave; in a store, the digest of its file.
        experiment: its name.
        cells: by id, in the order of the plan.
        begun, ended: of its first and its last launch, as ISO times; empty if that is
            not known.
    """

    name: str
    experiment: str
    cells: Mapping[str, CellLaunches]
    begun: str = ""
    ended: str = ""

    @property
    def facts(self) -> Facts:
        """Key -> all its values: of hosts, software, images and code of ranks."""
        found: dict[str, set[str]] = {}
        for cell in self.cells.values():
            for key, values in cell.facts.items():
                if key not in _LAUNCHING:
                    found.setdefault(key, set()).update(values)
        return {key: tuple(sorted(values)) for key, values in found.items()}

    @cached_property
    def disturbed(self) -> Mapping[str, Sequence[int]]:
        """Cell -> places, from 0, of launches that the run itself leaves out."""
        found = {n: cell.by_round for n, cell in self.cells.items() if cell.throughput}
        return Fit(found).disturbed if found else {}


def read_side(path: Path) -> Side:
    """Read results, or the file of a run.

    Raises:
        ValueError: the path leads to neither, or a file is damaged.
    """
    if path.suffix == ".json" and path.is_file():
        return read_run(path)
    if path.suffix == ".csv":
        raise ValueError(
            f"{path}: a table of published numbers can only be the BASELINE of "
            "`rankbench accept`"
        )
    with open_results(path) as directory:
        layout = Layout(directory)
        results = load(layout)
        rows = {row.id: row for row in results.rows}
        return make_side(str(path), results.experiment, layout, rows)


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
    try:
        # Spreadsheets begin a file with a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: is not CSV in UTF-8: {error}") from error
    header = [name.strip() for name in rows[0]] if rows else []
    if lacking := {"cell", "throughput"} - set(header):
        named = ", ".join(sorted(lacking))
        raise ValueError(
            f"{path}: no column {named}: a table of published numbers "
            "has the columns cell and throughput, with commas between them"
        )
    cells: dict[str, CellLaunches] = {}
    for number, values in enumerate(rows[1:], 2):
        place = f"{path}, row {number}"
        if not values:
            continue
        if len(values) != len(header):
            raise ValueError(
                f"{place}: {len(values)} fields: the first row has {len(header)}"
            )
        row = dict(zip(header, (value.strip() for value in values), strict=True))
        if row["cell"] in cells or not row["cell"]:
            raise ValueError(f"{place}: cell: {row['cell']!r} is empty or there twice")
        cells[row["cell"]] = _read_published(row, place)
    return Side(name=str(path), experiment=path.stem, cells=cells)


# Not all that `float` reads: neither 1_7 nor nan.
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def _read_published(row: Mapping[str, str], place: str) -> CellLaunches:
    status = row.get("status") or "ok"
    if not row["throughput"] and status != "ok":
        reason = row.get("reason") or None
        return CellLaunches(hash="", status=status, reason=reason, throughput=())
    is_number = _NUMBER.fullmatch(row["throughput"])
    value = float(row["throughput"]) if is_number else math.nan
    if not 0 < value < math.inf:
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
        key: a field of a cell, such as `image`, an option, or a variable.
        values: of the key, for OLD and for NEW; `unset` for cells without it.

    Raises:
        ValueError: no cell has one of the values; a file is damaged.
    """
    with open_results(path) as directory:
        layout = Layout(directory)
        results = load(layout)
        alike: list[dict[str, Row]] = []
        for value in values:
            rows = [row for row in results.rows if _value_of(row, key) == value]
            if not rows:
                known = sorted({str(_value_of(row, key)) for row in results.rows})
                raise ValueError(
                    f"{path}: no cell has {key}={value} (there are {', '.join(known)})"
                )
            alike.append({_without(row, key): row for row in rows})
        names = {rest: row.id for rest, row in alike[1].items()}
        sides = []
        for value, own in zip(values, alike, strict=True):
            named = {names.get(rest, row.id): row for rest, row in own.items()}
            side = make_side(
                f"{path}, {key}={value}", results.experiment, layout, named
            )
            cells = {
                name: replace(side.cells[name], hash=rest)
                for name, rest in zip(named, own, strict=True)
            }
            sides.append(replace(side, cells=cells))
        return sides[0], sides[1]


def _value_of(row: Row, key: str) -> str:
    fields = row.cell.fields
    return spell_value(fields[key]) if key in fields else "unset"


def _without(row: Row, key: str) -> str:
    """The identity of a cell but for one field, option or variable."""
    kept = {name: value for name, value in row.cell.fields.items() if name != key}
    return json.dumps(kept, sort_keys=True)


def make_side(
    name: str, experiment: str, layout: Layout, rows: Mapping[str, Row]
) -> Side:
    """The launches of these rows, each under the id that it is given."""
    cells = {}
    times: list[str] = []
    for cell_id, planned in rows.items():
        row, measures = measure_row(planned)
        records = [launch.record for launch in row.launches]
        tried = records
        if not records and row.attempt is not None:
            attempt = layout.attempt(row.id, row.attempt)
            # Its reason names damaged records.
            launches = read_launches(attempt, damaged=[])
            tried = [launch.record for launch in launches]
        for record in tried:
            times += [record[key] for key in ("started", "ended") if record.get(key)]
        cells[cell_id] = CellLaunches(
            hash=row.cell.hash(),
            status=row.status,
            reason=row.reason,
            marks=tuple(row.marks),
            facts=_collect_facts(records),
            throughput=tuple(launch.throughput for launch in measures),
            started=tuple(str(record.get("started")) for record in records),
            rounds=tuple(map(round_of, records)),
            unit=row.cell.unit,
        )
    begun, ended = (min(times), max(times)) if times else ("", "")
    return Side(name=name, experiment=experiment, cells=cells, begun=begun, ended=ended)


def encode_run(side: Side) -> bytes:
    """The file of a run: the same launches give the same bytes.

    Raises:
        ValueError: no launch has ended; a record is damaged.
    """
    if not side.begun:
        raise ValueError(
            f"{side.name}: no launch has ended, so there is nothing to keep"
        )
    facts: list[Facts] = []
    cells = {}
    for name, cell in side.cells.items():
        if cell.facts not in facts:
            facts.append(cell.facts)
        cells[name] = {**asdict(cell), "facts": facts.index(cell.facts)}
    run = {
        "schema": _VERSION,
        "experiment": side.experiment,
        "begun": side.begun,
        "ended": side.ended,
        "facts": facts,
        "cells": cells,
    }
    check(run, "history", Path(side.name))
    text = json.dumps(run, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{text}\n".encode()


def read_run(path: Path) -> Side:
    """Read the file of a run.

    Raises:
        ValueError: it is damaged or of another version; the message names it.
    """
    try:
        run = read_checked(path, "history", version=_VERSION)
    except ValueError as error:
        raise ValueError(
            f"{error} (`rankbench compare RESULTS --save-baseline FILE` writes a run)"
        ) from None
    cells = {}
    for name, cell in run["cells"].items():
        if cell["facts"] >= len(run["facts"]):
            raise ValueError(f"{path} is damaged: {name}: facts not there")
        if not len(cell["started"]) == len(cell["throughput"]) == len(cell["rounds"]):
            raise ValueError(f"{path} is damaged: {name}: launches without a time")
        values = {
            **cell,
            "facts": run["facts"][cell["facts"]],
            "rounds": [place and tuple(place) for place in cell["rounds"]],
        }
        lists = ("marks", "throughput", "started", "rounds")
        values |= {key: tuple(values[key]) for key in lists}
        cells[name] = CellLaunches(**values)
    return Side(
        name=str(path),
        experiment=run["experiment"],
        cells=cells,
        begun=run["begun"],
        ended=run["ended"],
    )


def _collect_facts(records: Iterable[Record]) -> dict[str, tuple[str, ...]]:
    """All values of each fact of hosts, software, image and code."""
    found: dict[str, set[str]] = {}

    def add(key: str, value: Any) -> None:
        found.setdefault(key, set()).add(_show(value))

    for record in records:
        for host in record["hosts"]:
            for key, value in host.items():
                add(_HOST.get(key, key), value)
        for key, value in record["software"].items():
            add(key, value)
        image, code = record.get("image") or {}, record.get("code") or {}
        if network := find_network(record):
            add("network", network)
        add("image", image.get("name"))
        add("image sha256", image.get("sha256"))
        add("code of ranks", code.get("rank"))
        if code.get("commit"):
            changes = " and changes" if code.get("dirty") else ""
            add("commit", f"{code['commit']}{changes}")
        if code.get("version"):
            add("rankbench", code["version"])
    return {key: tuple(sorted(values)) for key, values in found.items()}


def find_differing(
    old: Facts, new: Facts
) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """Facts that differ; none if one side has no measurement."""
    if not old or not new:
        return {}
    keys = dict.fromkeys((*new, *old))
    sides = {key: (old.get(key, ()), new.get(key, ())) for key in keys}
    return {key: (a, b) for key, (a, b) in sides.items() if tuple(a) != tuple(b)}


_HOST = {"memory_gib": "memory (GiB)", "gpus": "GPUs", "nics": "network cards"}


def _show(value: Any) -> str:
    """``none``, ``4``, ``4 x NVIDIA H200 139.8 9.0 132``."""
    if isinstance(value, dict):
        return " ".join(_show(each) for each in value.values() if each is not None)
    if isinstance(value, list):
        names = [_show(each) for each in value]
        counted = {name: names.count(name) for name in names}
        texts = [name if n == 1 else f"{n} x {name}" for name, n in counted.items()]
        return ", ".join(texts) or "none"
    return "none" if value is None else str(value)
