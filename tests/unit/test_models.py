"""Every model, and the checks of `build`."""

from __future__ import annotations

import importlib
import time

import pytest
import torch
from torch import nn
from torch.nn import functional

from rankbench.rank import models, torchvision_ops
from rankbench.rank.models import _experts, emulated, lstm, pyramidnet
from rankbench.rank.models.gpt import Attention
from rankbench.rank.torchvision_ops import import_torchvision

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "channels", "image_size", "parameters"),
    [
        ("convnet", 1, 28, 113_674),
        ("convnet", 3, 32, 832 + 1600 + 18_496 + 73_856 + 128 * 25 * 10 + 10),
        ("lenet", 1, 28, 61_706),
        ("lstm", 1, 28, 82_186),
        ("lstm", 3, 32, 117_002),
        ("pyramidnet", 3, 32, 24_253_410),
        ("resnet18", 3, 32, 11_181_642),
        ("resnet50", 3, 32, 23_528_522),
        ("resnet101", 3, 32, 42_520_650),
        ("transformer", 1, 28, 138_890),
        ("transformer", 3, 32, 141_898),
    ],
)
def test_number_of_parameters(name, channels, image_size, parameters):
    model = models.build(name, channels=channels, image_size=image_size, classes=10)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_unknown_name_lists_the_models():
    with pytest.raises(
        ValueError, match=r"'vgg'.*convnet, emulated, gpt, lenet, llama, lstm"
    ):
        models.build("vgg", channels=1, image_size=28, classes=10)


def test_resnet_is_that_of_torchvision():
    ours = models.build("resnet18", channels=3, image_size=64, classes=10)
    theirs = import_torchvision().models.resnet18(num_classes=10)
    theirs.load_state_dict(ours.state_dict())
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(ours(images), theirs(images))


def test_lstm_reads_rows_with_all_channels_in_their_order():
    images = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4)
    rows = lstm.Rows()(images)
    assert rows.shape == (2, 4, 12)
    assert torch.equal(rows[1, 2], images[1, :, 2].flatten())
    torch.manual_seed(0)
    model = models.build("lstm", channels=1, image_size=28, classes=10)
    images = torch.rand(2, 1, 28, 28)
    assert not torch.allclose(model(images), model(images.flip(2)))


@pytest.mark.parametrize(
    ("image_size", "patch"), [(8, 4), (14, 7), (21, 7), (22, 2), (28, 4), (32, 4)]
)
def test_transformer_chooses_its_patches(image_size, patch):
    model = models.build("transformer", channels=1, image_size=image_size, classes=10)
    tokens = model.get_submodule("patches")(torch.rand(1, 1, image_size, image_size))
    assert tokens.shape == (1, (image_size // patch) ** 2, patch**2)
    with pytest.raises(ValueError, match=r"4, 7, 2 pixels: none of these divides 25"):
        models.build("transformer", channels=1, image_size=25, classes=10)


def test_pyramidnet_has_the_names_that_study_002_prints():
    model = models.build("pyramidnet", channels=3, image_size=32, classes=10)
    running = [name for name in model.state_dict() if name.endswith("running_var")]
    assert running[-4:] == [
        "layer3.16.bn1.running_var",
        "layer3.16.bn2.running_var",
        "layer3.16.bn3.running_var",
        "bn_out.running_var",
    ]


@pytest.mark.parametrize(("stride", "side"), [(1, 7), (2, 4)])
def test_pyramidnet_pads_its_shortcut(stride, side):
    block = pyramidnet.BasicBlock(3, 5, stride)
    torch.nn.init.zeros_(block.conv2.weight)
    images = torch.ones(2, 3, 7, 7)
    output = block(images)
    assert output.shape == (2, 5, side, side)
    assert torch.equal(output[:, :3], torch.ones(2, 3, side, side))
    assert not output[:, 3:].any()


def test_other_import_failures_are_not_hidden(monkeypatch):
    def fail(name: str) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="no such device"):
        torchvision_ops.import_torchvision.__wrapped__()


def test_options_of_a_model_reach_its_builder():
    options = {"layers": 2, "mib": 1}
    model = models.build(
        "emulated", channels=1, image_size=28, classes=10, options=options
    )
    sizes = [p.numel() for p in model.parameters()]
    # One MiB of float32 in two layers, and the linear layer.
    assert sizes == [2**17, 2**17, 10, 10]
    with pytest.raises(TypeError):
        models.build("lenet", channels=1, image_size=28, classes=10, options=options)


def test_emulated_sleeps_for_each_sample_and_has_true_gradients(monkeypatch):
    # What the last sleep of another test was late would shorten the first one here.
    monkeypatch.setattr(emulated._Sleeper, "late", 0.0)
    options = {"layers": 2, "mib": 0.01, "forward_us": 2000, "backward_us": 4000}
    model = models.build(
        "emulated", channels=1, image_size=4, classes=3, options=options
    )
    images = torch.rand(8, 1, 4, 4)
    begun = time.perf_counter()
    loss = model(images).square().sum()
    ahead = time.perf_counter() - begun
    loss.backward()
    back = time.perf_counter() - begun - ahead
    # At least that long, because the machine may be busy. Backward is shorter by the
    # time that the last sleep of forward was late.
    assert ahead >= 8 * 2e-3
    assert ahead + back >= 8 * 6e-3
    layer = model[2].double()
    values = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (values,))
    weight = layer.weight.detach()[:5].clone().requires_grad_()
    layer.times = (0.0, 0.0)

    def compute(weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, {"weight": weight}, values)

    assert torch.autograd.gradcheck(compute, (weight,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_keys_are_repeated_where_gpus_have_no_kernel_for_few_of_them(
    dtype, monkeypatch
):
    attend, seen = functional.scaled_dot_product_attention, []

    def note(*heads: torch.Tensor, **how: bool) -> torch.Tensor:
        seen.append(([x.shape[1] for x in heads], how["enable_gqa"]))
        return attend(*heads, **how)

    query, key, value = (torch.randn(2, n, 8, 4, dtype=dtype) for n in (6, 2, 2))
    expected = attend(query, key, value, is_causal=True, enable_gqa=True)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", note)
    found = Attention(nn.Identity(), shares_heads=True)(query, key, value)
    few = dtype == torch.bfloat16
    assert seen == [([6, 2, 2] if few else [6, 6, 6], few)]
    torch.testing.assert_close(found, expected)


def test_experts_in_groups_compute_as_one_by_one(monkeypatch):
    """On GPUs whose tensor cores multiply in groups; a CPU can do so, too."""
    torch.manual_seed(0)
    experts = _experts.Experts(16, 32, 4).to(torch.bfloat16)
    for weight in experts.parameters():
        nn.init.normal_(weight, std=0.3)
    rows, sizes = torch.randn(11, 16, dtype=torch.bfloat16), [3, 0, 7, 1]
    expected = experts.run(rows, sizes)
    monkeypatch.setattr(_experts, "multiplies_in_groups", lambda _: True)
    torch.testing.assert_close(experts.run(rows, sizes), expected, rtol=0.02, atol=0.02)


def test_balanced_tokens_take_experts_in_turn():
    mixture = _experts.Mixture(8, 8, 4, 2, balanced=True)
    for weight in mixture.parameters():
        nn.init.normal_(weight)
    seen = []
    mixture.experts.run = lambda rows, sizes: seen.append(sizes) or rows
    mixture(torch.randn(2, 5, 8))
    assert seen == [[5, 5, 5, 5]]
    assert mixture.experts.evenly(6) == [2, 2, 1, 1]
