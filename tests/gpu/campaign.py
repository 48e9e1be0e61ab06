"""Uses a machine with one GPU well in its first minutes, in three runs.

    python tests/gpu/campaign.py check --out DIR   gpu tests; gates of ranks sharing it
    python tests/gpu/campaign.py speed --out DIR   rows of one GPU, and bare loops
    python tests/gpu/campaign.py truth --out DIR   phases, profiles, memory, gloo

Each ends within 9 minutes, writes summary.json and records.tar.gz into DIR, prints the
summary, and exits with 1 if something failed. It needs torch, pytest and rankbench's
own dependencies (27 MB of wheels), but no network and no Snakemake. `--dry-run` goes
the same way on CPUs, with small models.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from gpu.cells import measure  # noqa: E402
from rankbench.record import Layout, Record, read_json  # noqa: E402

# Seconds within which a run begins new work; the rest of its 9 minutes is for its end.
SECONDS = 520.0

STRATEGIES = ("single", "ddp", "fsdp", "zero1", "horovod", "deepspeed")

SPEED = """
name: gpu-speed
backend: {backend}
data: synthetic
batch_size: {batch}
precision: bf16
image_size: {pixels}
channels: 3
num_workers: {workers}
pin_memory: true
non_blocking: true
cudnn_benchmark: true
launches: {launches}
gate: false
evaluate: false
steps: {steps}
warmup: {warmup}
time_limit: 120
blocks:
  - strategy: [{strategies}]
    model: {model}
    channels_last: true
"""

# Compiling takes minutes on a few CPUs.
SPEED_ON_GPU = """\
  - strategy: [single, ddp]
    model: {model}
    channels_last: true
    compile: true
  - strategy: [single, ddp, fsdp]
    model: transformer
    fused_optimizer: true
    optimizer: adamw
"""

TRUTH = """
name: gpu-truth
strategy: [single, ddp, dp]
backend: [{backends}]
topology: [1x1, 1x2]
oversubscribe: true
model: {model}
data: synthetic
batch_size: {batch}
image_size: {pixels}
channels: 3
launches: 1
gate: false
evaluate: false
profile: true
steps: {steps}
warmup: {warmup}
time_limit: 120
"""

ON_GPU = {
    "backend": "nccl",
    "backends": "nccl, gloo",
    "launches": 2,
    "model": "resnet50",
    "pixels": 224,
    "batch": 256,
    "workers": 8,
    "steps": 100,
    "warmup": 30,
}
ON_CPU = {
    "backend": "gloo",
    "backends": "gloo",
    "launches": 1,
    "model": "convnet",
    "pixels": 32,
    "batch": 4,
    "workers": 0,
    "steps": 4,
    "warmup": 2,
}


class Campaign:
    """One run: its time, its records, and what it has found."""

    def __init__(self, out: Path, folder: Path, *, dry: bool) -> None:
        self.dry = dry
        self.settings = ON_CPU if dry else ON_GPU
        self.device = "cpu" if dry else "cuda"
        self.deadline = time.monotonic() + SECONDS
        self.found: dict[str, Any] = {}
        self.failed: list[str] = []
        self._out = out
        self._folder = folder
        out.mkdir(parents=True, exist_ok=True)

    def run(self, *argv: str) -> int:
        """Run a program within the time that is left; returns its exit status."""
        left = max(1.0, self.deadline - time.monotonic())
        try:
            return subprocess.run(
                argv, cwd=ROOT, env=_environment(), timeout=left, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return 124

    def measure(self, text: str) -> tuple[Layout, list[Record]]:
        """Measure an experiment; returns the records of launches that are ok."""
        layout, verdicts = measure(
            self._folder, text, site=f"device: {self.device}\n", deadline=self.deadline
        )
        for cell, verdict in verdicts.items():
            status = verdict.status if verdict else "not run"
            self.found.setdefault("cells", {})[cell] = status
            if verdict and status != "ok":
                self.failed.append(f"{cell}: {status}: {verdict.reason}")
        paths = sorted(layout.records.glob("*/1/*/record.json"))
        records = [read_json(path) for path in paths]
        return layout, [record for record in records if record["status"] == "ok"]

    def close(self) -> int:
        """Write and print what was found; returns the exit status."""
        summary = {**self.found, "failed": self.failed, "dry_run": self.dry}
        text = json.dumps(summary, indent=1)
        (self._out / "summary.json").write_text(text)
        with tarfile.open(self._out / "records.tar.gz", "w:gz") as archive:
            if (self._folder / "results").exists():
                archive.add(self._folder / "results", "results")
        print(text)
        return 1 if self.failed else 0


def _environment() -> dict[str, str]:
    """Programs find rankbench where it is not installed."""
    paths = [str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def check(campaign: Campaign) -> None:
    """All gpu tests: among them gates in which two ranks share the GPU."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    status = campaign.run(*argv, *(["--collect-only"] if campaign.dry else []))
    campaign.found["pytest"] = status
    if status:
        campaign.failed.append(f"pytest ended with {status}")


def speed(campaign: Campaign) -> None:
    """Rows of one GPU, and their steps over those of bare loops."""
    # Horovod has no image here, and DeepSpeed may have none.
    packages = {"horovod": "horovod", "deepspeed": "deepspeed"}
    there = [
        name
        for name in STRATEGIES
        if name not in packages or importlib.util.find_spec(packages[name])
    ]
    campaign.found["missing"] = sorted(set(STRATEGIES) - set(there))
    # Bare loops first: their figures matter most.
    ratios = campaign.found["harness"] = {}
    settings = campaign.settings
    given = [
        f"device: {campaign.device}",
        f"backend: {settings['backend']}",
        f"model: {settings['model']}",
        "data: synthetic",
        f"image_size: {settings['pixels']}",
        "channels: 3",
        f"batch_size: {settings['batch']}",
        "precision: bf16",
        "channels_last: true",
        "cudnn_benchmark: true",
    ]
    for name in there[:2] if campaign.dry else there:
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            status = campaign.run(
                *(sys.executable, "benchmarks/harness.py", "--launches", "1"),
                *("--pairs", "1" if campaign.dry else "6", "--ranks", "1"),
                *("--strategy", name, "--json", str(result), "--cell", *given),
            )
            if status:
                campaign.failed.append(f"harness of {name} ended with {status}")
            else:
                one = read_json(result)[name]
                rate = 1e3 * one["samples"] / one["harness_ms"][0]
                ratios[name] = {"ratio": one["ratio"], "images_s": rate}
    text = SPEED if campaign.dry else SPEED + SPEED_ON_GPU
    _, records = campaign.measure(text.format(**settings, strategies=", ".join(there)))
    rows = campaign.found["rows"] = {}
    for record in records:
        window = max(rank["window_s"] for rank in record["ranks"])
        energy = record["ranks"][0]["energy"]
        samples_s = record["samples"] / window
        rows.setdefault(record["cell_id"], []).append(
            {
                "samples_s": samples_s,
                "tflop_s": samples_s * record["model"]["flops_per_sample"] / 1e12,
                "joules": energy["joules"],
                "watts": energy["joules"] and energy["joules"] / energy["seconds"],
                "reason": energy["reason"],
            }
        )


def truth(campaign: Campaign) -> None:
    """Phases against profiles, and memory as torch and the driver tell it."""
    layout, records = campaign.measure(TRUTH.format(**campaign.settings))
    rows = campaign.found["rows"] = {}
    for record in records:
        place = layout.launch(record["cell_id"], 1, record["launch"])
        rows[record["cell_id"]] = {
            "memory": [rank["memory"] for rank in record["ranks"]],
            "phases_ms": _mean_phases(place, record),
            "profile_ms": _profiled_phases(layout, record["cell_id"]),
        }


def _mean_phases(place: Path, record: Record) -> dict[str, float]:
    import numpy as np

    with np.load(place / "steps.npz", allow_pickle=False) as steps:
        means = 1e3 * steps["rank0/seconds"].mean(axis=0)
    return dict(zip(record["phases"], means.tolist(), strict=True))


def _profiled_phases(layout: Layout, cell: str) -> dict[str, float]:
    """Milliseconds of a step by phase, and of exposed communication, of rank 0."""
    found: dict[str, float] = {}
    for path in layout.records.glob(f"{cell}/1/profile/*/record.json"):
        record = read_json(path)
        if record["status"] != "ok":
            continue
        rank = record["profile"][0]
        for span in rank["spans"]:
            name = span["name"] if span["kind"] == "phase" else span["kind"]
            found[name] = found.get(name, 0.0) + span["ms"] / rank["steps"]
    return found


RUNS: dict[str, Callable[[Campaign], None]] = {
    "check": check,
    "speed": speed,
    "truth": truth,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true", help="on CPUs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(arguments.out, Path(folder), dry=arguments.dry_run)
        RUNS[arguments.run](campaign)
        return campaign.close()


if __name__ == "__main__":
    sys.exit(main())
