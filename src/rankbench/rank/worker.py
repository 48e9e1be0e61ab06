"""From a cell to a rank's report: set up, train, evaluate, write."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from rankbench.cell import Cell, Shape
from rankbench.environ import Place
from rankbench.rank import data, facts, memory, models
from rankbench.rank.evaluate import evaluate
from rankbench.rank.loading import Batches
from rankbench.rank.progress import EVALUATION, SET_UP, THE_END, Progress
from rankbench.rank.strategies import find_strategy
from rankbench.rank.strategies.base import Batch, ComputeLoss, MakeOptimizer, World
from rankbench.rank.train import Measured, train
from rankbench.record import write_json


def measure(
    cell: Cell,
    shape: Shape,
    place: Place,
    *,
    phases: list[str],
    work: Path,
    data_dir: Path,
    threads: int,
    cores: list[int],
    affinity: set[int],
    process_age: Callable[[], float],
    progress: Progress,
) -> None:
    """Measure the cell and write this rank's report into `work`."""
    progress.enter(SET_UP)
    torch.set_num_threads(threads)
    imported = process_age()
    world = join_world(cell, shape, place)
    set_precision(cell.precision)
    train_set, test_set, classes = data.load(
        cell.data,
        data_dir,
        channels=cell.channels,
        image_size=cell.image_size,
        augment=cell.augment,
        seed=cell.seed,
    )
    channels, image_size = train_set[0][0].shape[:2]
    memory.reset_peaks(world.device)

    def build_model() -> nn.Module:
        torch.manual_seed(cell.seed)
        model = models.build(
            cell.model, channels=channels, image_size=image_size, classes=classes
        )
        return model.to(world.device)

    strategy = find_strategy(cell.strategy)(
        world, make_loss(cell.precision, world.device), **cell.options
    )
    strategy.setup(build_model(), optimizer_maker(cell))
    # What is random while training (augmentation, dropout) differs between ranks.
    torch.manual_seed(cell.seed * 1_000_003 + place.rank)
    batches = Batches(
        train_set,
        rank=place.rank,
        ranks=shape.ranks,
        rank_batch=shape.rank_batch,
        seed=cell.seed,
        num_workers=cell.num_workers,
        pin_memory=cell.pin_memory,
        worker_cpus=affinity,
    )
    steps = cell.steps or cell.epochs * batches.steps_per_epoch  # type: ignore[operator]
    ready = process_age()
    measured = train(
        strategy,
        iter(batches),
        device=world.device,
        phases=phases,
        warmup=cell.warmup,
        steps=steps,
        non_blocking=cell.non_blocking,
        barrier=barrier,
        progress=progress,
    )
    peaks = memory.read_peaks(world.device)

    progress.enter(EVALUATION)
    trained = process_age()
    accuracy = None
    if cell.evaluate:
        weights = strategy.state_dict()
        if place.rank == 0:
            model = build_model()
            model.load_state_dict(weights)
            accuracy = evaluate(model, test_set, classes=classes, device=world.device)
    evaluated = process_age()

    seconds = {
        "startup": imported,
        "setup": ready - imported,
        "warmup": measured.warmup_s,
        "train": measured.window_s,
        "evaluate": evaluated - trained,
    }
    rank = {
        "rank": place.rank,
        "local_rank": place.local_rank,
        "node": place.node,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "device": str(world.device),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "window_s": measured.window_s,
        "samples": measured.samples,
        "samples_seen": measured.samples + cell.warmup * shape.rank_batch,
        "memory": peaks,
        "epochs_s": epoch_seconds(measured.seconds, batches.steps_per_epoch),
    }
    np.savez(
        work / f"rank{place.rank}.npz",
        seconds=measured.seconds,
        warmup=measured.warmup,
        host_start=measured.host_start,
        loss=measured.loss,
    )
    report = {
        "rank": rank,
        "phases": phases,
        "steps": steps,
        "steps_per_epoch": batches.steps_per_epoch,
        "warmup": cell.warmup,
        "loss": loss_ends(measured, cell.warmup),
        "accuracy": accuracy,
        "host": facts.describe_host(),
        "software": facts.describe_software(),
        "transport": describe_transport(world),
    }
    write_json(work / f"rank{place.rank}.json", report)
    progress.enter(THE_END)
    if distributed.is_initialized():
        # Rank 0 evaluates last: the others must not take its store away.
        barrier()
        distributed.destroy_process_group()


def join_world(cell: Cell, shape: Shape, place: Place) -> World:
    """Choose this rank's devices and join the process group, if there is one."""
    if cell.device == "cuda":
        present = torch.cuda.device_count()
        first = place.local_rank * shape.devices_per_rank
        # With more ranks than GPUs they share them in turn (a marked row).
        devices = tuple(
            torch.device("cuda", (first + i) % present)
            for i in range(shape.devices_per_rank)
        )
        torch.cuda.set_device(devices[0])
    else:
        devices = (torch.device("cpu"),)
    if cell.backend != "none":
        device_id = devices[0] if cell.backend == "nccl" else None
        distributed.init_process_group(cell.backend, device_id=device_id)
    return World(
        rank=place.rank,
        size=place.size,
        local_rank=place.local_rank,
        device=devices[0],
        devices=devices,
        backend=cell.backend,
    )


def barrier() -> None:
    """All ranks go on together, and no device has work left from before."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    if distributed.is_initialized():
        distributed.barrier()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def set_precision(precision: str) -> None:
    """Let float32 be float32, unless tf32 is asked for."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def make_loss(precision: str, device: torch.device) -> ComputeLoss:
    """Cross entropy of a model on a batch, in the precision of the cell."""
    criterion = nn.CrossEntropyLoss()

    def compute_loss(model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        casting = (
            torch.autocast(device.type, dtype=torch.bfloat16)
            if precision == "bf16"
            else nullcontext()
        )
        with casting:
            loss: Tensor = criterion(model(images), labels)
        return loss

    return compute_loss


def optimizer_maker(cell: Cell) -> MakeOptimizer:
    """The optimizer of the cell, still without parameters."""
    kinds: dict[str, type[torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    chosen: dict[str, Any] = {
        "lr": cell.learning_rate,
        "weight_decay": cell.weight_decay,
    }
    if cell.optimizer == "sgd":
        chosen["momentum"] = cell.momentum
    return partial(kinds[cell.optimizer], **chosen)


def epoch_seconds(seconds: np.ndarray, steps_per_epoch: int) -> list[float]:
    """Seconds of each whole epoch within the window."""
    steps = seconds.sum(axis=1)
    whole = len(steps) // steps_per_epoch
    epochs = steps[: whole * steps_per_epoch].reshape(whole, steps_per_epoch)
    return [float(value) for value in epochs.sum(axis=1)]


def loss_ends(measured: Measured, warmup: int) -> dict[str, float | None]:
    """Loss of the first and the last timed step; None where it is not a number."""
    window = measured.loss[warmup:]
    ends = {"first": float(window[0]), "last": float(window[-1])}
    return {end: loss if math.isfinite(loss) else None for end, loss in ends.items()}


def describe_transport(world: World) -> dict[str, Any] | None:
    """What carries the bytes, as far as it was asked for."""
    if world.backend == "none":
        return None
    prefixes = ("GLOO_", "NCCL_", "UCX_", "FI_")
    asked = {k: v for k, v in os.environ.items() if k.startswith(prefixes)}
    return {"backend": world.backend, "asked": dict(sorted(asked.items()))}
