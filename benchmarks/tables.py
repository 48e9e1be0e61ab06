"""Time and memory for tables and plots of 10,000 records.

    python benchmarks/tables.py [--cells 1000] [--launches 10] [--profile]

The records are synthetic, but as large as real ones. Tables are made in a process of
their own, which is measured as a whole.
"""

from __future__ import annotations

import argparse
import os
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from rankbench.cell import Cell  # noqa: E402
from rankbench.record import Layout  # noqa: E402
from unit import synthetic  # noqa: E402
from unit.synthetic import (  # noqa: E402
    make_cell,
    plan_cell,
    write_launches,
    write_plan,
)

# Enough steps for the search for a steady state.
synthetic.STEPS = 60
MODELS = ("convnet", "lstm", "resnet18", "resnet50", "transformer")
TOPOLOGIES = ("1x1", "1x2", "1x4", "2x4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--profile", action="store_true", help="print a profile")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        layout = write_results(Path(folder), arguments.cells, arguments.launches)
        command = ["-m", "rankbench.cli", "table", str(layout.root)]
        if arguments.profile:
            stats = Path(folder) / "stats"
            command = ["-m", "cProfile", "-o", str(stats), *command]
        seconds, cpu, peak = timed([sys.executable, *command])
        print(
            f"{arguments.cells * arguments.launches} records: {seconds:.1f} s "
            f"({cpu:.1f} s of CPU), {peak / 1024:.0f} MiB"
        )
        if arguments.profile:
            pstats.Stats(str(stats)).sort_stats("cumulative").print_stats(60)


def write_results(root: Path, cells: int, launches: int) -> Layout:
    """Write the results of a matrix of strategies, models, topologies and batches."""
    planned = [plan_cell(cell, suffix=suffix) for cell, suffix in make_cells(cells)]
    layout = write_plan(root, planned, launches=launches)
    # Real records also have facts of about this size that tables do not show.
    details = {"launcher": {"name": "spawn", "argv": ["x" * 60] * 12, "env": {}}}
    for number, cell in enumerate(planned):
        write_launches(
            layout, cell, rate=500 + number, count=launches, wanted=launches, **details
        )
    return layout


def make_cells(count: int) -> list[tuple[Cell, str]]:
    """Cells, each with a suffix that makes its id unique."""
    found: list[tuple[Cell, str]] = []
    batch = 8
    while len(found) < count:
        for model in MODELS:
            for topology in TOPOLOGIES:
                for strategy in ("single", "ddp", "fsdp"):
                    if strategy == "single" and topology != "1x1":
                        continue
                    backend = "none" if strategy == "single" else "gloo"
                    cell = make_cell(
                        strategy,
                        topology,
                        backend=backend,
                        model=model,
                        batch_size=batch,
                    )
                    found.append((cell, f".batch_size={batch}"))
        batch += 1
    return found[:count]


def timed(command: list[str]) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and peak memory in KiB of a whole process."""
    begun = time.perf_counter()
    with open(os.devnull, "w") as out:
        child = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, command
    seconds, cpu = time.perf_counter() - begun, usage.ru_utime + usage.ru_stime
    return seconds, cpu, usage.ru_maxrss


if __name__ == "__main__":
    main()
