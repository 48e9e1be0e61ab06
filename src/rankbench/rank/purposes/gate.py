"""Does the strategy train what one process trains? A launch of its own, never timed.

Same seed, same initial weights, same global batches, in float64: after a few steps loss
and weights must agree. What is measured here is how far they are apart; whether that is
near enough is judged in launch/outcome/judge_gate.py.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rankbench.cell import Cell, is_lossy
from rankbench.rank.facts.model_size import describe_model
from rankbench.rank.joining.world import leave_world
from rankbench.rank.lifeline.progress import THE_END, TRAINING
from rankbench.rank.purposes.setup import (
    Duty,
    Material,
    join_others,
    load_material,
    make_batches,
    set_up_strategy,
)
from rankbench.rank.strategies import find_strategy
from rankbench.rank.strategies.base import Strategy, World
from rankbench.rank.training.batches import Batches
from rankbench.record import write_json

EXACT_STEPS = 3
# A lossy option needs time to show whether it still learns.
LOSSY_STEPS = 20

# What a rank computes in a step, at most: the gate must cost little.
MOST_SAMPLES = 32
MOST_FLOPS = 2e11

# Gradients so large that a library which clips them is found out. The learning rate of
# SGD is as much smaller, which makes the steps the same.
LOUD = 100.0

# A parameter that hardly moves (a bias before a normalisation) is judged by this share
# of what the parameters move on average: its own movement is rounding.
FLOOR = 0.01


def run(duty: Duty) -> None:
    """Check every seed that is asked for, and write this rank's report."""
    runtime, world = join_others(duty, precision="fp32")
    duty.progress.enter(TRAINING)
    checks = []
    for number, seed in enumerate(duty.seeds or [duty.cell.seed]):
        duty.progress.step(number)
        checks.append(check(duty, world, seed))
    write_json(duty.work / f"rank{duty.place.rank}.json", {"gate": checks})
    duty.progress.enter(THE_END)
    leave_world(runtime)


def check(duty: Duty, world: World, seed: int) -> dict[str, Any]:
    """Train a few steps, and on rank 0 the same in one process.

    Returns:
        seed, dtype, lossy, steps, samples (of a step), losses (of this rank, None if it
        does not get to know them); on rank 0 also `reference`: its losses, and
        weights_error, the largest distance of a parameter over what the reference
        moved it, with its name.
    """
    cell = dataclasses.replace(
        duty.cell,
        seed=seed,
        augment="none",
        precision="fp32",
        compile=False,
        num_workers=0,
        learning_rate=(
            duty.cell.learning_rate / (LOUD if duty.cell.optimizer == "sgd" else 1)
        ),
    )
    kind = find_strategy(cell.strategy)
    lossy = is_lossy(cell.options, kind.approximate, kind.options)
    dtype = getattr(torch, "float32" if lossy else kind.exact_dtype)
    steps = LOSSY_STEPS if lossy else EXACT_STEPS
    material = load_material(cell, duty.data_dir)
    samples = choose_samples(duty, material)

    def build_model() -> nn.Module:
        model = independent_of_the_split(material.build_model())
        return model.to(world.device, dtype)

    model = build_model()
    start = _copy(model.state_dict())
    sharing = duty.shape.replica_ranks
    strategy = set_up_strategy(
        cell, world, model, replica_ranks=sharing, loss_scale=LOUD
    )
    batches = make_batches(duty, cell, material, samples)
    losses = train(strategy, batches, steps=steps, device=world.device, dtype=dtype)
    weights = strategy.state_dict()
    found: dict[str, Any] = {
        "seed": seed,
        "dtype": str(dtype).removeprefix("torch."),
        "lossy": lossy,
        "steps": steps,
        "samples": samples * (duty.shape.ranks // sharing),
        "losses": losses,
    }
    if duty.place.rank == 0:
        single = dataclasses.replace(cell, strategy="single", options={})
        alone = dataclasses.replace(world, rank=0, size=1, backend="none")
        reference = set_up_strategy(
            single, alone, build_model(), replica_ranks=1, loss_scale=LOUD
        )
        whole = _batches_of_one(single, material, found["samples"], duty.affinity)
        found["reference"] = {
            "losses": train(
                reference, whole, steps=steps, device=world.device, dtype=dtype
            ),
            **compare(weights, reference.state_dict(), start),
        }
    return found


def train(
    strategy: Strategy,
    batches: Batches,
    *,
    steps: int,
    device: torch.device,
    dtype: torch.dtype,
) -> list[float | None] | None:
    """Losses of the steps; None if this rank does not get to know them.

    A loss that is not a number is none either: it could not be written as JSON.
    """
    losses: list[float | None] = []
    known = True
    for _, (images, labels) in zip(range(steps), batches, strict=False):
        batch = (images.to(device, dtype), labels.to(device))
        loss = strategy.step(batch, lambda phase: None)
        if loss is None:
            known = False
        else:
            losses.append(float(loss) if math.isfinite(loss) else None)
    return losses if known else None


def choose_samples(duty: Duty, material: Material) -> int:
    """Samples of this rank in a step: fewer than the cell has where that is enough.

    They divide the cell's own, so that whatever splits those splits these, and are at
    least two for each part that the strategy makes of them.
    """
    cell, own = duty.cell, duty.shape.rank_batch
    sample_shape = material.train.sample_shape
    flops = describe_model(cell.model, sample_shape, material.classes)
    affordable = min(MOST_SAMPLES, MOST_FLOPS / max(1, flops["flops_per_sample"]))
    option = find_strategy(cell.strategy).needs.get("multiple_of")
    parts = int(cell.options[option]) if option else 1
    parts = math.lcm(parts, duty.shape.devices_per_rank)
    fitting = [n for n in range(1, own + 1) if own % n == 0 and n % parts == 0]
    cheap = [n for n in fitting if 2 * parts <= n <= affordable]
    return max(cheap, default=min((n for n in fitting if n >= 2 * parts), default=own))


def independent_of_the_split(model: nn.Module) -> nn.Module:
    """Normalise each sample by itself: then it does not matter who sees which.

    The parameters keep their names and shapes.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                instead = nn.GroupNorm(1, child.num_features, eps=child.eps)
                instead.load_state_dict(
                    {key: child.state_dict()[key] for key in instead.state_dict()}
                )
                setattr(parent, name, instead)
    return model


def compare(
    weights: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
) -> dict[str, Any]:
    """How far weights are from the reference, in units of what training moved.

    Returns:
        weights_error: |w - reference| / |reference - start| of the worst parameter (2
        norms); None if it is not a number. worst: its name.

    Raises:
        ValueError: the names are not those of the bare model.
    """
    if weights.keys() != reference.keys():
        differ = sorted(weights.keys() ^ reference.keys())
        raise ValueError(f"the strategy's weights have other names: {differ[:4]}")
    moved = {
        name: _norm(value - start[name])
        for name, value in reference.items()
        if value.is_floating_point()
    }
    count = sum(reference[name].numel() for name in moved)
    average = math.sqrt(sum(m * m for m in moved.values()) / max(1, count))
    worst, error = "", 0.0
    for name, distance in moved.items():
        floor = FLOOR * average * math.sqrt(reference[name].numel())
        difference = _norm(weights[name].to(reference[name]) - reference[name])
        relative = difference / max(distance, floor) if difference else 0.0
        if math.isnan(relative):
            relative = math.inf
        if relative > error:
            worst, error = name, relative
    return {"weights_error": error if math.isfinite(error) else None, "worst": worst}


def _batches_of_one(
    cell: Cell, material: Material, samples: int, cpus: set[int]
) -> Batches:
    """The global batches, as one process takes them from the data set."""
    return Batches(
        material.train,
        rank=0,
        ranks=1,
        rank_batch=samples,
        seed=cell.seed,
        num_workers=0,
        pin_memory=False,
        worker_cpus=cpus or os.sched_getaffinity(0),
    )


def _copy(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in weights.items()}


def _norm(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value.double()))
