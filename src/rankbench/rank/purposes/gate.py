"""The gate: a separate, untimed launch that compares a strategy with one process.

Both train with the same seed, initial weights and global batches in float64; after a
few steps, loss and weights must agree. Under bf16, fp16 and fp8 the trend of the loss
must then agree with that of one process in the same precision. This module measures the
differences, and launch/process/classify.py decides whether they are small enough.

A decoder is checked on short sequences of the built-in tokens, with few layers and a
narrow width. Sizes that ranks share remain multiples of their number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankbench.cell import Cell, Shape, is_lossy
from rankbench.decoder import mlp_width
from rankbench.launch_spec import TRAINING
from rankbench.rank.models import complete, describe_model, is_decoder
from rankbench.rank.purposes import setup
from rankbench.rank.strategies import find_strategy
from rankbench.rank.strategies.base import Batch, Strategy, World
from rankbench.rank.training.recipe import AUTOCAST
from rankbench.rank.world.lifeline import Duty

EXACT_STEPS = 3
# More steps for a lossy option: only the trend of the loss shows whether it learns.
LOSSY_STEPS = 20

# Largest step of a rank, and of all ranks together, so that the gate takes little time.
MOST_SAMPLES = 32
MOST_TOGETHER = 512
MOST_FLOPS = 2e11

# Sizes of a decoder in the gate. Pipelines have at least a layer for each stage.
FEW_LAYERS = 2
HEAD_WIDTH = 4
SHORT, SHORTEST = 64, 16
MANY_RANKS = 64  # With more, sequences are the shortest.

# Factor on the loss. The large gradients reveal a library that clips them. The learning
# rate of SGD is divided by the same factor, so that the steps do not change.
LOUD = 100.0

# Errors are relative to the distance that training moves a parameter, but at least to
# this fraction of the average distance. A parameter that hardly moves, such as a bias
# before a normalisation layer, moves by rounding errors only.
FLOOR = 0.01


def run(duty: Duty) -> None:
    """Check every requested seed, and write this rank's report."""
    runtime, world = setup.join_others(duty, precision="fp32")
    duty.progress.enter(TRAINING)
    checks = []
    for number, seed in enumerate(duty.spec.seeds or [duty.spec.cell.seed]):
        duty.progress.step(number)
        found = check(duty, world, seed)
        if (precision := duty.spec.cell.precision) in AUTOCAST:
            found["trend"] = check(duty, world, seed, precision=precision)
        checks.append(found)
    setup.finish(duty, runtime, {"gate": checks})


def check(
    duty: Duty, world: World, seed: int, *, precision: str = "fp32"
) -> dict[str, Any]:
    """Train a few steps with the strategy; on rank 0 also without it, as reference.

    Args:
        precision: fp32 compares what the strategy computes, in float64; another one
            compares the trend of the loss.

    Returns:
        seed, dtype, lossy, steps, samples (per step, over all ranks), losses (of this
        rank; None if it does not know them). On rank 0 also `reference`: the losses of
        the reference, and the result of `compare`. If the cell has a precision of less
        than 32 bits, also `trend`: the same in that precision.
    """
    cell = duty.spec.cell
    kind = find_strategy(cell.strategy)
    low = precision in AUTOCAST
    lossy = is_lossy(cell.options, kind.approximate, kind.options)
    loud = 1.0 if low else LOUD
    cell = dataclasses.replace(
        shrink(cell, duty.spec.shape),
        seed=seed,
        augment="none",
        precision=precision,
        num_workers=0,
        learning_rate=cell.learning_rate / (loud if cell.optimizer == "sgd" else 1),
    )
    by_trend = lossy or low
    dtype = getattr(torch, "float32" if by_trend else kind.exact_dtype)
    steps = LOSSY_STEPS if by_trend else EXACT_STEPS
    material = setup.load_material(cell, duty.spec.data_dir)
    samples = choose_samples(duty, cell, material)
    sharing = duty.spec.shape.replica_ranks

    def learn(
        cell: Cell, world: World, samples: int, *, alone: bool = False
    ) -> tuple[list[float | None] | None, dict[str, Tensor], dict[str, Tensor]]:
        """Losses; weights after and before, the latter only of a single process."""
        blueprint = setup.draw_model(cell, material.sizes, independent_of_the_split)
        model = blueprint.model.to(dtype)
        start: dict[str, Tensor] = {}
        if alone:
            # Drawn as a whole, so that parts with other values would be noticed.
            blueprint.load(model, world.device)
            start = {k: v.to("cpu", copy=True) for k, v in model.state_dict().items()}
        strategy = setup.set_up_strategy(
            cell,
            world,
            blueprint,
            replica_ranks=1 if alone else sharing,
            loss_scale=loud,
            # Traces blocks as inductor does, and runs what it traced as it is.
            compiler="aot_eager",
        )
        step: Callable[[Batch], Tensor | None]
        step = partial(strategy.step, mark=lambda phase: None)
        if alone:
            step = partial(step_in_parts, strategy)
        batches, _ = setup.make_batches(duty, cell, material, samples, alone=alone)
        losses = train(step, batches, steps=steps, device=world.device, dtype=dtype)
        # Not on the device, which needs its memory for the reference.
        return losses, {k: v.cpu() for k, v in strategy.state_dict().items()}, start

    losses, weights, _ = learn(cell, world, samples)
    found: dict[str, Any] = {
        "seed": seed,
        "dtype": str(AUTOCAST[precision] if low else dtype).removeprefix("torch."),
        "lossy": lossy,
        "steps": steps,
        "samples": samples * (duty.spec.shape.ranks // sharing),
        "losses": losses,
    }
    if duty.place.rank == 0:
        single = dataclasses.replace(
            cell, strategy="single", options={}, compile=False, checkpointing="none"
        )
        one = dataclasses.replace(world, rank=0, size=1, backend="none")
        losses, *both = learn(single, one, found["samples"], alone=True)
        found["reference"] = {"losses": losses, **compare(weights, *both)}
    return found


def train(
    step: Callable[[Batch], Tensor | None],
    batches: Iterator[Batch],
    *,
    steps: int,
    device: torch.device,
    dtype: torch.dtype,
) -> list[float | None] | None:
    """Train; return the loss of each step, or None if this rank does not know it.

    A loss that is not finite becomes None, because JSON cannot hold it.
    """
    losses: list[float | None] = []
    known = True
    for _, (inputs, targets) in zip(range(steps), batches, strict=False):
        kind = dtype if inputs.is_floating_point() else inputs.dtype
        loss = step((inputs.to(device, kind), targets.to(device)))
        if loss is None:
            known = False
        else:
            losses.append(float(loss) if math.isfinite(loss) else None)
    return losses if known else None


def step_in_parts(reference: Strategy, batch: Batch) -> Tensor:
    """A step of one process that never holds the activations of all ranks' samples."""
    samples, losses = len(batch[0]), []
    for part in zip(*(half.split(MOST_SAMPLES) for half in batch), strict=True):
        share = len(part[0]) / samples
        loss = reference.compute_loss(reference.model, part) * share
        reference.backward(loss)
        losses.append(loss.detach())
    reference.update()
    return torch.stack(losses).sum()


def choose_samples(duty: Duty, cell: Cell, material: setup.Material) -> int:
    """The number of samples of this rank in a step: fewer than in the cell if possible.

    The number divides the cell's own, so that the strategy can split it in the same
    way. It is at least two for each part that the strategy splits a batch into.
    """
    own = duty.spec.shape.rank_batch
    flops = describe_model(cell.model, material.sizes, cell.model_options)
    affordable = min(
        MOST_SAMPLES,
        MOST_TOGETHER / duty.spec.shape.replicas,
        MOST_FLOPS / max(1, flops["flops_per_sample"]),
    )
    option = find_strategy(cell.strategy).needs.get("multiple_of")
    parts = int(cell.options[option]) if option else 1
    parts = math.lcm(parts, duty.spec.shape.devices_per_rank)
    fitting = [n for n in range(1, own + 1) if own % n == 0 and n % parts == 0]
    cheap = [n for n in fitting if 2 * parts <= n <= affordable]
    return max(cheap, default=min((n for n in fitting if n >= 2 * parts), default=own))


def shrink(cell: Cell, shape: Shape) -> Cell:
    """The cell with a smaller decoder; other cells remain as they are.

    All layers and all heads are alike. The number of heads remains, so ranks can share
    them.
    """
    if not is_decoder(cell.model):
        return cell
    options = complete(cell.model, cell.model_options)
    meshed = "axes" in find_strategy(cell.strategy).needs
    pipe = int(cell.options["pipe"]) if meshed else shape.replica_ranks
    sharing = shape.replica_ranks // pipe

    def shared(size: int) -> int:
        return -(-size // sharing) * sharing

    if not str(cell.options.get("balance", ""))[:1].isdigit():
        # Else the cell says how many layers each stage has.
        stages = int(cell.options.get("virtual_stages", 1)) * shape.devices_per_rank
        stages *= pipe
        options["layers"] = min(options["layers"], max(FEW_LAYERS, stages))
    # fp8 needs a multiple of 16.
    multiple = math.gcd(options["width"], 16)
    own, heads = options["width"] // options["heads"], options["heads"]
    for head in range(min(HEAD_WIDTH, own), own + 1, HEAD_WIDTH):
        options["width"] = head * heads
        if "mlp_width" in options:
            options["mlp_width"] = options["width"]
        if options["width"] % multiple == 0 and mlp_width(options) % sharing == 0:
            break
    small = dataclasses.replace(
        cell,
        data="tokens",
        own_files={kind: f for kind, f in cell.own_files.items() if kind != "data"},
        context=None,
    )
    options["vocabulary"] = shared(setup.sizes_of_data(small)["vocabulary"])
    short = SHORT if shape.ranks <= MANY_RANKS else SHORTEST
    context = min(setup.sizes_of_data(cell)["context"], shared(short))
    return dataclasses.replace(small, model_options=options, context=context)


def independent_of_the_split(model: nn.Module) -> nn.Module:
    """Replace batch normalisation by a normalisation of each sample; stop dropout.

    Then the result does not depend on how samples are distributed over ranks. The
    parameters keep their names and shapes.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                instead = nn.GroupNorm(1, child.num_features, eps=child.eps)
                instead.load_state_dict(
                    {key: child.state_dict()[key] for key in instead.state_dict()}
                )
                setattr(parent, name, instead)
    return model.eval()


def compare(
    weights: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
) -> dict[str, Any]:
    """The largest error of a parameter, relative to the distance that it was trained.

    Returns:
        weights_error: |w - reference| / |reference - start| of the worst parameter,
        with 2-norms; None if it is not finite. worst: the name of that parameter.

    Raises:
        ValueError: the names differ from those of the unwrapped model.
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


def _norm(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value.double()))
