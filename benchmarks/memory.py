"""The estimated memory of a rank, compared with what its tensors really took.

Ranks train on CPUs over gloo, and torch's profiler counts what its allocator gives to
each of them. The estimate is that of `rankbench run -n --memory`.

    python benchmarks/memory.py
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from rankbench.matrix.candidate import shape_of
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.rank.purposes.estimate import estimate_all

TESTS = Path(__file__).resolve().parents[1] / "tests"
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


def main() -> None:
    sys.path[:0] = [str(TESTS), str(TESTS / "contract")]
    from memory_ranks import measure

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", help="only this one")
    only = parser.parse_args().strategy
    os.environ |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
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


if __name__ == "__main__":
    main()
