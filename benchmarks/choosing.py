"""How long does a job take to choose the next of many launches, and how much memory?

A thousand cells take turns for forty rounds. Launches are not run: each only leaves its
record. Everything else is what a job does: claims, records, verdicts, rules.

    python benchmarks/choosing.py            # some minutes
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import numpy as np

from rankbench.launch.hosts.base import Hosts, ThisMachine
from rankbench.launch.job import rounds as rounds_module
from rankbench.launch.job.attempt import Attempt
from rankbench.launch.job.claim import read_request
from rankbench.launch.job.rounds import Rounds
from rankbench.launch.process.classify import Outcome
from rankbench.launch.process.supervise import begin_record, finish
from rankbench.launch.processes import Stop
from rankbench.launch_spec import LaunchSpec
from rankbench.project.run import open_run
from rankbench.project.start import begin
from rankbench.record import Record

EXPERIMENT = """
name: many
strategy: single
model: lenet
data: synthetic
learning_rate: [{rates}]
steps: 1
gate: false
launches: {launches}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--launches", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(Path(folder), arguments.cells, arguments.launches)
    middle, late = np.quantile(seconds, (0.5, 0.95))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{len(seconds)} launches: from the end of one to the begin of the next "
        f"{1e3 * middle:.1f} ms, p95 {1e3 * late:.1f} ms, at most "
        f"{1e3 * max(seconds):.0f} ms; {memory:.0f} MiB, of which numpy, which jobs do "
        "not import, has some 30"
    )


def measure(root: Path, cells: int, launches: int) -> list[float]:
    """Seconds between launches."""
    rates = ", ".join(f"{1e-6 * number:.6f}" for number in range(1, cells + 1))
    (root / "many.yaml").write_text(EXPERIMENT.format(rates=rates, launches=launches))
    (root / "profile").mkdir()
    facts = f"results_dir: {root}/results\ndata_dir: {root}/data\nsoftware: native\n"
    (root / "profile/site.yaml").write_text(facts)
    run = open_run(
        {"experiment": root / "many.yaml"}, profile=root / "profile", write=False
    )
    begin(run)
    attempts = []
    for cell in run.plan.feasible:
        request = read_request(run.layout, cell.id)
        assert request is not None
        attempts.append(Attempt(run.layout, run.plan, cell, request, root))
    here, between = ThisMachine(), Between()
    rounds = Rounds(attempts, say=lambda *_: None)
    with mock.patch.object(rounds_module, "run_launch", between.launch):
        rounds.run(lambda *_: here, Stop())
    return between.seconds


class Between:
    """Launches that only leave a record, and the time between them."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._ended: float | None = None

    def launch(self, spec: LaunchSpec, hosts: Hosts, stop: Stop) -> Record:
        if self._ended is not None:
            self.seconds.append(time.perf_counter() - self._ended)
        record = begin_record(spec, Outcome("ok"), datetime.now(UTC))
        record |= {"samples": 1, "ranks": [{"window_s": 1.0}], "seconds": {"launch": 1}}
        finish(spec.directory, record)
        self._ended = time.perf_counter()
        return record


if __name__ == "__main__":
    main()
