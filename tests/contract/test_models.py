"""What holds for every model: each file of `rank/models` is tested by being there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from factories import make_cell
from rankbench.matrix.declarations import MODEL_DEFAULTS, literals
from rankbench.own_files import imports_of
from rankbench.rank import models, variants
from rankbench.rank.training.recipe import prepare_model

pytestmark = pytest.mark.contract
# Another test runs beside.
torch.set_num_threads(1)

CLASSES = 7
# Sizes of the data, for models that take tokens.
TOKENS = {"vocabulary": 11, "context": 6}


def path_of(name: str) -> Path:
    return Path(models.__file__).parent / f"{name}.py"


def needs(name: str) -> dict[str, Any]:
    """`NEEDS`, read as the plan does: without importing the file."""
    found: dict[str, Any] = literals(path_of(name))
    return found["NEEDS"]


def takes_tokens(name: str) -> bool:
    return needs(name).get("inputs") == "tokens"


NAMES = variants.names("model")
# Without networks that are built of the same parts as resnet18.
FEW = [name for name in NAMES if name not in ("resnet50", "resnet101")]
every = pytest.mark.parametrize("name", NAMES)
of_images = pytest.mark.parametrize("name", [n for n in FEW if not takes_tokens(n)])
of_tokens = pytest.mark.parametrize("name", [n for n in FEW if takes_tokens(n)])


def build(name: str, channels: int, image_size: int) -> torch.nn.Module:
    return models.build(name, channels=channels, image_size=image_size, classes=CLASSES)


def build_any(name: str) -> torch.nn.Module:
    """The model for small data that it takes."""
    if takes_tokens(name):
        return models.build(name, **TOKENS)
    declared = needs(name)
    channels = (declared["channels"] or [1])[0]
    sizes = {"image_size": max(declared["min_image_size"], 28), "channels": channels}
    return models.build(name, **sizes, classes=CLASSES)


@every
def test_is_what_it_declares(name):
    declared, model = needs(name), build_any(name)
    assert declared.keys() <= MODEL_DEFAULTS.keys()
    if not takes_tokens(name):
        assert isinstance(declared["min_image_size"], int)
        assert declared["channels"] is None or isinstance(declared["channels"], list)
    assert isinstance(model, torch.nn.Sequential)
    norm = torch.nn.modules.batchnorm._BatchNorm
    normalises = any(isinstance(part, norm) for part in model.modules())
    assert declared.get("batch_statistics", False) == normalises
    assert imports_of({f"{name}.py": path_of(name)}) <= {"torch", "rankbench"}


# Torch computes its odd sizes slowly, so it is tried once.
SLOW = "pyramidnet"


@of_images
def test_trains(name):
    declared = needs(name)
    many = declared["channels"] or ([3] if name == SLOW else [1, 3])
    for side in [32] if name == SLOW else [1, 28, 32]:
        side = max(side, declared["min_image_size"])
        for channels in many:
            images = torch.rand(2, channels, side, side)
            # Some models have parts that change the output of another part in place.
            kind = "full" if side == 32 else "none"
            model = prepare_model(
                build(name, channels, side), make_cell(checkpointing=kind)
            )
            output = check_training(model, images, torch.tensor([0, 1]))
            assert output.shape == (2, CLASSES)


@of_tokens
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_trains_on_tokens(name, checkpointing):
    ids = torch.arange(3 * TOKENS["context"]).reshape(3, -1) % TOKENS["vocabulary"]
    cell = make_cell(checkpointing=checkpointing)
    output = check_training(prepare_model(build_any(name), cell), ids, ids)
    assert output.shape == (*ids.shape, TOKENS["vocabulary"])


def check_training(
    model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    output = model(inputs)
    assert output.dtype == torch.float32
    scores = output.flatten(0, output.dim() - 2)
    torch.nn.functional.cross_entropy(scores, targets.flatten()).backward()
    assert not [key for key, p in model.named_parameters() if p.grad is None]
    return output


@of_tokens
def test_sees_no_later_token(name):
    model = build_any(name).eval()
    ids = torch.zeros(2, TOKENS["context"], dtype=torch.int64)
    other = ids.clone()
    other[:, -2:] = 1
    before, after = model(ids), model(other)
    torch.testing.assert_close(before[:, :-2], after[:, :-2])
    assert not torch.allclose(before[:, -2:], after[:, -2:])


@pytest.mark.parametrize("name", FEW)
def test_seed_decides_the_weights(name):
    def weights(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(build_any(name).state_dict().values())

    first, same, other = weights(5), weights(5), weights(6)
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
