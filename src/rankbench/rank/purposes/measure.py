"""A measuring launch on one rank: set up, train, evaluate, write the report."""

from __future__ import annotations

from torch import Tensor

from rankbench.cell import Cell
from rankbench.rank.facts import memory
from rankbench.rank.facts.collectives import sweep
from rankbench.rank.facts.energy import open_meter
from rankbench.rank.facts.model_size import describe_model
from rankbench.rank.purposes.duty import Duty
from rankbench.rank.purposes.report import write_report
from rankbench.rank.purposes.setup import (
    join_others,
    load_material,
    make_batches,
    set_up_strategy,
)
from rankbench.rank.strategies.base import Strategy
from rankbench.rank.training.evaluate import evaluate
from rankbench.rank.training.loop import train
from rankbench.rank.training.recipe import memory_format_of
from rankbench.rank.training.saving import save_model
from rankbench.rank.world.devices import leave_world, wait_for_all
from rankbench.rank.world.lifeline import COLLECTIVES, EVALUATION, THE_END


def run(duty: Duty) -> None:
    """Measure the cell and write this rank's report."""
    cell, clock = duty.cell, duty.process_age
    imported = clock()
    runtime, world = join_others(duty, precision=cell.precision)
    material = load_material(cell, duty.data_dir)
    memory.reset_peaks(world.devices)
    strategy = set_up_strategy(
        cell,
        world,
        material.build_model().to(world.device),
        replica_ranks=duty.shape.replica_ranks,
    )
    batches = make_batches(duty, cell, material, duty.shape.rank_batch)
    ready = clock()
    measured = train(
        strategy,
        iter(batches),
        devices=world.devices,
        phases=duty.phases,
        warmup=cell.warmup,
        steps=count_steps(cell, batches.steps_per_epoch),
        non_blocking=cell.non_blocking,
        memory_format=memory_format_of(cell),
        barrier=lambda: wait_for_all(runtime, world.devices),
        progress=duty.progress,
        meter=open_meter(world.devices, world.local_rank),
    )
    peaks = memory.read_peaks(world.devices)
    peaks["optimizer_mib"] = memory.optimizer_mib(strategy.optimizer_state())
    trained = clock()
    duty.progress.enter(COLLECTIVES)
    swept = None
    if duty.collectives and world.size > 1:
        swept = sweep(strategy.operations, runtime, world.device)
    swept_at = clock()
    weights = weights_of(duty, strategy)
    accuracy = None
    if weights and cell.evaluate and world.rank == 0:
        model = material.build_model().to(world.device)
        model.load_state_dict(weights)
        accuracy = evaluate(
            model, material.test, classes=material.classes, device=world.device
        )
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
            "collectives": swept_at - trained,
            "evaluate": clock() - swept_at,
        },
        memory=peaks,
        accuracy=accuracy,
        phases=duty.phases,
        steps_per_epoch=batches.steps_per_epoch,
        samples_seen=measured.samples
        + cell.warmup * (measured.samples // len(measured.seconds)),
        details=strategy.details(),
        collectives=swept,
        model=(
            describe_model(cell.model, material.sizes, cell.model_options)
            if world.rank == 0
            else None
        ),
    )
    duty.progress.enter(THE_END)
    leave_world(runtime)


def count_steps(cell: Cell, steps_per_epoch: int) -> int:
    """Number of steps in the timed window."""
    if cell.steps is not None:
        return cell.steps
    assert cell.epochs is not None, "a cell has steps or epochs"
    return cell.epochs * steps_per_epoch


def weights_of(duty: Duty, strategy: Strategy) -> dict[str, Tensor] | None:
    """The trained weights, saved if `save_model` says so; None if nothing uses them."""
    duty.progress.enter(EVALUATION)
    if not duty.cell.evaluate and duty.save_model == "none":
        return None
    weights = strategy.state_dict()
    save_model(duty.work.parent, duty.save_model, duty.place, weights)
    return weights
