"""Runs a strategy on ranks of its own, for the contract tests: imported by children."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
from ranks import start_ranks
from torch import distributed, nn

from factories import make_cell
from rankbench.environ import Place
from rankbench.rank.strategies import find_strategy, runtime_of
from rankbench.rank.strategies.base import World
from rankbench.rank.training.loop import Course, train
from rankbench.rank.world.devices import find_runtime
from rankbench.rank.world.lifeline import Progress

SAMPLES, FEATURES, CLASSES = 64, 20, 5
# The gradients are so large that a library that clips them by default is noticed.
LOUD = 100


def run_on_ranks(
    folder: Path,
    strategy: str,
    ranks: int,
    *,
    backend: str,
    options: dict[str, Any],
    steps: int = 6,
    devices: int = 1,
    replica_ranks: int = 1,
    plant: str | None = None,
    delay: float = 0.0,
) -> list[dict[str, Any]]:
    """Train a small model, in float64 if it can be; what each rank reports, by rank."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "progress").mkdir(exist_ok=True)
    arguments = (
        folder, strategy, ranks, backend, options, steps, devices,
        replica_ranks, plant, delay,
    )  # fmt: skip
    start_ranks(_be_rank, arguments, ranks)
    return [
        torch.load(folder / f"rank{rank}.pt", weights_only=True)
        for rank in range(ranks)
    ]


def _be_rank(
    rank: int,
    folder: Path,
    strategy: str,
    ranks: int,
    backend: str,
    options: dict[str, Any],
    steps: int,
    devices: int,
    replica_ranks: int,
    plant: str | None,
    delay: float,
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    os.environ["DS_ACCELERATOR"] = "cpu"
    cpu = torch.device("cpu")
    runtime = find_runtime(runtime_of(strategy))
    if backend != "none":
        place = Place(rank=rank, size=ranks, local_rank=rank, local_size=ranks, node=0)
        runtime.join(backend, place, f"file://{folder}/store", cpu)
    world = World(
        rank=rank,
        size=ranks,
        local_rank=rank,
        device=cpu,
        devices=(cpu,) * devices,
        backend=backend,
        rank_batch=SAMPLES * replica_ranks // ranks,
    )
    criterion = nn.CrossEntropyLoss()
    trained = find_strategy(strategy)(
        world,
        lambda model, batch: LOUD * criterion(model(batch[0]), batch[1]),
        **options,
    )
    torch.manual_seed(0)
    model = planted_model(delay / 2) if plant == "overlapped" else small_model()
    dtype = getattr(torch, trained.exact_dtype)
    trained.setup(model.to(dtype), make_optimizer)
    if plant:
        hook = {"exposed": _exposed_delay, "overlapped": _overlapped_delay}[plant]
        trained.model.register_comm_hook(delay, hook)
    course = Course(
        cell=make_cell(),
        strategy=trained,
        batches=iter(batches(rank // replica_ranks, ranks // replica_ranks, dtype)),
        runtime=runtime,
        progress=Progress(folder / "progress", rank),
    )
    window = train(course, warmup=2, steps=steps)
    weights = trained.state_dict()
    report = {
        "loss": None if window.loss is None else torch.tensor(window.loss),
        "seconds": torch.tensor(window.seconds),
        "window_s": window.window_s,
        "samples": window.samples,
        "details": trained.details(),
        "weights": {name: value.double() for name, value in weights.items()},
    }
    torch.save(report, folder / f"rank{rank}.pt")
    runtime.leave()


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1 / LOUD, momentum=0.9)


def small_model() -> nn.Module:
    """No normalisation over the batch, so that splitting a batch changes nothing.

    The block has two heads of attention, for strategies that split layers.
    """
    return nn.Sequential(
        nn.Linear(FEATURES, 32),
        nn.Unflatten(1, (4, 8)),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def planted_model(seconds: float) -> nn.Module:
    """Backward takes so long between the gradients of the first bucket and the last.

    DDP's first bucket is full at 1 MiB: the two upper layers.
    """
    wide = 512
    return nn.Sequential(
        nn.Linear(FEATURES, wide),
        _SleepInBackward(seconds),
        nn.Linear(wide, wide),
        nn.Linear(wide, CLASSES),
    )


class _SleepInBackward(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Sleep.apply(x, self.seconds)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return grad, None


def batches(rank: int, ranks: int, dtype: torch.dtype):
    """Every rank's share of the same global batches."""
    generator = torch.Generator().manual_seed(1)
    while True:
        images = torch.randn(
            SAMPLES, FEATURES, generator=generator, dtype=torch.float64
        )
        labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
        yield images[rank::ranks].to(dtype), labels[rank::ranks]


def _all_reduce_mean(bucket: Any) -> torch.futures.Future:
    size = distributed.get_world_size()
    work = distributed.all_reduce(bucket.buffer().div_(size), async_op=True)
    return work.get_future()


# DDP checks the annotations of a hook, which must not be text: so they have none.
def _exposed_delay(delay, bucket):
    """Waits when the last bucket is ready: nothing is left to hide it behind."""
    if bucket.is_last():
        time.sleep(delay)
    return _all_reduce_mean(bucket).then(lambda done: done.value()[0])


def _overlapped_delay(delay, bucket):
    """The first bucket's communication takes so long, while backward goes on."""
    if bucket.index() > 0:
        return _all_reduce_mean(bucket).then(lambda done: done.value()[0])
    # The hook starts the collective at once, so that all ranks call collectives in the
    # same order.
    reduced = _all_reduce_mean(bucket)
    late: torch.futures.Future = torch.futures.Future()

    def finish() -> None:
        time.sleep(delay)
        late.set_result(reduced.wait()[0])

    threading.Thread(target=finish).start()
    return late
