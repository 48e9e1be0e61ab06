"""Models of libraries keep the contract of models, and are trained exactly."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import pytest
from gate_ranks import run_gate

from rankbench.launch.process.classify import TOLERANCE
from rankbench.rank import models

pytestmark = pytest.mark.contract

IMAGES = {"data": "synthetic", "channels": 3, "image_size": 32}
MODELS: dict[str, dict[str, Any]] = {
    "torchvision/squeezenet1_1": IMAGES,
    "timm/resnet10t": IMAGES,
    "transformers/gpt2": {
        "data": "tokens",
        "context": 16,
        "model_options": {"n_layer": 1, "n_embd": 32, "n_head": 2},
    },
}
# torchvision is pinned in requirements.lock; the others come by `make extras`.
CASES = [
    pytest.param(
        name,
        strategy,
        marks=[] if name.startswith("torchvision/") else [pytest.mark.equipment],
    )
    for name in MODELS
    for strategy in ("ddp", "fsdp", "zero1")
]


def require(name: str) -> None:
    package = name.partition("/")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")


@pytest.mark.parametrize(("name", "strategy"), CASES)
def test_is_trained_as_by_a_single_process(name, strategy, tmp_path):
    require(name)
    status, reason, numbers = run_gate(
        tmp_path / "gate",
        strategy=strategy,
        topology="1x2",
        batch_size=2,
        model=name,
        **MODELS[name],
    )
    assert (status, reason) == ("ok", None)
    assert numbers["weights_error"] < TOLERANCE["float64"] / 10


@pytest.mark.equipment
@pytest.mark.parametrize(
    ("model", "option"),
    [("gpt2", {"attn_implementation": "eager"}), ("llama", {"rope_theta": 1e4})],
)
def test_options_may_be_kept_under_other_names(model, option):
    require("transformers")
    build = partial(models.build, f"transformers/{model}", vocabulary=64, context=16)
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    assert build(options=small | option)
    with pytest.raises(ValueError, match="'use_cach'; did you mean 'use_cache'"):
        build(options={"use_cach": True})


def test_torchvision_says_for_which_images_a_model_is_made():
    assert models.image_size_of("torchvision/vit_b_16") == 224
    assert models.image_size_of("gpt") is None


def test_an_unknown_library_is_named():
    with pytest.raises(ValueError, match="expected one of torchvision, timm"):
        models.build("keras/some", channels=3, image_size=32, classes=2)
