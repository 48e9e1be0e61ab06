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
from pathlib import Path

from pairs import report

from rankbench.environ import Place
from rankbench.launch.process.environment import build_environment
from rankbench.matrix.selection import find_cell
from rankbench.project import open_run

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
    env = build_environment(planned.shape, threads=1)
    env |= Place(rank=0, size=1, local_rank=0, local_size=1, node=0).export()
    ours, theirs = [], []
    for pair in range(pairs + 1):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", IMPORT], env=env, check=True)
        importing = time.perf_counter() - begun
        with tempfile.TemporaryDirectory() as folder:
            first_step = start_rank(planned, Path(folder), run.data_dir, env)
        if pair:  # the first pair warms the caches
            ours.append(first_step)
            theirs.append(importing)
    report("rank start to first step over imports", ours, theirs, unit="s")


def start_rank(planned, folder: Path, data_dir: Path, env: dict[str, str]) -> float:
    """Start a rank; return the seconds from its creation to its first step."""
    work = folder / "work"
    work.mkdir()
    (work / "heartbeat").write_text("1")
    (work / "progress").mkdir()
    spec = {
        "purpose": "measure",
        "save_model": "none",
        "collectives": False,
        "cell": planned.cell.to_dict() | {"epochs": None, "steps": 1, "warmup": 0},
        "shape": planned.shape.to_dict(),
        "directory": str(folder),
        "data_dir": os.path.abspath(data_dir),
        "phases": planned.phases,
        "threads": 1,
        "heartbeat_grace": 60.0,
    }
    (work / "launch.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "rankbench.rank", str(work / "launch.json")]
    subprocess.run(command, env=env, check=True)
    seconds = json.loads((work / "rank0.json").read_text())["rank"]["seconds"]
    return seconds["startup"] + seconds["setup"]


if __name__ == "__main__":
    main()
