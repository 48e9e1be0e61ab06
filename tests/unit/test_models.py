"""The models one by one, and what `build` does for all of them."""

from __future__ import annotations

import importlib

import pytest
import torch

from rankbench.rank import models, torchvision_ops
from rankbench.rank.torchvision_ops import import_torchvision

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "channels", "image_size", "parameters"),
    [
        ("convnet", 1, 28, 113_674),
        ("convnet", 3, 32, 832 + 1600 + 18_496 + 73_856 + 128 * 25 * 10 + 10),
        ("lenet", 1, 28, 61_706),
        ("resnet18", 3, 32, 11_181_642),
        ("resnet50", 3, 32, 23_528_522),
        ("resnet101", 3, 32, 42_520_650),
    ],
)
def test_number_of_parameters(
    name: str, channels: int, image_size: int, parameters: int
) -> None:
    model = models.build(name, channels=channels, image_size=image_size, classes=10)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_unknown_name_lists_the_models() -> None:
    with pytest.raises(ValueError, match=r"'vgg'.*convnet, lenet, resnet101"):
        models.build("vgg", channels=1, image_size=28, classes=10)


def test_private_files_are_no_models() -> None:
    assert not [name for name in models.names() if name.startswith("_")]


def test_channels_can_be_restricted() -> None:
    needs = {"min_image_size": 1, "channels": [3]}
    models._check("some", needs, channels=3, image_size=1)
    with pytest.raises(ValueError, match="some takes"):
        models._check("some", needs, channels=1, image_size=1)


def test_seed_leaves_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    models.build("lenet", channels=1, image_size=28, classes=10, seed=3)
    assert torch.equal(before, torch.random.get_rng_state())


def test_resnet_is_that_of_torchvision() -> None:
    ours = models.build("resnet18", channels=3, image_size=64, classes=10, seed=0)
    theirs = import_torchvision().models.resnet18(num_classes=10)
    theirs.load_state_dict(ours.state_dict())
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(ours(images), theirs(images))


def test_torchvision_is_imported_once() -> None:
    assert import_torchvision() is import_torchvision()


def test_other_import_failures_are_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="no such device"):
        torchvision_ops.import_torchvision.__wrapped__()
