"""What holds for every model: each file of `rank/models` is tested by being there."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rankbench.matrix.catalog import MODEL_DEFAULTS, literals
from rankbench.rank import models

pytestmark = [pytest.mark.contract, pytest.mark.parametrize("name", models.names())]

CLASSES = 7


def source(name: str) -> ast.Module:
    return ast.parse((Path(models.__file__).parent / f"{name}.py").read_text())


def needs(name: str) -> dict[str, Any]:
    """`NEEDS`, read as the plan does: without importing the file."""
    found: dict[str, Any] = literals(Path(models.__file__).parent / f"{name}.py")
    return found["NEEDS"]


def build(name: str, channels: int, image_size: int, seed: int = 0) -> torch.nn.Module:
    return models.build(
        name, channels=channels, image_size=image_size, classes=CLASSES, seed=seed
    )


def test_declares_needs(name: str) -> None:
    declared = needs(name)
    always = {"min_image_size", "channels"}
    assert always <= declared.keys() <= always | MODEL_DEFAULTS.keys()
    assert isinstance(declared["min_image_size"], int)
    assert declared["channels"] is None or isinstance(declared["channels"], list)


def test_says_whether_it_normalises_over_the_batch(name: str) -> None:
    declared = needs(name)
    model = build(name, 1, max(32, declared["min_image_size"]))
    normalises = any(
        isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
        for part in model.modules()
    )
    assert declared.get("batch_statistics", False) == normalises


def test_imports_nothing_heavy(name: str) -> None:
    for node in source(name).body:
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        for module in modules:
            package = module.partition(".")[0]
            assert package in {"torch", "rankbench"} | sys.stdlib_module_names


@pytest.mark.parametrize("image_size", [1, 28, 32])
def test_trains(name: str, image_size: int) -> None:
    declared = needs(name)
    side = max(image_size, declared["min_image_size"])
    for channels in declared["channels"] or [1, 3]:
        check_training(name, channels, side)


def check_training(name: str, channels: int, side: int) -> None:
    model = build(name, channels, side)
    output = model(torch.rand(2, channels, side, side))
    assert output.shape == (2, CLASSES)
    assert output.dtype == torch.float32
    torch.nn.functional.cross_entropy(output, torch.tensor([0, 1])).backward()
    without = [key for key, p in model.named_parameters() if p.grad is None]
    assert not without


def test_refuses_small_images(name: str) -> None:
    declared = needs(name)
    channels = (declared["channels"] or [1])[0]
    with pytest.raises(ValueError, match=name):
        build(name, channels, declared["min_image_size"] - 1)


def test_seed_decides_the_weights(name: str) -> None:
    declared = needs(name)
    channels = (declared["channels"] or [1])[0]
    side = max(declared["min_image_size"], 28)

    def weights(seed: int) -> list[torch.Tensor]:
        return list(build(name, channels, side, seed).state_dict().values())

    first, again, other = weights(5), weights(5), weights(6)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))

    torch.manual_seed(5)
    module = models.build(name, channels=channels, image_size=side, classes=CLASSES)
    state = module.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(first, state, strict=True))
