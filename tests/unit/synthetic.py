"""A small result directory as the tests of the results room need it, without a rank."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

import factories
from pages import Words
from rankbench.cell import Cell, Topology
from rankbench.own_files import hash_files
from rankbench.plan import PLAN_VERSION
from rankbench.record import PROFILE, Layout
from rankbench.results.numbers.result_set import read
from rankbench.results.render.files import Document, write_results

CODE = "c0de" * 16
PHASES = ["load", "transfer", "forward", "backward", "communication", "update"]
_SHARES = dict(zip(PHASES, (0.06, 0.02, 0.27, 0.45, 0.12, 0.08), strict=True))
STEPS, WARMUP, BATCH = 8, 2, 64


def make_cell(strategy: str = "ddp", topology: str = "1x1", **changes: Any) -> Cell:
    """A cell of a few timed steps."""
    backend = "gloo" if strategy == "ddp" else "none"
    values: dict[str, Any] = {"strategy": strategy, "topology": topology}
    values |= {"backend": backend, "batch_size": BATCH, "launcher": "spawn"}
    values |= {"epochs": None, "steps": STEPS, "warmup": WARMUP, **changes}
    return factories.make_cell(**values)


def plan_cell(
    cell: Cell | str = "ddp",
    topology: str = "1x1",
    *,
    suffix: str = "",
    infeasible: str | None = None,
    marks: Sequence[str] = (),
    phases: Sequence[str] = PHASES,
    **changes: Any,
) -> dict[str, Any]:
    """An entry of the plan, and the phases of its launches.

    `suffix` is what the id says of other fields.
    """
    if isinstance(cell, str):
        cell = make_cell(cell, topology, **changes)
    parts = [cell.strategy, cell.backend, cell.topology, cell.model, cell.data]
    return {
        "id": ".".join(parts) + suffix,
        "hash": cell.hash(),
        "cell": cell.to_dict(),
        "shape": _shape(cell.topology),
        "phases": list(phases),
        "infeasible": infeasible,
        "marks": list(marks),
        "image": None,
    }


def write_plan(
    root: Path,
    cells: Sequence[dict[str, Any]],
    *,
    name: str = "quickstart",
    launches: int = 6,
    study: dict[str, Any] | None = None,
    images: dict[str, Any] | None = None,
) -> Layout:
    layout = Layout(root)
    source = f"name: {name}\n".encode()
    plan = {
        "schema": PLAN_VERSION,
        "experiment": {
            "name": name,
            "file": "config.yaml",
            "sha256": hashlib.sha256(source).hexdigest(),
            "launches": launches,
            "time_limit": 60,
            "override": None,
            "study": study,
        },
        "site": {},
        "code": {"rank": CODE},
        "images": images or {},
        "cells": [{k: v for k, v in c.items() if k != "phases"} for c in cells],
    }
    root.mkdir(parents=True, exist_ok=True)
    layout.plan.write_text(json.dumps(plan))
    layout.work.mkdir(parents=True, exist_ok=True)
    layout.experiment.write_bytes(source)
    return layout


def plan_one(
    root: Path, strategy: str = "ddp", topology: str = "1x1", **changes: Any
) -> tuple[Layout, dict[str, Any]]:
    """Write a plan with one cell: the results, and the entry of the cell."""
    planned = plan_cell(strategy, topology, **changes)
    return write_plan(root, [planned]), planned


def write_launch(
    layout: Layout,
    planned: dict[str, Any],
    launch: int = 1,
    *,
    rate: float = 800.0,
    attempt: int = 1,
    wanted: int = 6,
    status: str = "ok",
    reason: str | None = None,
    **changes: Any,
) -> Path:
    """One launch of `rate` samples/s; `changes` replace members of its record.

    It is in a round, unless `round` is None.
    """
    record: dict[str, Any] = {
        "schema": 1,
        "experiment": "quickstart",
        "cell_id": planned["id"],
        "cell_hash": planned["hash"],
        "cell": planned["cell"],
        "shape": None,
        "attempt": attempt,
        "launch": launch,
        "wanted": wanted,
        "status": status,
        "reason": reason,
        "cause": None,
        "image": None,
        # Other results have other rounds.
        "round": {"seed": crc32(bytes(layout.root)), "number": launch, "position": 1},
        "started": f"2026-01-01T00:00:{launch:02d}+00:00",
        "ended": f"2026-01-01T00:01:{launch:02d}+00:00",
    }
    directory = layout.launch(planned["id"], attempt, launch)
    directory.mkdir(parents=True)
    if status == "ok":
        devices = Topology.parse(planned["cell"]["topology"]).devices
        samples = STEPS * BATCH * devices
        window = samples / rate
        # A cell that was read from a plan has none.
        phases = planned.get("phases", PHASES)
        steps: dict[str, Any] = make_steps(phases, devices, window)
        np.savez(directory / "steps.npz", **steps)
        record |= _measured(phases, devices, samples, window)
        record["shape"] = _shape(planned["cell"]["topology"])
    record |= changes
    if record["round"] is None:
        del record["round"]
    (directory / "record.json").write_text(json.dumps(record))
    return directory


def _shape(topology: str) -> dict[str, int]:
    """A replica on each device."""
    parsed = Topology.parse(topology)
    of_node = {"nodes": parsed.nodes, "ranks_per_node": parsed.devices_per_node}
    return factories.make_shape(parsed.devices, **of_node).to_dict()


def write_launches(
    layout: Layout,
    planned: dict[str, Any],
    *,
    rate: float = 800.0,
    count: int = 6,
    **options: Any,
) -> None:
    """Launches 1 to `count`, with rates that scatter by a percent around `rate`.

    Six are the same six for all cells, in another order.
    """
    order = 2 + len(planned["id"]) % 4
    for launch in range(1, count + 1):
        spread = 1 + 0.01 * ((launch * order) % 7 - 3)
        write_launch(layout, planned, launch, rate=rate * spread, **options)


def write_cells(
    root: Path, *cells: dict[str, Any], rates: Sequence[float] = (), **plan: Any
) -> Layout:
    """Results of cells that are all measured, each at its own rate."""
    layout = write_plan(root, cells, **plan)
    for planned, rate in zip(cells, rates or [800.0] * len(cells), strict=True):
        write_launches(layout, planned, rate=rate)
    return layout


@contextmanager
def edited(path: Path) -> Iterator[Any]:
    """The value of a JSON file, which is written back with its changes."""
    value = json.loads(path.read_text())
    yield value
    path.write_text(json.dumps(value))


def change_steps(launch: Path, **members: Any) -> None:
    """Replace arrays in the steps of a launch: `rank0_loss` is the one rank0/loss."""
    with np.load(launch / "steps.npz") as file:
        kept = dict(file)
    names = {name.replace("_", "/", 1): value for name, value in members.items()}
    np.savez(launch / "steps.npz", **(kept | names))


def write_profile(
    layout: Layout,
    planned: dict[str, Any],
    *,
    ranks: int = 1,
    device_ms: float = 0.0,
    number: int = 1,
    **changes: Any,
) -> Path:
    """A profile of two steps, 10 ms forward, 20 ms backward with two collectives."""
    spans = []
    for step in (0.0, 30.0):
        for kind, name, start, ms in (
            ("phase", "forward", 0.0, 10.0),
            ("phase", "backward", 10.0, 20.0),
            ("communication", "gloo:all_reduce", 12.0, 6.0),
            ("communication", "gloo:all_reduce", 15.0, 14.0),
        ):
            span = {"kind": kind, "name": name, "start_ms": step + start, "ms": ms}
            spans.append(span)
    operators = [
        {"name": "aten::mm", "calls": 8, "cpu_ms": 30.0, "device_ms": device_ms},
        {"name": "aten::add", "calls": 1, "cpu_ms": 6.0, "device_ms": 0.0},
    ]
    record = {
        "schema": 1,
        "cell_hash": planned["hash"],
        "launch": number,
        "status": "ok",
        "reason": None,
        "cause": None,
        "profile": [
            {"rank": rank, "steps": 2, "operators": operators, "spans": spans}
            for rank in range(ranks)
        ],
    }
    directory = layout.attempt(planned["id"], 1) / PROFILE / str(number)
    directory.mkdir(parents=True)
    (directory / "record.json").write_text(json.dumps(record | changes))
    return directory


def write_own_model(root: Path) -> Layout:
    """A cell with a model of its own, which leaves a mark if anything executes it."""
    net = root / "net.py"
    net.write_text(f"open({str(root / 'executed')!r}, 'w')\ndef build(): ...\n")
    digest = hash_files({"net.py": net})
    own = {"model": {"file": "net.py", "digest": digest}}
    planned = plan_cell("ddp", "1x2", model="net", own_files=own)
    layout = write_plan(root / "results", [planned], launches=1)
    write_launch(layout, planned, wanted=1)
    layout.own(digest).mkdir(parents=True)
    net.rename(layout.own(digest) / "net.py")
    return layout


def write_tables(layout: Layout) -> Document:
    """Write the tables of a result directory, without plots."""
    return write_results(read(layout), plots=False)


def read_rows(layout: Layout, name: str = "table") -> list[dict[str, str]]:
    """The rows of a table that was written as CSV."""
    path = layout.table("csv") if name == "table" else layout.section(name)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_report(layout: Layout) -> str:
    """The words of report.html, in one line."""
    return Words(layout.report.read_text()).line


def write_rows(layout: Layout) -> dict[str, dict[str, str]]:
    """Write the tables, and read the rows of table.csv by cell."""
    write_tables(layout)
    return {row["cell"]: row for row in read_rows(layout)}


def make_steps(
    phases: Sequence[str], ranks: int, window: float
) -> dict[str, np.ndarray[Any, Any]]:
    """Members of steps.npz: equal steps that fill the window, rank 0 the slowest."""
    shares = np.array([_SHARES.get(phase, 0.2) for phase in phases])
    step = window / STEPS * shares / shares.sum()
    members: dict[str, np.ndarray[Any, Any]] = {}
    for rank in range(ranks):
        members |= {
            f"rank{rank}/seconds": np.tile(step * 0.99**rank, (STEPS, 1)),
            f"rank{rank}/warmup": np.tile(step, (WARMUP, 1)),
            f"rank{rank}/loss": np.linspace(2.3, 0.4, WARMUP + STEPS, dtype=np.float32),
        }
    return members


def _measured(
    phases: Sequence[str], ranks: int, samples: int, window: float
) -> dict[str, Any]:
    """The members of a record that only a successful launch has."""
    return {
        "phases": list(phases),
        "steps": STEPS,
        "steps_per_epoch": 4,
        "warmup": WARMUP,
        "samples": samples,
        "loss": {"first": 2.3, "last": 0.4},
        "accuracy": {"overall": 0.97, "per_class": [0.97] * 10, "samples": 360},
        "ranks": [
            {
                **{"rank": rank, "host": "node1", "window_s": window * 0.99**rank},
                "samples": samples // ranks,
                "epochs_s": [window / 2 * 0.99**rank] * 2,
                "memory": {"rss_peak_mib": 350.0 + rank, "cuda_allocated_mib": None},
            }
            for rank in range(ranks)
        ],
        "hosts": [
            {
                **{"host": "node1", "cpu": "Example CPU", "cores": 2, "gpus": []},
                **{"memory_gib": 23.4, "kernel": "6.1"},
            }
        ],
        "software": {"python": "3.11.7", "torch": "2.13.0", "cuda": None, "nccl": None},
        "code": {"commit": "0" * 40, "dirty": False, "rank": CODE, "cell": None},
        "launcher": {"name": "spawn", "argv": ["spawn", "a cell"], "env": {}},
        "marks": [],
        "gate": {"status": "ok"},
    }


def write_example(root: Path) -> Layout:
    """An experiment with a row of every status that a table shows differently."""
    alone = [phase for phase in PHASES if phase != "communication"]
    single = plan_cell("single", phases=alone)
    ddp = [plan_cell("ddp", topology) for topology in ("1x1", "1x2", "2x2")]
    shared = plan_cell("ddp", "1x4", oversubscribe=True, marks=["oversubscribed"])
    mp = plan_cell("mp", "1x2", phases=["load", "forward", "backward", "update"])
    no_cuda = "nccl carries CUDA tensors only; the cell runs on cpu"
    nccl = plan_cell("ddp", "1x2", backend="nccl", infeasible=no_cuda)
    crashed, pending, old = (plan_cell(s, "1x2") for s in ("ddp_dp", "fsdp", "zero"))
    cells = [single, *ddp, shared, mp, nccl, crashed, pending, old]
    layout = write_plan(root, cells)
    for planned, rate in zip((single, *ddp), (800, 790, 1500, 2700), strict=True):
        write_launches(layout, planned, rate=rate)
    write_launches(layout, shared, rate=1400, round=None)
    write_launches(layout, mp, rate=700, count=3, wanted=3)
    write_launches(layout, crashed, count=2)
    write_launch(layout, crashed, 3, status="crashed", reason="rank 1 ended by SIGSEGV")
    write_launches(layout, old, cell_hash="0" * 16)
    return layout


def write_many(root: Path, cells: int) -> Layout:
    """Cells with six launches each; of every ten one cannot run and one has crashed."""
    strategies = ("ddp", "fsdp", "zero1", "mp")
    topologies = ("1x1", "1x2", "1x4", "2x4", "4x4")
    failed: dict[str, Any] = {"status": "crashed", "reason": "rank 1 ended by SIGSEGV"}
    planned = []
    for i in range(cells):
        group, at = divmod(i, len(strategies) * len(topologies))
        place, rate = (strategies[at // 5], topologies[at % 5]), 1e-4 * (group + 1)
        suffix = f".learning_rate={rate:g}"
        no = "needs 2 CUDA devices; this machine has 0" if i % 10 == 9 else None
        changes: Any = {"learning_rate": round(rate, 4), "infeasible": no}
        planned.append(plan_cell(*place, suffix=suffix, **changes))
    layout = write_plan(root, planned)
    for i, one in enumerate(planned):
        if i % 10 == 4:
            write_launch(layout, one, **failed)
        elif not one["infeasible"]:
            write_launches(layout, one, rate=800.0 * one["shape"]["ranks"] ** 0.9)
    return layout
