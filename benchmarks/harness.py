"""The time of a step in the harness, compared with the bare training loop below.

Both train the same model on the same stream of batches, in the same processes, in
alternating blocks, so that disturbances of the machine affect both. (Two models in one
process would differ by up to 10 %, because of where their memory is; that is not
overhead.) The step time of a block is the median over its steps of the slowest rank's
time. The result of a launch is the median ratio of its pairs of blocks, and the
interval is over launches.

    python benchmarks/harness.py            # single and ddp on 2 ranks
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
from pathlib import Path

from pairs import report

BLOCK = 22  # steps of a block: one epoch of digits with batches of 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=10, help="pairs per launch")
    parser.add_argument("--data", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    for strategy, ranks in (("single", 1), ("ddp", 2)):
        launches = [
            launch(strategy, ranks, arguments.pairs, arguments.data)
            for _ in range(arguments.launches)
        ]
        report(
            f"{strategy}, {ranks} rank{'s' if ranks > 1 else ''}: harness over bare",
            [statistics.median(harness) for harness, _ in launches],
            [statistics.median(bare) for _, bare in launches],
            unit="ms",
            ratios=[
                statistics.median(a / b for a, b in zip(*pair, strict=True))
                for pair in launches
            ],
        )


def launch(
    strategy: str, ranks: int, pairs: int, data: Path
) -> tuple[list[float], list[float]]:
    """Run a launch; return the step time of each block in ms: (harness, bare)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={ranks}", __file__, "--rank", strategy),
            *("--pairs", str(pairs), "--data", str(data), "--out", folder),
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, check=True, env=env)
        blocks = [json.loads(p.read_text()) for p in sorted(Path(folder).iterdir())]
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


def be_rank(strategy_name: str, pairs: int, data_dir: Path, out: Path) -> None:
    """Run one rank: alternate blocks of the bare loop and of the harness."""
    from rankbench.cores import physical_cores
    from rankbench.environ import read_place
    from rankbench.rank.joining.placement import choose_cores, pin

    place = read_place()
    pin(choose_cores(place.local_rank, 1, physical_cores()))
    import torch
    from torch import distributed, nn

    from rankbench.rank import data, models
    from rankbench.rank.lifeline.progress import Progress
    from rankbench.rank.strategies import find_strategy
    from rankbench.rank.strategies.base import World
    from rankbench.rank.training.batches import Batches
    from rankbench.rank.training.loop import train
    from rankbench.rank.training.recipe import make_loss

    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    parallel = strategy_name == "ddp"
    if parallel:
        distributed.init_process_group("gloo")
    train_set, _, classes = data.load("digits", data_dir)

    batches = iter(
        Batches(
            train_set,
            rank=place.rank,
            ranks=place.size,
            rank_batch=64,
            seed=0,
            num_workers=0,
            pin_memory=False,
            worker_cpus=set(),
        )
    )
    world = World(place.rank, place.size, place.local_rank, cpu, (cpu,), "gloo", 64)
    kind = find_strategy(strategy_name)
    options = {name: rule["default"] for name, rule in kind.options.items()}
    strategy = kind(world, make_loss("fp32", cpu), **options)
    torch.manual_seed(0)
    model = models.build("convnet", channels=1, image_size=28, classes=classes)
    strategy.setup(model, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9))
    phases = ["load", "transfer", *kind.phases]
    (out / ".progress").mkdir(exist_ok=True)
    progress = Progress(out / ".progress", place.rank)

    def barrier() -> None:
        if parallel:
            distributed.barrier()

    def harness_block() -> list[float]:
        if parallel:
            strategy._watch_gradients()
        measured = train(
            strategy,
            batches,
            devices=(cpu,),
            phases=phases,
            warmup=0,
            steps=BLOCK,
            non_blocking=False,
            barrier=barrier,
            progress=progress,
        )
        for hook in getattr(strategy, "_hooks", {}).values():
            hook.remove()
        return [float(step) for step in measured.seconds.sum(axis=1)]

    # The bare loop, as in a plain training script.
    model, optimizer = strategy.model, strategy.optimizer
    criterion = nn.CrossEntropyLoss()
    for hook in getattr(strategy, "_hooks", {}).values():
        hook.remove()

    def bare_block() -> list[float]:
        barrier()
        seconds = []
        for _ in range(BLOCK):
            begun = time.perf_counter()
            images, labels = next(batches)
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - begun)
        return seconds

    blocks: dict[str, list[list[float]]] = {"harness": [], "bare": []}
    kinds = [("harness", harness_block), ("bare", bare_block)]
    for _, block in kinds:
        block()  # warm-up
    for pair in range(pairs):
        for name, block in kinds if pair % 2 else kinds[::-1]:
            blocks[name].append(block())
    (out / f"rank{place.rank}.json").write_text(json.dumps(blocks))
    if parallel:
        distributed.destroy_process_group()


if __name__ == "__main__":
    if "--rank" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rank", required=True)
        parser.add_argument("--pairs", type=int, required=True)
        parser.add_argument("--data", type=Path, required=True)
        parser.add_argument("--out", type=Path, required=True)
        chosen = parser.parse_args()
        be_rank(chosen.rank, chosen.pairs, chosen.data, chosen.out)
    else:
        main()
