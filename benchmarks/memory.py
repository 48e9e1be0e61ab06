"""The estimated memory of a rank, compared with what its tensors really took.

Ranks train on CPUs over gloo, and torch's profiler counts what its allocator gives to
each of them. The estimate is that of `rankbench run -n --memory`.
The profiler goes on counting what a thread of gloo frees, which rarely happens: a ratio
that stands alone may come from that.

    python benchmarks/memory.py
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing
from torch.profiler import ProfilerActivity, profile, record_function

from rankbench.cell import Cell
from rankbench.environ import Place
from rankbench.matrix.candidate import shape_of
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.rank.purposes.estimate import estimate_all
from rankbench.rank.purposes.setup import (
    draw_model,
    set_up_strategy,
    sizes_of_data,
)
from rankbench.rank.strategies.base import World
from rankbench.rank.world import process_group

EXPERIMENT = """
name: memory
strategy:
  - ddp
  - zero1
  - fsdp
  - fsdp: {shard_ranks: 2}
  - mesh
  - mesh: {tensor: 2}
  - pipeline: {balance: "2,1,1,3"}
  - deepspeed: {stage: [0, 1, 2, 3]}
model: {gpt: {layers: 4, width: 256, heads: 8}}
data: tokens
context: 128
backend: gloo
device: cpu
topology: 1x4
batch_size: 8
optimizer: adamw
precision: [fp32, bf16]
steps: 1
"""
MIB = 2**20
WARM_UP, LAST = "warm-up", "last step"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", help="only this one")
    only = parser.parse_args().strategy
    os.environ |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "memory.yaml"
        file.write_text(EXPERIMENT)
        found = load_experiment(file, load_catalog(), cuda=False).cells
    cells = {k: c for k, c in found.items() if only in (None, c.strategy)}
    print("MiB of a rank in set-up, and in a step: estimated, measured, ratio")
    for name, cell in cells.items():
        shape = shape_of(cell, load_catalog().strategies[cell.strategy])
        last = shape.ranks - 1
        asked = {"cell": cell.to_dict(), "shape": shape.to_dict(), "own": {}}
        (estimated,) = estimate_all([{**asked, "ranks": [0, last]}])
        if "unknown" in estimated:
            print(f"{name}: cannot be estimated: {estimated['unknown']}")
            continue
        measured = measure(cell, shape)
        for one in estimated["ranks"]:
            pairs = [
                (one[kind] / MIB, measured[one["rank"]][kind] / MIB)
                for kind in ("setup", "step")
            ]
            said = "; ".join(f"{a:.1f}, {b:.1f}, {a / b:.3f}" for a, b in pairs)
            print(f"{name}, rank {one['rank']}: {said}", flush=True)


def measure(cell: Cell, shape: Any) -> list[dict[str, int]]:
    """Peak of the tensors of each rank: set-up with the first step, and a later one."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(be_rank, (cell, shape, folder), shape.ranks)
        return [
            json.loads(Path(folder, f"rank{rank}.json").read_text())
            for rank in range(shape.ranks)
        ]


def be_rank(rank: int, cell: Cell, shape: Any, folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    place = Place(
        rank=rank, size=shape.ranks, local_rank=rank, local_size=shape.ranks, node=0
    )
    os.environ |= place.export()
    process_group.join("gloo", place, f"file://{folder}/store", cpu)
    world = World(rank, shape.ranks, rank, cpu, (cpu,), "gloo", shape.rank_batch)
    sizes = sizes_of_data(cell)
    ids = torch.zeros(shape.rank_batch, sizes["context"], dtype=torch.int64)
    blueprint = draw_model(cell, sizes)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced,
    ):
        strategy = set_up_strategy(
            cell, world, blueprint, replica_ranks=shape.replica_ranks
        )
        strategy.step((ids, ids), lambda phase: None)
        with record_function(WARM_UP):
            for _ in range(strategy.settled_after):
                strategy.step((ids, ids), lambda phase: None)
        with record_function(LAST):
            strategy.step((ids, ids), lambda phase: None)
    trace = Path(folder, f"trace{rank}.json")
    traced.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    begun = {e["name"]: e["ts"] for e in events if e.get("name") in (WARM_UP, LAST)}
    held = [
        (event["ts"], event["args"]["Total Allocated"])
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == 0
    ]
    peaks = {
        "setup": max(size for time, size in held if time < begun[WARM_UP]),
        "step": max(size for time, size in held if time >= begun[LAST]),
    }
    Path(folder, f"rank{rank}.json").write_text(json.dumps(peaks))
    process_group.leave()


if __name__ == "__main__":
    main()
