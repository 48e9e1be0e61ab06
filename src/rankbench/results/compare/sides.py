"""A side of a comparison: the launches of each cell, and the machine they ran on.

It is read from results, from a baseline, which is a file small enough for git, or from
a table of published numbers.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rankbench.cell import Cell, spell_value
from rankbench.record import Layout, Record, round_of
from rankbench.results.numbers.hardware import find_network
from rankbench.results.numbers.result_set import Summary, read
from rankbench.results.numbers.statistics import geometric_mean
from rankbench.results.read.archive import open_results
from rankbench.results.read.records import check, read_checked
from rankbench.schema import did_you_mean

_VERSION = 2  # of a baseline

_UNITS = ("samples/s", "tokens/s")

_HASH = 12  # digits that are kept of a hash, as git shows them

# Facts of the code that starts launches, which measures nothing.
_LAUNCHING = ("commit", "rankbench")

Facts = Mapping[str, Sequence[str]]

# Key -> its values on either side.
Differences = Mapping[str, tuple[Sequence[str], Sequence[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLaunches:
    """The summary of one cell of a side, and its launches that count.

    Attributes:
        hash: identity of the cell, with all its options; empty for a published number.
        status: one of `rankbench.record.STATUSES`.
        reason: None exactly if the status is ``ok``.
        facts: of hosts, software, image and code of its launches: key -> all values.
        launches: how many there are, with those that its table leaves out.
        throughput: of each launch that counts, `unit` per second; empty unless the
            status is ``ok``.
        started: when each of these launches began; empty for a published number.
        rounds: what identifies the round of each; empty unless both sides are of one
            experiment.
        unit: what throughput counts: samples or tokens.
    """

    hash: str
    status: str
    reason: str | None
    facts: Facts = field(default_factory=dict)
    launches: int
    throughput: Sequence[float]
    started: Sequence[str] = ()
    rounds: Sequence[tuple[int, int] | None] = ()
    unit: str = "samples"

    @property
    def is_published(self) -> bool:
        """Whether it is one published number, without launches."""
        return bool(self.throughput) and not self.started

    @property
    def identities(self) -> set[tuple[str, float]]:
        """What tells its launches from all others: begin and throughput."""
        return set(zip(self.started, self.throughput, strict=False))

    @property
    def mean(self) -> float | None:
        """The number of its table; None without one."""
        return geometric_mean(self.throughput).value if self.throughput else None

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
        name: the path that the user gave.
        experiment: its name.
        cells: by id, in the order of the plan.
        begun: when the first of its launches began, as an ISO time; empty if that is
            not known.
    """

    name: str
    experiment: str
    cells: Mapping[str, CellLaunches]
    begun: str = ""

    @property
    def facts(self) -> Facts:
        """Key -> all its values: of hosts, software, images and code of ranks."""
        found: dict[str, set[str]] = {}
        for cell in self.cells.values():
            for key, values in cell.facts.items():
                if key not in _LAUNCHING:
                    found.setdefault(key, set()).update(values)
        return {key: tuple(sorted(values)) for key, values in found.items()}


def read_side(path: Path) -> Side:
    """Read a result folder, a bundle, a baseline, or a CSV file of published numbers.

    Raises:
        ValueError: the path leads to none of them, or a file is damaged.
    """
    if path.is_file() and path.suffix in (".json", ".csv"):
        return _read_baseline(path) if path.suffix == ".json" else _read_table(path)
    with open_results(path) as root:
        results = read(Layout(root))
        rows = {row.id: row for row in results.rows}
        return _make_side(str(path), results.experiment, rows)


def read_sides(path: Path, key: str, values: Sequence[str]) -> list[Side]:
    """Read two sides of one experiment: its cells with either value of a key.

    Cells that are otherwise the same are compared. They have the id of the second side.

    Args:
        path: leads to results.
        key: a field of a cell, such as `image`, an option, or a variable.
        values: of the key, for each side; `unset` for cells without it.

    Raises:
        ValueError: no cell has one of the values; a file is damaged.
    """
    with open_results(path) as root:
        results = read(Layout(root))
        _check_key(path, key, [row.cell for row in results.rows])
        alike: list[dict[str, Summary]] = [{} for _ in values]
        for row in results.rows:
            if (value := _value_of(row.cell, key)) in values:
                alike[values.index(value)][_without(row.cell, key)] = row
        names = {rest: row.id for rest, row in alike[-1].items()}
        sides = []
        for value, own in zip(values, alike, strict=True):
            if not own:
                known = sorted({_value_of(row.cell, key) for row in results.rows})
                raise ValueError(
                    f"{path}: no cell has {key}={value} (there are {', '.join(known)})"
                )
            named = {names.get(rest, row.id): row for rest, row in own.items()}
            said = f"{path}, {key}={value}"
            sides.append(_make_side(said, results.experiment, named, [*own]))
        return sides


def _check_key(path: Path, key: str, cells: Sequence[Cell]) -> None:
    values: dict[str, set[str]] = {}
    for name in {name for cell in cells for name in cell.fields}:
        values[name] = {_value_of(cell, name) for cell in cells}
    if key not in values:
        differing = sorted(name for name, own in values.items() if len(own) > 1)
        raise ValueError(
            f"--between {key}: no cell of {path} has this key"
            f"{did_you_mean(key, values)} (its cells differ in "
            f"{', '.join(differing) or 'nothing'})"
        )


def _value_of(cell: Cell, key: str) -> str:
    fields = cell.fields
    return str(spell_value(fields[key])) if key in fields else "unset"


def _without(cell: Cell, key: str) -> str:
    """The identity of a cell but for one field, option or variable."""
    kept = {name: value for name, value in cell.fields.items() if name != key}
    return json.dumps(kept, sort_keys=True)


def _make_side(
    name: str,
    experiment: str,
    rows: Mapping[str, Summary],
    alike: Sequence[str] = (),
) -> Side:
    """The launches of these rows, each under the id that it is given.

    Args:
        alike: what identifies each, if the sides are of one experiment.
    """
    cells = {}
    hashes = alike or [row.cell.hash() for row in rows.values()]
    for (cell_id, row), own in zip(rows.items(), hashes, strict=True):
        records = row.counted["record"].tolist()
        cells[cell_id] = CellLaunches(
            hash=own,
            status=row.status,
            reason=row.reason,
            facts=_collect_facts(records),
            launches=len(row.launches),
            throughput=tuple(row.counted["throughput"].tolist()),
            started=tuple(str(record["started"]) for record in records),
            rounds=[round_of(record) for record in records] if alike else (),
            unit=row.cell.unit,
        )
    times = (time for cell in cells.values() for time in cell.started)
    begun = min(times, default="")
    return Side(name=name, experiment=experiment, cells=cells, begun=begun)


def encode_baseline(side: Side) -> bytes:
    """The file of a side: the same launches give the same bytes.

    Raises:
        ValueError: there is no number; a record is damaged.
    """
    if not side.begun:
        raise ValueError(f"{side.name}: no cell has a number, so nothing is saved")
    kept = {"schema": _VERSION, **asdict(side)}
    del kept["name"]
    for cell in kept["cells"].values():
        del cell["rounds"]
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), allow_nan=False)
    check(json.loads(text), "baseline", Path(side.name))
    return f"{text}\n".encode()


def _read_baseline(path: Path) -> Side:
    try:
        kept = read_checked(path, "baseline", version=_VERSION)
    except ValueError as error:
        raise ValueError(f"{error} (`--save-baseline` writes such a file)") from None
    del kept["schema"]
    cells = {name: CellLaunches(**cell) for name, cell in kept.pop("cells").items()}
    for name, cell in cells.items():
        if not len(cell.started) == len(cell.throughput) <= cell.launches:
            raise ValueError(f"{path} is damaged: {name}: launches without a time")
    return Side(name=str(path), cells=cells, **kept)


def _read_table(path: Path) -> Side:
    """Read a CSV file with the columns `cell` and `throughput`, such as a `table.csv`.

    A column `unit` says what its numbers are: ``samples/s``, as without such a column,
    or ``tokens/s``.
    """
    try:
        # Spreadsheets begin a file with a byte order mark.
        text = io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")
        header, *rows = [*csv.reader(text, strict=True)] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: is not CSV in UTF-8: {error}") from error
    if lacking := {"cell", "throughput"} - {name.strip() for name in header}:
        named = ", ".join(sorted(lacking))
        raise ValueError(
            f"{path}: no column {named}: a table of published numbers "
            "has the columns cell and throughput, with commas between them"
        )
    cells: dict[str, CellLaunches] = {}
    for number, values in enumerate(rows, 2):
        place = f"{path}, row {number}"
        if not values:
            continue
        if len(values) != len(header):
            raise ValueError(
                f"{place}: {len(values)} fields: the first row has {len(header)}"
            )
        pairs = zip(header, values, strict=True)
        row = {name.strip(): own for name, value in pairs if (own := value.strip())}
        if row.get("cell") in (None, *cells):
            raise ValueError(f"{place}: cell: there is none, or it is there twice")
        cells[row["cell"]] = _read_published(row, place)
    return Side(name=str(path), experiment=path.stem, cells=cells)


# Not all that `float` reads: neither 1_7 nor nan.
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def _read_published(row: Mapping[str, str], place: str) -> CellLaunches:
    """A published number.

    Args:
        row: column -> its value, if it is not empty.
    """
    said, unit = row.get("throughput", ""), row.get("unit", "samples/s")
    status = "ok" if said else row.get("status", "ok")
    rates = (float(said),) if _NUMBER.fullmatch(said) else ()
    if status == "ok" and not (rates and 0 < rates[0] < math.inf):
        raise ValueError(
            f"{place}: throughput: expected samples/s or tokens/s, not {said!r:.40}"
        )
    if unit not in _UNITS:
        raise ValueError(
            f"{place}: unit: expected samples/s or tokens/s, not {unit!r:.40}"
        )
    return CellLaunches(
        hash="",
        status=status,
        reason=None if rates else row.get("reason"),
        launches=len(rates),
        throughput=rates,
        unit=unit.removesuffix("/s"),
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
        image, code = record["image"] or {}, record["code"]
        if network := find_network(record):
            add("network", network)
        add("image", image.get("name"))
        add("image sha256", (image.get("sha256") or "none")[:_HASH])
        add("code of ranks", (code.get("rank") or "none")[:_HASH])
        if code.get("commit"):
            changes = " and changes" if code.get("dirty") else ""
            add("commit", f"{code['commit'][:_HASH]}{changes}")
        if code.get("version"):
            add("rankbench", code["version"])
    return {key: tuple(sorted(values)) for key, values in found.items()}


_HOST = {"memory_gib": "memory (GiB)", "gpus": "GPUs", "nics": "network cards"}


def _show(value: Any) -> str:
    """``none``, ``4``, ``4 x NVIDIA H200 139.8 9.0 132``."""
    if isinstance(value, dict):
        return " ".join(_show(each) for each in value.values() if each is not None)
    if isinstance(value, list):
        counted = Counter(map(_show, value)).items()
        texts = [name if n == 1 else f"{n} x {name}" for name, n in counted]
        return ", ".join(texts) or "none"
    return "none" if value is None else str(value)


def find_differing(old: Facts, new: Facts) -> Differences:
    """Facts that differ; none if one side has no measurement."""
    if not old or not new:
        return {}
    keys = dict.fromkeys((*new, *old))
    sides = {key: (old.get(key, ()), new.get(key, ())) for key in keys}
    return {key: (a, b) for key, (a, b) in sides.items() if tuple(a) != tuple(b)}
