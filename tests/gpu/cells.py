"""Measures the cells of an experiment as its jobs do, without Snakemake."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rankbench.launch.job.measure import run_job
from rankbench.project import begin, open_run
from rankbench.project.status import find_verdict
from rankbench.record import Layout


def measure(
    root: Path, text: str, *, site: str = "", deadline: float | None = None
) -> tuple[Layout, dict[str, Any]]:
    """Measure every cell of an experiment that this machine can run.

    Args:
        root: an existing folder for everything.
        text: the experiment.
        site: lines of the site file.
        deadline: time (`time.monotonic`) after which no cell is begun.

    Returns:
        The results, and the verdict on each cell: None if it cannot run here, or if
        there was no time for it.
    """
    (root / "experiment.yaml").write_text(text)
    (root / "profile").mkdir()
    lines = f"results_dir: {root}/results\ndata_dir: {root}/data\n{site}"
    (root / "profile/site.yaml").write_text(lines)
    run = open_run(
        {"experiment": root / "experiment.yaml"}, profile=root / "profile", write=False
    )
    begin(run)
    verdicts: dict[str, Any] = dict.fromkeys(run.plan.cells)
    for cell in run.feasible:
        if deadline is None or time.monotonic() < deadline:
            run_job(run.layout, cell.id, project=root, say=lambda *_: None)
            verdicts[cell.id] = find_verdict(run.plan, run.layout, cell)
    return run.layout, verdicts
