"""Time from a rank's start to its first step, compared with importing torch.

python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from pairs import report

from rankbench.environ import Place
from rankbench.launch.process.command import build_environment
from rankbench.launch_spec import LaunchSpec
from rankbench.matrix.selection import find_cell
from rankbench.project.run import open_run

# Without CUDA, torchvision can be imported only by `import_torchvision`.
IMPORT = (
    "import torch; from rankbench.rank.torchvision_ops import import_torchvision; "
    "import_torchvision()"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    pairs = parser.parse_args().pairs
    run = open_run({}, profile=Path("local_profile"), write=False)
    planned = find_cell(run.plan, "single.none.1x1.convnet.digits.batch_size=32")
    place = Place(rank=0, size=1, local_rank=0, local_size=1, node=0).export()
    ours, theirs = [], []
    for pair in range(pairs + 1):
        with tempfile.TemporaryDirectory() as folder:
            spec = make_spec(planned, Path(folder), run.data_dir)
            env = build_environment(spec) | place
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", IMPORT], env=env, check=True)
            importing = time.perf_counter() - begun
            first_step = start_rank(spec, env)
        if pair:  # the first pair warms the caches
            ours.append(first_step)
            theirs.append(importing)
    report("rank start to first step over imports", ours, theirs, unit="s")


def make_spec(planned, folder: Path, data_dir: Path) -> LaunchSpec:
    """A launch of one step."""
    return LaunchSpec(
        directory=folder,
        cell=replace(planned.cell, epochs=None, steps=1, warmup=0),
        shape=planned.shape,
        data_dir=Path(os.path.abspath(data_dir)),
        threads=1,
        heartbeat_grace=60.0,
    )


def start_rank(spec: LaunchSpec, env: dict[str, str]) -> float:
    """Start a rank; return the seconds from its creation to its first step."""
    spec.progress.mkdir(parents=True)
    spec.heartbeat.write_text("1")
    spec.write()
    command = [sys.executable, "-m", "rankbench.rank", str(spec.file)]
    subprocess.run(command, env=env, check=True)
    seconds = json.loads((spec.work / "rank0.json").read_text())["rank"]["seconds"]
    return seconds["startup"] + seconds["setup"]


if __name__ == "__main__":
    main()
