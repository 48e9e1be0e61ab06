"""How long `snakemake -n` takes for 10, 1,000 and 10,000 cells.

Runs of rankbench alternate with a bare Snakefile that has the same number of jobs.

    python benchmarks/planning.py
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

BARE = """
rule all:
    input: expand("out/{{i}}.json", i=range({cells}))
rule cell:
    output: "out/{{i}}.json"
    shell: "touch {{output}}"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("Snakefile", "config.yaml"):
            shutil.copy(ROOT / name, root)
        for name in ("workflow", "local_profile"):
            shutil.copytree(ROOT / name, root / name)
        compare("default experiment, -n", root, "config.yaml", 4, runs)
        for cells in (1_000, 10_000):
            write_experiment(root / "many.yaml", cells)
            compare(f"{cells} cells, -n", root, "many.yaml", cells, runs)
        write_experiment(root / "many.yaml", 1_000)
        finish(root)
        seconds, _ = timed(snakemake("many.yaml"), root, "Nothing to be done", runs)
        print(f"1000 finished cells: {seconds:.2f} s until nothing is to be done")


def write_experiment(path: Path, cells: int) -> None:
    rates = [round(0.0001 * (i + 1), 4) for i in range(cells)]
    path.write_text(f"name: many\nstrategy: single\nlearning_rate: {rates}\n")


def compare(title: str, root: Path, experiment: str, cells: int, runs: int) -> None:
    bare = root / "bare"
    bare.mkdir(exist_ok=True)
    (bare / "Snakefile").write_text(BARE.format(cells=cells))
    plain = [sys.executable, "-m", "snakemake", "-n", "--quiet", "rules"]
    ours, theirs, peak = [], [], 0
    timed(snakemake(experiment, "-n"), root, "", 1)  # warm caches
    for _ in range(runs):
        seconds, memory = timed(snakemake(experiment, "-n"), root, "dry-run", 1)
        ours.append(seconds)
        peak = max(peak, memory)
        theirs.append(timed([*plain, "--nolock"], bare, "dry-run", 1)[0])
    print(
        f"{title}: {statistics.median(ours):.2f} s, {peak / 1024:.0f} MiB; "
        f"a bare Snakefile {statistics.median(theirs):.2f} s ({runs} pairs)"
    )


def snakemake(experiment: str, *flags: str) -> list[str]:
    command = [sys.executable, "-m", "snakemake", "--profile", "local_profile"]
    return [*command, *flags, "--config", f"experiment={experiment}"]


def timed(command: list[str], where: Path, says: str, runs: int) -> tuple[float, int]:
    """Median seconds and peak memory in KiB of whole processes."""
    seconds, peak = [], 0
    for _ in range(runs):
        begun = time.perf_counter()
        with open(where / "output.txt", "w+") as out:
            child = subprocess.Popen(command, cwd=where, stdout=out, stderr=out)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            seconds.append(time.perf_counter() - begun)
            out.seek(0)
            text = out.read()
        assert child.returncode == 0, text
        assert says in text, text
        peak = max(peak, usage.ru_maxrss)
    return statistics.median(seconds), peak


def finish(root: Path) -> None:
    """Write the files of a finished run: plan, requests, summaries, table."""
    os.chdir(root)
    from rankbench.project.jobs import data_files
    from rankbench.project.run import open_run
    from rankbench.project.start import begin
    from rankbench.record import PLOTS, read_json, write_json

    run = open_run(
        {"experiment": "many.yaml"}, profile=Path("local_profile"), write=False
    )
    begin(run)
    for path in data_files(run).values():
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for cell in run.feasible:
        summary = {
            **read_json(run.layout.request(cell.id)),
            **{"status": "ok", "enough": None, "launches_ok": 1, "image": None},
            "launch_seconds": 1.0,
        }
        write_json(run.layout.summary(cell.id, 1), summary)
    for suffix in ("csv", "md", "html", "tex"):
        run.layout.table(suffix).touch()
    for name in PLOTS:
        for suffix in ("svg", "png"):
            run.layout.plot(name, suffix).parent.mkdir(exist_ok=True)
            run.layout.plot(name, suffix).touch()
    assert run.lock is not None
    run.lock.close()


if __name__ == "__main__":
    main()
