"""Overhead of the workflow on a cluster, compared with the same commands without it.

    sudo .venv/bin/python benchmarks/cluster.py         # needs an idle machine

It measures a cell of two hosts in its image, on a pretend cluster
(docs/pretend-cluster.md), alternately by `snakemake --profile slurm_profile` and by a
plain batch script. Both run the same `srun ... apptainer exec ...` on the same hosts.
It compares the time of a step, and the time of the whole command: until the cell's
summary is written, and until Snakemake ends with table and plots.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from pathlib import Path
from typing import Any

from pairs import median_of, report
from pretend_login import SNAKEMAKE, Login, give, pretend_login

from rankbench.cell import Cell, Shape
from rankbench.launch_spec import LaunchSpec

ROOT = Path(__file__).resolve().parents[1]
NAME = "cost"
EXPERIMENT = f"""
name: {NAME}
strategy: ddp
topology: 2x1
model: convnet
data: synthetic
batch_size: 32
launches: 1
steps: {{steps}}
gate: false
"""
# It requests the same resources as the cell's job.
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 --exclusive
#SBATCH --output={log}
{command} && touch {ended}
"""


def by_workflow(login: Login, *config: str) -> tuple[dict[str, Any], float, float]:
    """Measure the cell by the workflow.

    Returns:
        Its record, the seconds until its summary is written, and until Snakemake ends.
    """
    begun = time.time()
    login.run(*SNAKEMAKE, "--config", f"experiment={NAME}.yaml", *config)
    ended = time.time()
    results = login.home / "results" / NAME
    (summary,) = results.glob("cells/*.json")
    (latest,) = json.loads(summary.read_text())["records"]
    path = results / "records" / summary.stem / latest / "record.json"
    record = {**json.loads(path.read_text()), "directory": str(path.parent)}
    return record, summary.stat().st_mtime - begun, ended - begun


def by_hand(login: Login, like: dict[str, Any], number: int) -> tuple[float, float]:
    """Run the same launch by a batch script.

    Returns:
        The seconds of a step, and the seconds until the script ends.
    """
    folder = login.home / f"bare-{number}"
    spec = write_spec_like(like, folder)
    work = spec.work
    spec.home.mkdir()
    launcher = like["launcher"]
    variables = [f"{key}={value}" for key, value in launcher["env"].items()]
    argv = [part.replace(like["directory"], str(folder)) for part in launcher["argv"]]
    command = ["env", *variables, *argv]
    script = folder / "job.sh"
    # Not the end of `sbatch --wait`, which polls less and less often.
    ended = folder / "ended"
    text = SCRIPT.format(log=folder / "log", command=shlex.join(command), ended=ended)
    script.write_text(text)
    give(folder)
    begun = time.time()
    login.run("sbatch", "--wait", script)
    seconds = ended.stat().st_mtime - begun
    ranks = [json.loads(path.read_text()) for path in work.glob("rank*.json")]
    window = max(rank["rank"]["window_s"] for rank in ranks)
    return window / like["steps"], seconds


def write_spec_like(record: dict[str, Any], folder: Path) -> LaunchSpec:
    """What ranks read of an earlier launch, but without a limit on the heartbeat."""
    spec = LaunchSpec(
        directory=folder,
        cell=Cell.from_dict(record["cell"]),
        shape=Shape(**record["shape"]),
        data_dir=folder,
        threads=record["ranks"][0]["threads"],
        heartbeat_grace=1e9,
    )
    spec.progress.mkdir(parents=True)
    spec.heartbeat.touch()
    spec.write()
    return spec


def step_seconds(record: dict[str, Any]) -> float:
    """Mean duration of a step on the slowest rank, in seconds."""
    return max(rank["window_s"] for rank in record["ranks"]) / record["steps"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=200, help="steps of each launch")
    parser.add_argument("--images", type=Path, default=ROOT / "images")
    arguments = parser.parse_args()
    text = EXPERIMENT.format(steps=arguments.steps)
    image = arguments.images / "gloo-cpu.sif"
    with pretend_login(text, NAME, image=image) as login:
        compare(login, arguments.pairs)


def compare(login: Login, pairs: int) -> None:
    """Measure pairs in alternating order, after a first pair that warms the caches."""
    like, _, _ = by_workflow(login)
    by_hand(login, like, 0)
    steps: dict[str, list[float]] = {"workflow": [], "hand": []}
    beyond: dict[str, list[float]] = {"summary": [], "end": []}
    for pair in range(1, pairs + 1):
        if pair % 2:
            step, alone = by_hand(login, like, pair)
        record, summary, end = by_workflow(login, f"rerun={like['cell_id']}")
        if not pair % 2:
            step, alone = by_hand(login, like, pair)
        steps["workflow"].append(step_seconds(record) * 1e3)
        steps["hand"].append(step * 1e3)
        ours, theirs = (values[-1] for values in steps.values())
        print(f"pair {pair}: {ours:.1f} over {theirs:.1f} ms", flush=True)
        beyond["summary"].append(summary - alone)
        beyond["end"].append(end - alone)
    report("step, workflow over script", steps["workflow"], steps["hand"], unit="ms")
    for what, seconds in beyond.items():
        middle, low, high = median_of(seconds)
        print(
            f"one cell beyond the script, to the {what}: {middle:.1f} s "
            f"[{low:.1f}, {high:.1f}], n = {len(seconds)}"
        )


if __name__ == "__main__":
    main()
