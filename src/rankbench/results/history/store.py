"""A store: a folder with one JSON file per run, named by the SHA-256 of its bytes.

A file has the launches of each cell of a run, and their environment. A store may lie in
git or on a disk that several hosts share. Files are only added, and each appears whole
or not at all, so any number of writers and readers need no lock.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankbench.record import Layout, Record, write_atomically
from rankbench.results.compare.sides import collect_facts
from rankbench.results.numbers.measures import measure
from rankbench.results.read.launches import read_launches
from rankbench.results.read.rows import Row, load
from rankbench.results.read.schema import check, read_checked

_VERSION = 1  # of the file of a run

_NAME = re.compile(r"[0-9a-f]{64}\.json")

ADDED, KNOWN, RESTORED = "added", "known", "restored"

Facts = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCell:
    """A cell in one run.

    Attributes:
        hash: identity of the cell, with all its options.
        workload: equal for cells that are alternatives.
        status: one of `rankbench.record.STATUSES`.
        reason: None exactly if the status is ``ok``.
        marks: of its row.
        facts: of hosts, software, image and code of its launches: key -> all values.
        started: when each launch began; empty unless the status is ``ok``.
        throughput: of the same launches, `unit` per second.
        unit: samples or tokens.
    """

    hash: str
    workload: str
    status: str
    reason: str | None
    marks: tuple[str, ...]
    facts: Facts
    started: tuple[str, ...]
    throughput: tuple[float, ...]
    unit: str = "samples"

    @property
    def center(self) -> float:
        """The median throughput of its launches."""
        return statistics.median(self.throughput)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One run of an experiment.

    Attributes:
        digest: SHA-256 of its file in a store.
        begun, ended: of its first and its last launch, as ISO times.
        cells: by id, in the order of the plan.
    """

    digest: str
    experiment: str
    begun: str
    ended: str
    cells: Mapping[str, StoredCell]


def read_results(directory: Path) -> dict[str, Any]:
    """What a store keeps of a result directory, as JSON.

    The same launches give the same value, whether they come from a result directory or
    from its bundle.

    Raises:
        ValueError: no launch has ended; a file is damaged.
    """
    layout = Layout(directory)
    results = load(layout)
    facts: list[dict[str, list[str]]] = []
    workloads: list[str] = []
    cells: dict[str, Any] = {}
    times: list[str] = []
    for row in results.rows:
        records = [launch.record for launch in row.launches]
        for record in records or _read_failed(layout, row):
            times += [record[key] for key in ("started", "ended") if record.get(key)]
        cells[row.id] = {
            "hash": row.cell.hash(),
            "workload": _place(row.cell.workload(), workloads),
            "status": row.status,
            "reason": row.reason,
            "marks": list(row.marks),
            "facts": _place(_find_facts(records), facts) if records else None,
            "started": [str(record.get("started")) for record in records],
            "throughput": [
                measure(launch, row.cell.units_per_sample).throughput
                for launch in row.launches
            ],
            **({} if row.cell.unit == "samples" else {"unit": row.cell.unit}),
        }
    if not times:
        raise ValueError(
            f"{directory}: no launch has ended, so there is nothing to keep"
        )
    run = {
        "schema": _VERSION,
        "experiment": results.experiment,
        "begun": min(times),
        "ended": max(times),
        "facts": facts,
        "workloads": workloads,
        "cells": cells,
    }
    check(run, "history", directory)
    return run


def _read_failed(layout: Layout, row: Row) -> list[Record]:
    """The records of the latest attempt of a row without a number."""
    if row.attempt is None:
        return []
    return [one.record for one in read_launches(layout.attempt(row.id, row.attempt))]


def _find_facts(records: Sequence[Record]) -> dict[str, list[str]]:
    """All values of each fact, and the code that started the launches."""
    found = {key: list(values) for key, values in collect_facts(records).items()}
    codes = [record.get("code") or {} for record in records]
    commits = {
        f"{code['commit']}{' and changes' if code.get('dirty') else ''}"
        for code in codes
        if code.get("commit")
    }
    versions = {str(code["version"]) for code in codes if code.get("version")}
    for key, values in (("commit", commits), ("rankbench", versions)):
        if values:
            found[key] = sorted(values)
    return found


def _place(value: Any, values: list[Any]) -> int:
    """The place of a value among few, to which it is added if it is new."""
    if value not in values:
        values.append(value)
    return values.index(value)


@dataclass(frozen=True, slots=True)
class Store:
    """The contents of a store.

    Attributes:
        runs: in order of the time of their first launch.
        damaged: a sentence about each file that is not used; it names the file.
    """

    folder: Path
    runs: Sequence[StoredRun]
    damaged: Sequence[str]


def add_run(folder: Path, run: Mapping[str, Any]) -> tuple[Path, str]:
    """Write a run into a store, which is made if there is none.

    Args:
        folder: the store.
        run: from `read_results`.

    Returns:
        The file, and whether it was `ADDED`, was `KNOWN` already, or was damaged and
        is now `RESTORED`.

    Raises:
        OSError: the file cannot be written.
    """
    # The same run gives the same bytes.
    text = json.dumps(run, sort_keys=True, separators=(",", ":"), allow_nan=False)
    data = f"{text}\n".encode()
    path = folder / f"{hashlib.sha256(data).hexdigest()}.json"
    found = path.exists()
    if found and path.read_bytes() == data:
        return path, KNOWN
    write_atomically(path, data)
    return path, RESTORED if found else ADDED


def read_store(folder: Path) -> Store:
    """Read all runs; damaged files are named and left out.

    Raises:
        ValueError: there is no store, or no run in it can be used.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is no store: `rankbench history add RESULTS --store {folder}` "
            "makes one"
        )
    runs, damaged = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            runs.append(_read_run(path))
        except (ValueError, OSError) as error:
            damaged.append(str(error))
    if not runs:
        said = "; ".join(damaged) or "it is empty: `rankbench history add` fills it"
        raise ValueError(f"{folder} has no run: {said}")
    runs.sort(key=lambda run: (run.begun, run.digest))
    return Store(folder, runs, damaged)


def _read_run(path: Path) -> StoredRun:
    """Read a file of a store.

    Raises:
        ValueError: it is damaged or of another version; the message names it.
    """
    if not _NAME.fullmatch(path.name):
        raise ValueError(f"{path} is no run: its name is no digest")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != path.stem:
        raise ValueError(
            f"{path} is damaged: its digest is {digest[:12]}...: adding the same "
            "results again restores it"
        )
    value = read_checked(path, "history", version=_VERSION)
    try:
        return decode(value, path.stem)
    except (IndexError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def decode(value: Mapping[str, Any], digest: str) -> StoredRun:
    """The run of a value that matches the schema.

    Raises:
        IndexError, ValueError: it contradicts itself.
    """
    cells = {name: _decode(cell, value) for name, cell in value["cells"].items()}
    return StoredRun(
        digest=digest,
        experiment=value["experiment"],
        begun=value["begun"],
        ended=value["ended"],
        cells=cells,
    )


def _decode(cell: Mapping[str, Any], run: Mapping[str, Any]) -> StoredCell:
    if len(cell["started"]) != len(cell["throughput"]):
        raise ValueError("launches without a time, or times without a launch")
    place = cell["facts"]
    return StoredCell(
        hash=cell["hash"],
        workload=run["workloads"][cell["workload"]],
        status=cell["status"],
        reason=cell["reason"],
        marks=tuple(cell["marks"]),
        facts={} if place is None else run["facts"][place],
        started=tuple(cell["started"]),
        throughput=tuple(cell["throughput"]),
        unit=cell.get("unit", "samples"),
    )
