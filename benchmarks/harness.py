"""The time of a step in the harness, compared with a bare training loop.

Both train the same model on the same stream of batches, in the same processes, in
alternating blocks, so that disturbances of the machine affect both. (Two models in one
process would differ by up to 10 %, because of where their memory is; that is not
overhead.) The step time of a block is the median over its steps of the slowest rank's
time; on a GPU it is the time of the block over its steps. The result of a launch is the
median ratio of its pairs of blocks, and the interval is over launches.

    python benchmarks/harness.py            # single and ddp on 2 ranks
    python benchmarks/harness.py --strategy fsdp --ranks 1 --cell "device: cuda" \\
        "backend: nccl" "model: resnet50" "image_size: 224" "precision: bf16"
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pairs import report

from rankbench.cell import Cell, Shape
from rankbench.matrix.candidate import shape_of
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment

BLOCK = 22  # steps of a block: one epoch of digits with batches of 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=10, help="pairs per launch")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--strategy", nargs="+", default=["single", "ddp"])
    parser.add_argument("--ranks", type=int, default=2, help="of all but single")
    parser.add_argument("--cell", nargs="+", default=[], metavar="KEY: VALUE")
    parser.add_argument("--json", type=Path, help="a file for the results as well")
    arguments = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for strategy in arguments.strategy:
        ranks = 1 if strategy == "single" else arguments.ranks
        cell = make_cell(strategy, ranks, arguments.cell)
        launches = [
            launch(cell, arguments.pairs, arguments.data)
            for _ in range(arguments.launches)
        ]
        ratios = [
            statistics.median(a / b for a, b in zip(*pair, strict=True))
            for pair in launches
        ]
        found[strategy] = {
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "harness_ms": [statistics.median(harness) for harness, _ in launches],
            "bare_ms": [statistics.median(bare) for _, bare in launches],
            "samples": cell.batch_size * ranks,
        }
        report(
            f"{strategy}, {ranks} rank{'s' if ranks > 1 else ''}: harness over bare",
            found[strategy]["harness_ms"],
            found[strategy]["bare_ms"],
            unit="ms",
            ratios=ratios,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


def make_cell(strategy: str, ranks: int, given: list[str]) -> Cell:
    """A cell of the strategy with everything else as the experiment's defaults."""
    lines = ["name: harness", f"strategy: {strategy}", f"topology: 1x{ranks}", *given]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "harness.yaml"
        path.write_text("\n".join([*lines, f"steps: {BLOCK}", "warmup: 0"]))
        (cell,) = load_experiment(path, load_catalog(), cuda=False).cells.values()
    return cell


def launch(cell: Cell, pairs: int, data: Path) -> tuple[list[float], list[float]]:
    """Run a launch; return the step time of each block in ms: (harness, bare)."""
    shape = shape_of(cell, load_catalog().strategies[cell.strategy])
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / ".cell.json"
        spec.write_text(json.dumps([cell.to_dict(), shape.to_dict()]))
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={shape.ranks}", __file__, "--rank", str(spec)),
            *("--pairs", str(pairs), "--data", str(data), "--out", folder),
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, check=True, env=env)
        reports = sorted(Path(folder).glob("rank*.json"))
        blocks = [json.loads(path.read_text()) for path in reports]
    return (
        _slowest([b["harness"] for b in blocks]),
        _slowest([b["bare"] for b in blocks]),
    )


def _slowest(ranks: list[list[list[float]]]) -> list[float]:
    """Step time of each block: median over steps of the slowest rank's time, in ms."""
    return [
        statistics.median(max(steps) * 1e3 for steps in zip(*block, strict=True))
        for block in zip(*ranks, strict=True)
    ]


def be_rank(spec: Path, pairs: int, data_dir: Path, out: Path) -> None:
    """Run one rank: alternate blocks of the bare loop and of the harness."""
    from rankbench.environ import choose_cores, physical_cores, pin, read_place

    fields, numbers = json.loads(spec.read_text())
    cell, shape, place = Cell.from_dict(fields), Shape(**numbers), read_place()
    if cell.device == "cpu":
        pin(choose_cores(place.local_rank, 1, physical_cores()))
    import torch

    from rankbench.launch_spec import LaunchSpec
    from rankbench.rank.purposes.setup import set_up
    from rankbench.rank.training.loop import train
    from rankbench.rank.world.lifeline import Duty, Progress

    (out / ".progress").mkdir(exist_ok=True)
    progress = Progress(out / ".progress", place.rank)
    launch = LaunchSpec(
        directory=out,
        cell=cell,
        shape=shape,
        data_dir=data_dir,
        threads=1,
        heartbeat_grace=60.0,
    )
    duty = Duty(
        spec=launch,
        place=place,
        init_method="env://",
        affinity=os.sched_getaffinity(0),
        progress=progress,
    )
    course, *_ = set_up(duty)
    strategy, world, batches = course.strategy, course.strategy.world, course.batches
    on_gpu = world.device.type == "cuda"

    def harness_block() -> list[float]:
        if hasattr(strategy, "_watch_gradients"):
            strategy._watch_gradients()
        course.losses.clear()
        window = train(course, warmup=0, steps=BLOCK)
        forget_hooks(strategy)
        if on_gpu:
            return [window.window_s / BLOCK]
        return [float(step) for step in window.seconds.sum(axis=1)]

    bare_step = make_bare_step(strategy, cell)
    forget_hooks(strategy)

    def bare_block() -> list[float]:
        course.wait()
        seconds = []
        whole = time.perf_counter()
        for _ in range(BLOCK):
            begun = time.perf_counter()
            inputs, targets = next(batches)
            bare_step(
                inputs.to(
                    world.device,
                    non_blocking=cell.non_blocking,
                    memory_format=course.memory_format,
                ),
                targets.to(world.device, non_blocking=cell.non_blocking),
            )
            seconds.append(time.perf_counter() - begun)
        if not on_gpu:
            return seconds
        torch.cuda.synchronize()
        return [(time.perf_counter() - whole) / BLOCK]

    blocks: dict[str, list[list[float]]] = {"harness": [], "bare": []}
    kinds = [("harness", harness_block), ("bare", bare_block)]
    for _, block in kinds:
        block()  # warm-up
    for pair in range(pairs):
        for name, block in kinds if pair % 2 else kinds[::-1]:
            blocks[name].append(block())
    (out / f"rank{place.rank}.json").write_text(json.dumps(blocks))
    course.runtime.leave()


def make_bare_step(strategy: Any, cell: Cell) -> Callable[[Any, Any], None]:
    """A step as in a plain training script."""
    from torch import nn

    criterion = nn.CrossEntropyLoss()
    if cell.strategy == "deepspeed":
        engine = strategy.engine
        dtype = strategy.low_dtype

        def deepspeed_step(inputs: Any, targets: Any) -> None:
            scores = engine(
                inputs.to(dtype) if inputs.is_floating_point() and dtype else inputs
            )
            loss = criterion(scores.flatten(0, -2), targets.flatten())
            engine.backward(loss)
            engine.step()

        return deepspeed_step
    model, optimizer = strategy.model, strategy.optimizer
    arithmetic = strategy.arithmetic

    def step(inputs: Any, targets: Any) -> None:
        with arithmetic():
            loss = criterion(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def forget_hooks(strategy: Any) -> None:
    """Remove what DDP's phases are measured by; the bare loop has none."""
    for hook in getattr(strategy, "_hooks", {}).values():
        hook.remove()


if __name__ == "__main__":
    if "--rank" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rank", type=Path, required=True)
        parser.add_argument("--pairs", type=int, required=True)
        parser.add_argument("--data", type=Path, required=True)
        parser.add_argument("--out", type=Path, required=True)
        chosen = parser.parse_args()
        be_rank(chosen.rank, chosen.pairs, chosen.data, chosen.out)
    else:
        main()
