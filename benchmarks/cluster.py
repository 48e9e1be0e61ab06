"""What the workflow costs on a cluster, over the same commands without it.

    sudo .venv/bin/python benchmarks/cluster.py         # wants a quiet machine

A cell of two hosts in its image, on a pretend cluster (docs/pretend-cluster.md), by
turns through `snakemake --profile slurm_profile` and by a batch script as one would
write it. Both run the same `srun ... apptainer exec ...` over the same hosts. Compared
are the time of a step, and the time that the command takes: for the workflow until the
cell's summary is there, and until Snakemake ends, with table and plots.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairs import median_of, report

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/cluster")]

from pretend_cluster import Cluster  # noqa: E402
from pretend_down import down  # noqa: E402
from pretend_up import up  # noqa: E402
from site_files import with_images  # noqa: E402

from conftest import copy_project  # noqa: E402

USER = "rankbench"
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
# The resources that the cell's job asks for.
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 --exclusive
#SBATCH --output={log}
{command} && touch {ended}
"""


@dataclass(frozen=True)
class Login:
    """The login side of a cluster, in a copy of the project."""

    cluster: Cluster
    home: Path

    def run(self, *argv: str | Path) -> None:
        """Run a command to its end, as the user. PretendError: it failed."""
        variables = {"PYTHONPATH": f"{self.home}/src"}
        self.cluster.run(*argv, environment=variables, cwd=self.home)

    def by_workflow(self, *config: str) -> tuple[dict[str, Any], float, float]:
        """Measure the cell: its record, seconds to its summary, and to the end."""
        snakemake = (sys.executable, "-m", "snakemake", "--profile", "slurm_profile")
        begun = time.time()
        self.run(*snakemake, "--config", f"experiment={NAME}.yaml", *config)
        ended = time.time()
        results = self.home / "results" / NAME
        (summary,) = results.glob("cells/*.json")
        (latest,) = json.loads(summary.read_text())["records"]
        path = results / "records" / summary.stem / latest / "record.json"
        record = {**json.loads(path.read_text()), "directory": str(path.parent)}
        return record, summary.stat().st_mtime - begun, ended - begun

    def by_hand(self, like: dict[str, Any], number: int) -> tuple[float, float]:
        """The same launch from a batch script: seconds of a step, and to its end."""
        folder = self.home / f"bare-{number}"
        work = folder / "work"
        (work / "home").mkdir(parents=True)
        (work / "heartbeat").touch()
        (work / "progress").write_bytes(bytes(8 * like["shape"]["ranks"]))
        (work / "launch.json").write_text(json.dumps(spec_like(like, folder)))
        launcher = like["launcher"]
        variables = [f"{key}={value}" for key, value in launcher["env"].items()]
        argv = [
            part.replace(like["directory"], str(folder)) for part in launcher["argv"]
        ]
        command = ["env", *variables, *argv]
        script = folder / "job.sh"
        # Not the end of `sbatch --wait`, which looks ever more rarely.
        ended = folder / "ended"
        text = SCRIPT.format(
            log=folder / "log", command=shlex.join(command), ended=ended
        )
        script.write_text(text)
        give(folder)
        begun = time.time()
        self.run("sbatch", "--wait", script)
        seconds = ended.stat().st_mtime - begun
        ranks = [json.loads(path.read_text()) for path in work.glob("rank*.json")]
        window = max(rank["rank"]["window_s"] for rank in ranks)
        return window / like["steps"], seconds


def spec_like(record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What ranks are told, as in a launch that has been; nobody's heart beats here."""
    return {
        "purpose": "measure",
        "save_model": "none",
        "cell": record["cell"],
        "shape": record["shape"],
        "directory": str(folder),
        "data_dir": str(folder),
        "phases": record["phases"],
        "threads": record["ranks"][0]["threads"],
        "heartbeat_grace": 1e9,
    }


def step_seconds(record: dict[str, Any]) -> float:
    """Mean seconds of a step of the slowest rank."""
    return max(rank["window_s"] for rank in record["ranks"]) / record["steps"]


def give(folder: Path) -> None:
    """Let the user have a folder with all that is in it."""
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, USER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=200, help="of each launch")
    parser.add_argument("--images", type=Path, default=ROOT / "images")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rankbench-cost-") as name:
        work = Path(name)
        work.chmod(0o755)
        home = work / "project"
        home.mkdir()
        text = EXPERIMENT.format(steps=arguments.steps)
        copy_project(home).experiment(text, f"{NAME}.yaml")
        # Of the user's own, who keeps notes beside them; and where hosts see them.
        images = home / "images"
        images.mkdir()
        for suffix in ("sif", "json"):
            shutil.copy(arguments.images / f"gloo-cpu.{suffix}", images)
        (home / "slurm_profile/site.yaml").write_text(with_images(images))
        give(home)
        cluster = up(
            work / "cluster", hosts=2, user=USER, shared=[work, Path(sys.prefix)]
        )
        try:
            compare(Login(cluster, home), arguments.pairs)
        finally:
            down(cluster.state)


def compare(login: Login, pairs: int) -> None:
    """Interleaved pairs, in either order by turns; the first run warms the caches."""
    like, _, _ = login.by_workflow()
    login.by_hand(like, 0)
    steps: dict[str, list[float]] = {"workflow": [], "hand": []}
    beyond: dict[str, list[float]] = {"summary": [], "end": []}
    for pair in range(1, pairs + 1):
        if pair % 2:
            step, alone = login.by_hand(like, pair)
        record, summary, end = login.by_workflow(f"rerun={like['cell_id']}")
        if not pair % 2:
            step, alone = login.by_hand(like, pair)
        steps["workflow"].append(step_seconds(record) * 1e3)
        steps["hand"].append(step * 1e3)
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
