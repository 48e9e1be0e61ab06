"""Checks of a user's own model or data set, by what strategies need of it."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from rankbench.rank import data, models, variants

_SAMPLES, _STEPS = 8, 10
_SEED = 7


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a file.

    Attributes:
        name: what was checked.
        well: True, False, or None if it cannot do something that it need not.
        said: what was seen.
        needs: key of NEEDS -> the value that describes the file.
    """

    name: str
    well: bool | None
    said: str
    needs: Mapping[str, Any]


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
    found = [
        _check("loads", not wrong, "; ".join(wrong) or f"{len(train)} of {sample}"),
        _check("repeats", equal, _yes(equal, "equal samples from equal seeds")),
    ]
    if isinstance(train, data.Images) and isinstance(test, data.Images):
        labels = {*train.labels, *test.labels}
        outside = sorted(label for label in labels if not 0 <= label < classes)
        said = f"{outside[:3]} are none" if outside else "fit"
        found.insert(1, _check("labels", not outside, said))
    return found


def check_model(
    name: str, sizes: Mapping[str, int], options: Mapping[str, Any]
) -> list[Check]:
    """Build a model, train it, and try what strategies and options do with it.

    Args:
        sizes: of the data that it is checked with, as `models.build` takes them.
        options: of the model.
    """

    def build() -> nn.Module:
        return models.build(name, **sizes, seed=_SEED, options=options)

    try:
        model = build()
    except Exception as error:
        return [_check("builds", False, _words(error))]
    generator = torch.Generator().manual_seed(_SEED)
    images = models.example_inputs(sizes, _SAMPLES)
    if images.is_floating_point():
        images = images.normal_(generator=generator)
        labels = torch.randint(sizes["classes"], (_SAMPLES,), generator=generator)
    else:
        images = images.random_(sizes["vocabulary"], generator=generator)
        labels = images.roll(-1, dims=1)
    count = sum(p.numel() for p in model.parameters())
    normalises = any(isinstance(one, _BatchNorm) for one in model.modules())
    found = [
        Check("builds", True, f"{count:,} parameters", {"batch_statistics": normalises})
    ]
    tries: list[tuple[str, Callable[[], Check]]] = [
        ("seeds", lambda: _seeds(model, build())),
        ("trains", lambda: _trains(build(), images, labels)),
        ("gate", lambda: _exact(build(), images, labels)),
        ("splits", lambda: _splits(build(), images)),
        ("checkpoints", lambda: _checkpoints(build(), images, labels)),
        ("compiles", lambda: _compiles(build(), images)),
    ]
    for title, attempt in tries:
        try:
            found.append(attempt())
        except Exception as error:
            optional = title in ("checkpoints", "compiles", "splits")
            key = "sequential" if title == "splits" else title
            needs = {key: False} if optional else {}
            found.append(
                Check(title, None if optional else False, _words(error), needs)
            )
    return found


def _seeds(one: nn.Module, other: nn.Module) -> Check:
    theirs = other.state_dict()
    equal = all(torch.equal(v, theirs[k]) for k, v in one.state_dict().items())
    return _check("seeds", equal, _yes(equal, "equal weights from equal seeds"))


def _loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(images).flatten(0, -2), labels.flatten())


def _trains(model: nn.Module, images: Tensor, labels: Tensor) -> Check:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(_STEPS):
        loss = _loss(model, images, labels)
        optimizer.zero_grad()
        loss.backward()
        idle = [n for n, p in model.named_parameters() if p.grad is None]
        if idle:
            return _check("trains", False, f"{idle[0]} gets no gradient")
        optimizer.step()
        losses.append(loss.item())
    well = math.isfinite(losses[-1])
    return _check("trains", well, f"loss {losses[0]:.4g}, then {losses[-1]:.4g}")


def _exact(model: nn.Module, images: Tensor, labels: Tensor) -> Check:
    """The gate compares strategies in float64."""
    exact = images.double() if images.is_floating_point() else images
    _loss(model.double(), exact, labels).backward()
    return _check("gate", True, "computes in float64")


def _splits(model: nn.Module, images: Tensor) -> Check:
    """Pipelines split a model between any two of its parts."""
    if not isinstance(model, nn.Sequential):
        said = f"build returns {type(model).__name__}, not an nn.Sequential of parts"
        return Check("splits", None, said, {"sequential": False})
    model.eval()
    whole, parts = model(images), images
    for part in model.children():
        parts = part(parts)
    equal = torch.equal(whole, parts)
    said = f"{len(model)} parts, " + _yes(equal, "together equal to the whole")
    return Check("splits", equal, said, {"sequential": equal})


def _checkpoints(model: nn.Module, images: Tensor, labels: Tensor) -> Check:
    other = copy.deepcopy(model)
    torch.manual_seed(_SEED)
    _loss(model, images, labels).backward()
    for part in other.children():
        if any(True for _ in part.parameters()):
            part.forward = partial(checkpoint, part.forward, use_reentrant=False)
    torch.manual_seed(_SEED)
    _loss(other, images, labels).backward()
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    equal = all(torch.allclose(a.grad, b.grad, atol=1e-5) for a, b in pairs)  # type: ignore[arg-type]
    said = _yes(equal, "equal gradients with checkpointing")
    return Check("checkpoints", equal or None, said, {"checkpoints": equal})


def _compiles(model: nn.Module, images: Tensor) -> Check:
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        return Check("compiles", None, "not tried: there is no C++ compiler", {})
    model.eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=False)
    equal = torch.allclose(model(images), compiled(images), rtol=1e-3, atol=1e-4)
    said = _yes(equal, "equal outputs by torch.compile")
    return Check("compiles", equal or None, said, {"compiles": equal})


def _check(name: str, well: bool, said: str) -> Check:
    return Check(name, well, said, {})


def _yes(equal: bool, said: str) -> str:
    return said if equal else f"not {said}"


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]
