"""Checks of a user's own model or data set, by what strategies need of it."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rankbench.own_files import Check
from rankbench.rank import data, models, variants
from rankbench.rank.training.recipe import checkpoint_blocks, compile_blocks
from rankbench.record import first_line

_SAMPLES, _STEPS = 8, 10
_SEED = 7


def check_data(name: str, root: Path) -> list[Check]:
    """Load a data set twice, and compare it with what it declares."""
    shape = variants.load("data", name).SHAPE
    train, test, classes = data.load(name, root, seed=_SEED)
    again, _, _ = data.load(name, root, seed=_SEED)
    of_tokens = isinstance(train, data.Tokens)
    counts = {"train": len(train), "test": len(test)}
    counts |= {"vocabulary" if of_tokens else "classes": classes}
    wrong = [
        f"{n} {k}, SHAPE says {shape[k]}" for k, n in counts.items() if n != shape[k]
    ]
    sample = " x ".join(map(str, train[0][0].shape))
    equal = all(
        torch.equal(train[i][0], again[i][0])
        and torch.equal(torch.as_tensor(train[i][1]), torch.as_tensor(again[i][1]))
        for i in range(min(_SAMPLES, len(train)))
    )
    said = "; ".join(wrong) or f"{len(train)} of {sample}"
    checks = [Check("loads", not wrong, said)]
    if isinstance(train, data.Images) and isinstance(test, data.Images):
        labels = {*train.labels, *test.labels}
        outside = sorted(label for label in labels if not 0 <= label < classes)
        said = f"{outside[:3]} are none" if outside else "fit"
        checks.append(Check("labels", not outside, said))
    said = _say(equal, "equal samples from equal seeds")
    return [*checks, Check("repeats", equal, said)]


def check_model(
    name: str, sizes: Mapping[str, int], options: Mapping[str, Any]
) -> list[Check]:
    """Build a model, train it, and try what strategies and options do with it.

    Args:
        sizes: of the data that it is checked with, as `models.build` takes them.
        options: of the model.
    """

    def build() -> nn.Module:
        torch.manual_seed(_SEED)
        return models.build(name, **sizes, options=options)

    try:
        model, other = build(), build()
    except Exception as error:
        return [Check("builds", False, _describe(error))]
    generator = torch.Generator().manual_seed(_SEED)
    inputs = models.example_inputs(sizes, _SAMPLES)
    shape = " x ".join(map(str, inputs.shape[1:]))
    given = f"tokens of a vocabulary of {sizes.get('vocabulary')}"
    if inputs.is_floating_point():
        given = f"images of {shape} and {sizes['classes']} classes"
        inputs = inputs.normal_(generator=generator)
        labels = torch.randint(sizes["classes"], (_SAMPLES,), generator=generator)
    else:
        inputs = inputs.random_(sizes["vocabulary"], generator=generator)
        labels = inputs.roll(-1, dims=1)
    count = sum(p.numel() for p in model.parameters())
    normalises = any(isinstance(module, _BatchNorm) for module in model.modules())
    again = other.state_dict()
    equal = all(torch.equal(v, again[k]) for k, v in model.state_dict().items())
    needs = {"batch_statistics": normalises}
    blueprint = models.Blueprint(build, seed=_SEED)
    said = "a rank holds only the part that it keeps"
    if blueprint.reason is not None:
        said = f"each rank holds the whole model at first: it {blueprint.reason}"
    on_meta = blueprint.reason is None
    shards = Check("shards", on_meta or None, said, {"on_meta": on_meta})
    checks = [
        Check("builds", True, f"{count:,} parameters, for {given}", needs),
        Check("seeds", equal, _say(equal, "equal weights from equal seeds")),
        shards,
    ]
    for title, (attempt, need) in _ATTEMPTS.items():
        try:
            can, said = attempt(build(), inputs, labels)
        except Exception as error:
            can, said = False, _describe(error)
        if title == "trains" and not can:
            # It is a fault, which would look like a need in what follows.
            said = f"{said} (its inputs are {given}, {_SAMPLES} at a time)"
            return [*checks, Check(title, False, said)]
        needs = {} if need is None or can is None else {need: can}
        checks.append(Check(title, can or (None if need else False), said, needs))
    return checks


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(str(error))}"


def _say(equal: bool, said: str) -> str:
    return said if equal else f"not {said}"


def _loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())


# Whether a model can, None if that was not tried; and what was seen.
Outcome = tuple[bool | None, str]


def _train(model: nn.Module, inputs: Tensor, labels: Tensor) -> Outcome:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(_STEPS):
        loss = _loss(model, inputs, labels)
        optimizer.zero_grad()
        loss.backward()
        idle = [n for n, p in model.named_parameters() if p.grad is None]
        if idle:
            return False, f"{idle[0]} gets no gradient"
        optimizer.step()
        losses.append(loss.item())
    return math.isfinite(losses[-1]), f"loss {losses[0]:.4g}, then {losses[-1]:.4g}"


def _train_exactly(model: nn.Module, inputs: Tensor, labels: Tensor) -> Outcome:
    """The gate compares strategies in float64."""
    exact = inputs.double() if inputs.is_floating_point() else inputs
    _loss(model.double(), exact, labels).backward()
    return True, "computes in float64"


def _split(model: nn.Module, inputs: Tensor, labels: Tensor) -> Outcome:
    """Pipelines split a model between any two of its parts."""
    if not isinstance(model, nn.Sequential):
        kind = type(model).__name__
        return False, f"build returns {kind}, not an nn.Sequential of parts"
    whole, parts = model.eval()(inputs), inputs
    for part in model.children():
        parts = part(parts)
    equal = torch.equal(whole, parts)
    return equal, f"{len(model)} parts, " + _say(equal, "together equal to the whole")


def _recompute(model: nn.Module, inputs: Tensor, labels: Tensor) -> Outcome:
    other = copy.deepcopy(model)
    checkpoint_blocks(other, "full")
    for one in (model, other):
        torch.manual_seed(_SEED)
        _loss(one, inputs, labels).backward()
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    equal = all(torch.allclose(a.grad, b.grad, atol=1e-5) for a, b in pairs)  # type: ignore[arg-type]
    return equal, _say(equal, "equal gradients with checkpointing")


def _compile(model: nn.Module, inputs: Tensor, labels: Tensor) -> Outcome:
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        return None, "not tried: there is no C++ compiler"
    torch._dynamo.reset()
    eager = model.eval()(inputs)
    compile_blocks(model, "inductor")
    equal = torch.allclose(eager, model(inputs), rtol=1e-3, atol=1e-4)
    return equal, _say(equal, "equal outputs by torch.compile")


# What is tried -> how, and the key of NEEDS that says whether a model can; None if it
# must.
_ATTEMPTS = {
    "trains": (_train, None),
    "gate": (_train_exactly, None),
    "splits": (_split, "sequential"),
    "checkpoints": (_recompute, "checkpoints"),
    "compiles": (_compile, "compiles"),
}
