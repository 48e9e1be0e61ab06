"""Does `answer --at` foresee what eight hosts give, from one to three of them?

    sudo .venv/bin/python benchmarks/predicting.py        # hours, on an idle machine
    .venv/bin/python benchmarks/predicting.py --show      # what is there so far

Emulated models (docs/method.md) train on a pretend cluster of eight hosts whose links
are shaped. They sleep instead of computing, so two cores suffice; what they send is
real. Each combination of link and model is an experiment of its own. Results stay in a
folder: begin again, and what was measured is not measured again.

The first table compares predictions with what was measured. The second one chooses the
fastest of four variants at eight hosts by prediction, and looks how good that was.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build/predicting"

LINKS = (150, 250, 400)  # Mbit/s
SIZES = (4.0, 1.0, 2.0, 8.0)  # MiB of the model
FITTED, MOST = 3, 8  # hosts
BETWEEN = (4, 6)  # hosts that are measured, too, with the first size
WIDE = ("ddp", "pipeline")  # strategies that are measured on them

EXPERIMENT = """
name: {name}
model: {{emulated: {{layers: 24, mib: {size}, forward_us: 13000, backward_us: 27000}}}}
data: synthetic
batch_size: 16
scaling: weak
launches: {launches}
steps: 6
warmup: 2
gate: false
allocation: experiment
time_limit: 120
blocks:
  - strategy: single
    topology: 1x1
  - strategy:
      - ddp
      - ddp: {{bucket_mb: 0.5}}
      - zero1
      - pipeline: {{microbatches: 4}}
    topology: [2x1, 3x1, 8x1]
{between}"""
MORE = """  - strategy: [ddp, pipeline: {microbatches: 4}]
    topology: [4x1, 6x1]
"""

BEGIN = """
import sys
from pathlib import Path
from rankbench.project.run import open_run
from rankbench.project.start import begin
run = open_run({"experiment": sys.argv[1]}, profile=Path(sys.argv[2]), write=False)
begin(run)
"""
JOB = ("salloc", "--quiet", "--nodes=8", "--ntasks-per-node=1", "--exclusive")


@dataclass(frozen=True)
class Combination:
    """A link and a model."""

    link: int
    size: float

    @property
    def name(self) -> str:
        return f"link{self.link}-mib{self.size:g}"

    def text(self, launches: int) -> str:
        between = MORE if self.size == SIZES[0] else ""
        return EXPERIMENT.format(
            name=self.name, size=self.size, launches=launches, between=between
        )


COMBINATIONS = [Combination(link, size) for size in SIZES for link in LINKS]


def measure(kept: Path, chosen: Sequence[Combination], launches: int) -> None:
    """Measure what is missing of these combinations."""
    from pretend_login import give, pretend_login

    first = chosen[0]
    with pretend_login(
        first.text(launches), first.name, hosts=MOST, keep=kept
    ) as login:
        for one in chosen:
            (login.home / f"{one.name}.yaml").write_text(one.text(launches))
            give(login.home)
            for host in login.cluster.hosts.values():
                host.slow(f"{one.link}mbit")
            begun = time.monotonic()
            profile = str(login.home / "slurm_profile")
            login.run(sys.executable, "-c", BEGIN, f"{one.name}.yaml", profile)
            login.run(
                *(*JOB, "--time=600", sys.executable, "-m", "rankbench.launch"),
                *("job", f"results/{one.name}", "experiment"),
            )
            print(f"{one.name}: {time.monotonic() - begun:.0f} s", flush=True)


@dataclass(frozen=True)
class Foreseen:
    """A prediction and what was measured; steps in milliseconds, rates in samples/s."""

    combination: Combination
    strategy: str
    hosts: int
    method: str
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Of the step, relative to the measured one."""
        return self.measured / self.predicted - 1

    @property
    def holds(self) -> bool:
        return self.low <= self.measured <= self.high


def foresee(kept: Path, one: Combination) -> Iterator[Foreseen]:
    """Predict what was measured on more than three hosts from up to three."""
    from rankbench.cell import Shape, Topology
    from rankbench.plan import PredictedCell
    from rankbench.record import Layout
    from rankbench.results.numbers.result_set import read
    from rankbench.results.prediction.predict import predict

    results = kept / "results" / one.name
    if not (results / "plan.json").exists():
        return
    found = read(Layout(results)).measured
    hosts = {s.id: Topology.parse(s.cell.topology).nodes for s in found}
    known = [one for one in found if hosts[one.id] <= FITTED]
    for summary in found:
        if hosts[summary.id] <= FITTED:
            continue
        row = summary
        shape = Shape(**row.launches[0].record["shape"])
        target = PredictedCell(id=row.id, cell=row.cell, shape=shape, infeasible=None)
        (made,) = predict(known, [target])
        if made.throughput is None:
            print(f"{row.id}: {made.refused}", file=sys.stderr)
            continue
        low, high = made.throughput.interval or (0.0, 0.0)
        options = row.cell.options
        named = " small buckets" if options.get("bucket_mb") == 0.5 else ""
        yield Foreseen(
            one,
            row.cell.strategy + named,
            hosts[row.id],
            made.method,
            summary.numbers["throughput"].value,
            made.throughput.value,
            low,
            high,
        )


def show_points(points: Sequence[Foreseen]) -> None:
    """Print each point, and how many intervals hold."""
    print(
        "| link | model | strategy | hosts | measured/s | predicted/s | step off by |"
    )
    print("| --: | --: | --- | --: | --: | --- | --: |")
    for one in points:
        said = f"{one.predicted:.1f} [{one.low:.1f}, {one.high:.1f}]"
        print(
            f"| {one.combination.link} Mbit/s | {one.combination.size:g} MiB "
            f"| {one.strategy} | {one.hosts} | {one.measured:.1f} "
            f"| {said}{'' if one.holds else ' misses'} | {100 * one.error:+.1f} % |"
        )
    off = 100 * float(np.mean([abs(one.error) for one in points]))
    held = sum(one.holds for one in points)
    width = float(np.mean([one.high / one.low for one in points]))
    print(
        f"\nmean absolute error of the step {off:.1f} %; {held} of {len(points)} "
        f"intervals hold; mean of their upper over their lower end {width:.2f}\n"
    )


def show_choices(points: Sequence[Foreseen]) -> None:
    """Print the choice of the fastest variant at most hosts, for each combination."""
    print("| link | model | chosen | its share of the best | said |")
    print("| --: | --: | --- | --: | --- |")
    good = told = count = 0
    for combination in dict.fromkeys(one.combination for one in points):
        own = [o for o in points if o.combination == combination and o.hosts == MOST]
        if len(own) < 2:
            continue
        count += 1
        chosen = max(own, key=lambda one: one.predicted)
        share = chosen.measured / max(one.measured for one in own)
        clear = all(one.high < chosen.low for one in own if one is not chosen)
        good += share >= 0.95
        told += clear
        print(
            f"| {combination.link} Mbit/s | {combination.size:g} MiB "
            f"| {chosen.strategy} | {share:.3f} | "
            f"{'the fastest' if clear else 'cannot tell'} |"
        )
    print(
        f"\n{good} of {count} choices are within 5 % of the best; {told} were certain"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, default=KEPT, help="folder of the results")
    parser.add_argument("--launches", type=int, default=3, help="of each cell")
    parser.add_argument("--only", nargs="+", help="names of combinations: link100-mib2")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    names = [one.name for one in COMBINATIONS]
    for name in arguments.only or ():
        if name not in names:
            parser.error(f"{name} is none of {', '.join(names)}")
    chosen = [
        one for one in COMBINATIONS if not arguments.only or one.name in arguments.only
    ]
    kept = arguments.keep.absolute()
    if not arguments.show:
        if os.geteuid() != 0:
            parser.error("a pretend cluster needs root; --show does not")
        measure(kept, chosen, arguments.launches)
    points = [point for one in chosen for point in foresee(kept, one)]
    if not points:
        parser.error(f"nothing is measured in {kept}")
    wide = {one.combination for one in points if one.hosts in BETWEEN}
    first = [o for o in points if o.combination in wide and o.strategy in WIDE]
    if first:
        show_points(first)
    show_points(points)
    show_choices(points)


if __name__ == "__main__":
    main()
