"""From a cell to a rank's report: set up, train, evaluate, write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankbench.cell import Cell, Shape
from rankbench.environ import Place
from rankbench.rank import data, memory, models
from rankbench.rank.evaluate import evaluate
from rankbench.rank.loading import Batches
from rankbench.rank.progress import EVALUATION, SET_UP, THE_END, Progress
from rankbench.rank.recipe import (
    make_loss,
    make_scaler,
    optimizer_maker,
    prepare_model,
    set_precision,
)
from rankbench.rank.report import write_report
from rankbench.rank.runtimes import find_runtime
from rankbench.rank.strategies import find_strategy, runtime_of
from rankbench.rank.strategies.base import Strategy, World
from rankbench.rank.train import train
from rankbench.rank.world import join_world, leave_world, wait_for_all


@dataclass(frozen=True, kw_only=True)
class Duty:
    """What one rank has to do, and with what.

    Attributes:
        init_method: URL at which the ranks meet.
        phases: phases of a step, in their order.
        work: folder of the launch for reports and progress.
        data_dir: folder of the prepared data sets.
        threads: CPU threads of this rank.
        cores: CPUs that it is pinned to.
        affinity: CPUs that it was given; loader processes may use them all.
        process_age: seconds since this process was created.
    """

    cell: Cell
    shape: Shape
    place: Place
    init_method: str
    phases: list[str]
    work: Path
    data_dir: Path
    threads: int
    cores: list[int]
    affinity: set[int]
    process_age: Callable[[], float]
    progress: Progress


def measure(duty: Duty) -> None:
    """Measure the cell and write this rank's report."""
    cell, clock = duty.cell, duty.process_age
    duty.progress.enter(SET_UP)
    imported = clock()
    torch.set_num_threads(duty.threads)
    set_precision(cell.precision)
    runtime = find_runtime(runtime_of(cell.strategy))
    world = join_world(cell, duty.shape, duty.place, duty.init_method, runtime)
    material = load_material(duty)
    memory.reset_peaks(world.device)
    strategy = set_up_strategy(duty, world, material)
    batches = make_batches(duty, material)
    ready = clock()
    measured = train(
        strategy,
        iter(batches),
        device=world.device,
        phases=duty.phases,
        warmup=cell.warmup,
        steps=count_steps(cell, batches.steps_per_epoch),
        non_blocking=cell.non_blocking,
        memory_format=(
            torch.channels_last if cell.channels_last else torch.preserve_format
        ),
        barrier=lambda: wait_for_all(runtime),
        progress=duty.progress,
    )
    peaks = memory.read_peaks(world.device)
    peaks["optimizer_mib"] = memory.optimizer_mib(strategy.optimizer_state())
    trained = clock()
    accuracy = evaluate_whole(duty, strategy, world, material)
    write_report(
        duty.work,
        cell,
        duty.place,
        world,
        measured,
        seconds={
            "startup": imported,
            "setup": ready - imported,
            "warmup": measured.warmup_s,
            "train": measured.window_s,
            "evaluate": clock() - trained,
        },
        memory=peaks,
        accuracy=accuracy,
        phases=duty.phases,
        steps_per_epoch=batches.steps_per_epoch,
        cores=duty.cores,
        details=strategy.details(),
    )
    duty.progress.enter(THE_END)
    leave_world(runtime)


@dataclass(frozen=True)
class Material:
    """The data of a cell, and the model that fits them."""

    train: data.Images
    test: data.Images
    classes: int
    build_model: Callable[[], nn.Module]


def load_material(duty: Duty) -> Material:
    """Load the data; models built for them have equal weights on all ranks."""
    cell = duty.cell
    train_set, test_set, classes = data.load(
        cell.data,
        duty.data_dir,
        channels=cell.channels,
        image_size=cell.image_size,
        augment=cell.augment,
        seed=cell.seed,
    )
    channels, image_size, _ = train_set.sample_shape

    def build_model() -> nn.Module:
        torch.manual_seed(cell.seed)
        return models.build(
            cell.model, channels=channels, image_size=image_size, classes=classes
        )

    return Material(train_set, test_set, classes, build_model)


def set_up_strategy(duty: Duty, world: World, material: Material) -> Strategy:
    """The strategy of the cell with its model, ready for its first step."""
    cell = duty.cell
    loss = make_loss(cell.precision, world.device)
    strategy = find_strategy(cell.strategy)(world, loss, **cell.options)
    strategy.scaler = make_scaler(cell.precision, world.device)
    model = prepare_model(material.build_model().to(world.device), cell)
    strategy.setup(model, optimizer_maker(cell))
    # What is random while training (augmentation, dropout) differs between replicas.
    replica = world.rank // duty.shape.replica_ranks
    torch.manual_seed(cell.seed * 1_000_003 + replica)
    return strategy


def make_batches(duty: Duty, material: Material) -> Batches:
    """The stream of this rank's batches."""
    cell, shape = duty.cell, duty.shape
    return Batches(
        material.train,
        rank=duty.place.rank // shape.replica_ranks,
        ranks=shape.ranks // shape.replica_ranks,
        rank_batch=shape.rank_batch,
        seed=cell.seed,
        num_workers=cell.num_workers,
        pin_memory=cell.pin_memory,
        worker_cpus=duty.affinity,
    )


def count_steps(cell: Cell, steps_per_epoch: int) -> int:
    """Steps of the timed window."""
    if cell.steps is not None:
        return cell.steps
    assert cell.epochs is not None, "a cell has steps or epochs"
    return cell.epochs * steps_per_epoch


def evaluate_whole(
    duty: Duty, strategy: Strategy, world: World, material: Material
) -> dict[str, Any] | None:
    """Accuracy of the consolidated model, on rank 0; None if it is not asked for."""
    duty.progress.enter(EVALUATION)
    if not duty.cell.evaluate:
        return None
    weights = strategy.state_dict()
    if duty.place.rank != 0:
        return None
    model = material.build_model().to(world.device)
    model.load_state_dict(weights)
    return evaluate(model, material.test, classes=material.classes, device=world.device)
