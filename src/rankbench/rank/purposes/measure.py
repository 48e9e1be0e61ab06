"""A measuring launch on one rank: set up, train, evaluate, write the report."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from rankbench.launch_spec import COLLECTIVES, EVALUATION, THE_END
from rankbench.rank.facts import usage
from rankbench.rank.facts.collectives import sweep
from rankbench.rank.facts.usage import open_meter
from rankbench.rank.models import describe_model, find_kernels, routed_rows
from rankbench.rank.purposes import Duty
from rankbench.rank.purposes.report import describe_rank
from rankbench.rank.purposes.setup import (
    draw_model,
    join_others,
    load_material,
    make_batches,
    set_up_strategy,
)
from rankbench.rank.training.loop import train
from rankbench.rank.training.recipe import memory_format_of
from rankbench.rank.training.saving import save_model
from rankbench.rank.world.devices import leave_world, wait_for_all
from rankbench.record import write_json


def run(duty: Duty) -> None:
    """Measure the cell and write this rank's report."""
    spec, cell, clock = duty.spec, duty.spec.cell, usage.process_age
    imported = clock()
    runtime, world = join_others(duty, precision=cell.precision)
    material = load_material(cell, spec.data_dir)
    usage.reset_peaks(world.devices)
    blueprint = draw_model(cell, material.sizes)
    strategy = set_up_strategy(
        cell,
        world,
        blueprint,
        replica_ranks=spec.shape.replica_ranks,
    )
    batches = make_batches(duty, cell, material, spec.shape.rank_batch)
    steps = cell.steps
    if steps is None:
        assert cell.epochs is not None, "a cell has steps or epochs"
        steps = cell.epochs * batches.steps_per_epoch
    ready = clock()
    measured = train(
        strategy,
        iter(batches),
        devices=world.devices,
        phases=spec.phases,
        warmup=cell.warmup,
        steps=steps,
        non_blocking=cell.non_blocking,
        memory_format=memory_format_of(cell),
        barrier=lambda: wait_for_all(runtime, world.devices),
        progress=duty.progress,
        meter=open_meter(world.devices, world.local_rank),
    )
    trained = clock()
    duty.progress.enter(COLLECTIVES)
    seconds = {
        "startup": imported,
        "setup": ready - imported,
        "warmup": measured.warmup_s,
        "train": measured.window_s,
    }
    report = describe_rank(
        duty,
        world.devices,
        measured,
        seconds={**seconds, "collectives": 0.0, "evaluate": 0.0},
        memory=usage.read_peaks(world.devices, strategy.optimizer_state()),
        phases=spec.phases,
        steps_per_epoch=batches.steps_per_epoch,
        samples_seen=measured.samples
        + cell.warmup * (measured.samples // len(measured.seconds)),
        model=(
            describe_model(cell.model, material.sizes, cell.model_options)
            if world.rank == 0
            else None
        ),
    )
    # What follows may need more memory than there is.
    write_json(spec.work / f"measured{world.rank}.json", report, durable=False)
    swept = None
    if spec.options.collectives and world.size > 1:
        swept = sweep(strategy.operations(), runtime, world, strategy.weight_bytes)
    swept_at = clock()
    duty.progress.enter(EVALUATION)
    accuracy = None
    if cell.evaluate or spec.options.save_model != "none":
        weights = strategy.state_dict()
        save_model(spec.directory, spec.options.save_model, duty.place, weights)
        if cell.evaluate and world.rank == 0:
            model = material.build_model().to(world.device)
            model.load_state_dict(weights)
            accuracy = evaluate(
                model, material.test, classes=material.classes, device=world.device
            )
    report["accuracy"], report["collectives"] = accuracy, swept
    seconds["collectives"] = swept_at - trained
    seconds["evaluate"] = clock() - swept_at
    dtype = strategy.low_dtype or torch.float32
    details = strategy.details()
    details |= find_kernels(blueprint.model, dtype, world.device)
    if routed := routed_rows(blueprint.model):
        details["routed"] = routed
    report["rank"] |= {"seconds": seconds, "details": details}
    write_json(spec.work / f"rank{world.rank}.json", report, durable=False)
    duty.progress.enter(THE_END)
    leave_world(runtime)


BATCH = 256

# Outputs for tokens are large: at most so many numbers at a time.
OUTPUTS = 2**26


@torch.no_grad()
def evaluate(
    model: nn.Module, dataset: Dataset, *, classes: int, device: torch.device
) -> dict[str, Any]:
    """Accuracy of a model on a data set.

    Returns:
        overall (a fraction), per_class (a fraction for each class; None for a class
        without samples; empty for tokens), samples (number of samples; of tokens, for
        tokens).
    """
    model.eval()
    of_tokens = dataset[0][0].dim() == 1
    outputs = len(dataset[0][0]) * classes if of_tokens else classes
    right = torch.zeros(classes, dtype=torch.int64)
    total = torch.zeros(classes, dtype=torch.int64)
    batch_size = max(1, min(BATCH, OUTPUTS // outputs))
    for inputs, targets in DataLoader(dataset, batch_size=batch_size):
        guesses = model(inputs.to(device)).argmax(dim=-1).cpu().flatten()
        labels = targets.flatten()
        right += torch.bincount(labels[guesses == labels], minlength=classes)
        total += torch.bincount(labels, minlength=classes)
    per_class = [
        r / t if t else None
        for r, t in zip(right.tolist(), total.tolist(), strict=True)
    ]
    return {
        "overall": int(right.sum()) / int(total.sum()),
        "per_class": [] if of_tokens else per_class,
        "samples": int(total.sum()),
    }
