"""The time of a pipeline step, compared with the time that its stages need.

There are two stages on two ranks, micro-batches of a fixed size, and a model that
computes much and sends little. In a pipeline without overhead, M micro-batches take the
sum of the stage times plus M-1 times the slowest stage time. The stage times are taken
from the same step, so that changes in the machine's speed do not count as overhead.
Forward and backward are compared separately. The result of a launch is the median ratio
of its steps, and the interval is over launches. The bubble is the share of a step in
which a rank waits; it is printed together with its ideal value. All that is for the
schedule gpipe. The bubbles of other schedules are compared with that of 1f1b: of the
same model, and with 8 micro-batches, in turn within a launch.

    python benchmarks/pipeline.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pairs import report

COUNTS = (2, 4, 8, 16)
MICROBATCH, WIDTH, LAYERS = 256, 1024, 5
SENT = 64  # number of features per sample that a stage sends to the next
WARMUP = 2

M = 8
# The last two have two stages on each rank.
SCHEDULES = ("1f1b", "zero-bubble", "zbv")

Span = tuple[float, float]
# For each step, kind of work -> when it was done, in seconds of the host's clock.
Steps = list[dict[str, list[Span]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5, help="steps per launch and M")
    arguments = parser.parse_args()
    launches = [launch(arguments.steps) for _ in range(arguments.launches)]
    for count in COUNTS:
        told = [
            [judge(*both) for both in zip(*one[f"gpipe {count}"], strict=True)]
            for one in launches
        ]
        for way in ("forward", "backward"):
            report(
                f"M = {count:2}, {way}: step over stage times",
                [median_of(steps, way, "taken") for steps in told],
                [median_of(steps, way, "needed") for steps in told],
                unit="ms",
                ratios=[median_of(steps, way, "ratio") for steps in told],
            )
        bubble = statistics.median(
            statistics.median(step["bubble"] for step in steps) for steps in told
        )
        print(f"M = {count:2}, bubble: {bubble:.3f}, ideal {1 / (count + 1):.3f}")
    bubbles = {
        name: [
            statistics.median(map(bubble_of, *one[f"{name} {M}"])) for one in launches
        ]
        for name in SCHEDULES
    }
    for name in SCHEDULES[1:]:
        report(
            f"bubble of {name} over 1f1b, M = {M}",
            bubbles[name],
            bubbles[SCHEDULES[0]],
            unit="of a step",
        )


def median_of(steps: Sequence[dict[str, Any]], way: str, what: str) -> float:
    return statistics.median(step[way][what] for step in steps)


def launch(steps: int) -> dict[str, list[Steps]]:
    """Run a launch: schedule and number of micro-batches -> steps of both ranks."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=2", __file__, "--rank", "--steps", str(steps)),
            *("--out", folder),
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, check=True, env=env)
        ranks = [json.loads(p.read_text()) for p in sorted(Path(folder).iterdir())]
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}


def bubble_of(*ranks: dict[str, list[Span]]) -> float:
    """The share of a step in which a rank waits, as the mean over the ranks."""
    spans = [[span for kind in rank.values() for span in kind] for rank in ranks]
    every = [time for rank in spans for span in rank for time in span]
    return 1 - sum(map(busy, spans)) / len(spans) / (max(every) - min(every))


def judge(first: dict[str, list[Span]], last: dict[str, list[Span]]) -> dict[str, Any]:
    """The time that a step took, and the time that its stages needed.

    The times of both ranks can be compared, because they are on one host.
    """
    count = len(first["forward"])
    # The last stage computes the loss as well.
    forward = [busy(first["forward"]), busy(last["forward"]) + busy(last["loss"])]
    backward = [busy(first["backward"]), busy(last["backward"])]
    taken = {
        "forward": last["loss"][-1][1] - first["forward"][0][0],
        "backward": first["backward"][-1][1] - last["backward"][0][0],
    }
    needed = {
        way: (sum(stages) + (count - 1) * max(stages)) / count
        for way, stages in (("forward", forward), ("backward", backward))
    }
    return {
        "bubble": bubble_of(first, last),
        **{
            way: {
                "taken": 1e3 * taken[way],
                "needed": 1e3 * needed[way],
                "ratio": taken[way] / needed[way],
            }
            for way in taken
        },
    }


def busy(spans: Sequence[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def be_rank(steps: int, out: Path) -> None:
    """Run one rank: for each schedule, time the work of its stages."""
    from rankbench.environ import choose_cores, physical_cores, pin, read_place

    place = read_place()
    pin(choose_cores(place.local_rank, 1, physical_cores()))
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    spans = {}
    for count in COUNTS:
        spans[f"gpipe {count}"] = time_steps(place, "gpipe", count, 1, steps)
    for name in SCHEDULES:
        spans[f"{name} {M}"] = time_steps(place, name, M, 2, steps)
    (out / f"rank{place.rank}.json").write_text(json.dumps(spans))
    distributed.destroy_process_group()


def time_steps(place: Any, schedule: str, count: int, parts: int, steps: int) -> Steps:
    """Time the stages of this rank in steps of this many micro-batches.

    parts: of the model, for each rank.
    """
    import torch
    from torch import distributed, nn

    from rankbench.rank.strategies._pipeline import Stopwatch
    from rankbench.rank.strategies.base import World
    from rankbench.rank.strategies.pipeline import Pipeline
    from rankbench.rank.training.recipe import make_loss

    cpu = torch.device("cpu")
    samples, number = count * MICROBATCH, parts * place.size
    strategy = Pipeline(
        World(
            *(place.rank, place.size, place.local_rank, cpu, (cpu,), "gloo"),
            rank_batch=samples,
        ),
        make_loss("fp32", cpu),
        schedule=schedule,
        microbatches=count,
        virtual_stages=2,
        balance="parameters",
    )
    torch.manual_seed(0)
    widths = [SENT, *[WIDTH] * (LAYERS - 1), SENT]
    model = nn.Sequential(
        *(
            nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))
            for _ in range(number)
        )
    )
    strategy.setup(model, lambda p: torch.optim.SGD(p, lr=1e-3))
    batch = (torch.rand(samples, SENT), torch.randint(SENT, (samples,)))
    spans: Steps = []
    for step in range(WARMUP + steps):
        if step:
            watch = Stopwatch(cpu)
            for stage in strategy.stages:
                stage.watch = watch
        distributed.barrier()
        strategy.step(batch, lambda _phase: None)
        if step >= WARMUP:
            spans.append(watch.spans)
    return spans


if __name__ == "__main__":
    if "--rank" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rank", action="store_true")
        parser.add_argument("--steps", type=int, required=True)
        parser.add_argument("--out", type=Path, required=True)
        chosen = parser.parse_args()
        be_rank(chosen.steps, chosen.out)
    else:
        main()
