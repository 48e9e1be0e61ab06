"""What planning says of tokens, and of models of libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from factories import make_cell, make_site
from rankbench.matrix.candidate import make_candidate
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.matrix.feasible import find_obstacle
from rankbench.matrix.own import describe_library_model
from rankbench.rank.data.tokens import SHAPE, generate
from rankbench.rank.models import find_parts
from rankbench.rank.training.recipe import make_loss

pytestmark = pytest.mark.unit

GPT = {"model": "gpt", "data": "tokens"}


def obstacle(**cell: Any) -> str | None:
    catalog = load_catalog()
    if "/" in (name := cell.get("model", "")):
        catalog = catalog.with_own({"model": {name: describe_library_model(name)}})
    site = make_site(nodes=1, cores=4)
    return find_obstacle(make_candidate(make_cell(**cell), site, catalog))


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (GPT, None),
        ({"model": "gpt"}, "gpt takes tokens; digits holds images"),
        ({"data": "tokens"}, "convnet takes images; tokens holds tokens"),
        ({"context": 8}, "context is of tokens; digits holds images"),
        (
            {**GPT, "context": 16385},
            "tokens has sequences of 16384 tokens or less, not 16385",
        ),
        ({**GPT, "context": 16384}, None),
        (
            {**GPT, "model_options": {"vocabulary": 511}},
            "tokens has a vocabulary of 512 tokens; gpt has 511",
        ),
        ({**GPT, "model_options": {"vocabulary": 512}}, None),
        ({**GPT, "image_size": 32}, "image_size is of images; tokens holds tokens"),
        ({**GPT, "augment": "affine"}, "augment is of images; tokens holds tokens"),
        (
            {**GPT, "channels_last": True},
            "channels_last is of images; tokens holds tokens",
        ),
        (
            {**GPT, "model_options": {"width": 130}},
            "width 130 of gpt is no multiple of heads 4",
        ),
        (
            {**GPT, "model_options": {"kv_heads": 3}},
            "heads 4 of gpt is no multiple of kv_heads 3",
        ),
        (
            {
                **GPT,
                "strategy": "tp",
                "topology": "1x4",
                "model_options": {"kv_heads": 2},
            },
            "4 ranks cannot share the 2 heads of gpt",
        ),
        (
            {
                **GPT,
                "strategy": "gpipe",
                "topology": "1x2",
                "model_options": {"tie_embeddings": True},
            },
            "gpipe splits the model, and with tie_embeddings parts of gpt "
            "share a weight",
        ),
        (
            {**GPT, "strategy": "gpipe", "topology": "1x3"},
            "gpipe splits gpt into 3 stages, which do not divide its 4 layers",
        ),
        (
            {**GPT, "strategy": "mp", "backend": "none", "topology": "1x3"},
            "mp splits gpt into 3 stages, which do not divide its 4 layers",
        ),
        (
            {
                **GPT,
                "strategy": "mp",
                "backend": "none",
                "topology": "1x3",
                "options": {"balance": "2,3,2"},
            },
            None,
        ),
        (
            {"model": "timm/resnet18", "strategy": "gpipe", "topology": "1x2"},
            "gpipe splits a sequence of named parts (nn.Sequential); "
            "timm/resnet18 is none",
        ),
        (
            {"model": "timm/resnet18"},
            "timm is not installed: pip install timm",
        ),
        (
            {"model": "torchvision/vit_b_16"},
            "torchvision/vit_b_16 takes [3] channels, not 1",
        ),
        (
            {"model": "transformers/gpt2"},
            "transformers/gpt2 takes tokens; digits holds images",
        ),
    ],
)
def test_obstacle(cell: dict[str, Any], reason: str | None) -> None:
    assert obstacle(**cell) == reason


def test_fsdp_of_two_dimensions_needs_a_recent_torch_on_cpus() -> None:
    old = make_site(cores=4, torch="2.6.0")
    cell = make_cell(**GPT, strategy="tp_fsdp", topology="1x4")
    reason = find_obstacle(make_candidate(cell, old, load_catalog()))
    assert reason == "tp_fsdp needs torch 2.8 on cpu; this is 2.6.0"


def test_an_experiment_names_models_of_libraries(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(
        "name: some\nstrategy: single\nmodel: [torchvision/vit_b_16, "
        "{transformers/gpt2: {n_layer: [1, 2]}}]\n"
    )
    found = load_experiment(path, load_catalog(), cuda=False)
    assert list(found.cells) == [
        "single.none.1x1.torchvision-vit_b_16.digits",
        "single.none.1x1.transformers-gpt2.digits.n_layer=1",
        "single.none.1x1.transformers-gpt2.digits.n_layer=2",
    ]
    assert set(found.own.facts()["model"]) == {
        "torchvision/vit_b_16",
        "transformers/gpt2",
    }


@pytest.mark.parametrize("name", ["timm/", "timm/../x", "transformers/a b"])
def test_names_in_libraries_are_plain(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected .*/NAME"):
        describe_library_model(name)


def test_the_loss_is_the_mean_over_all_tokens() -> None:
    logits, ids = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2], [3, 4, 0]])
    compute = make_loss("fp32", torch.device("cpu"))
    each = -logits.log_softmax(-1).gather(2, ids[..., None])
    torch.testing.assert_close(compute(nn.Identity(), (logits, ids)), each.mean())


def test_tokens_have_the_frequencies_of_words_and_a_habit() -> None:
    ids = torch.from_numpy(generate(0, context=64).train).long()
    counts = torch.bincount(ids[:, 0], minlength=SHAPE["vocabulary"])
    # The first token of a sequence is drawn alone: 1 / H(512) of them are 0.
    assert counts[0] / len(ids) == pytest.approx(1 / 6.82, rel=0.2)
    after = ids[:, 1:][ids[:, :-1] == 0]
    assert 0.45 < torch.bincount(after).max() / len(after) < 0.8


def test_parts_of_a_model_are_the_blocks_in_its_lists() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(3, 4)
            self.body = nn.Module()
            self.body.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
            self.drop = nn.Dropout()

    net = Net()
    assert find_parts(net) == [net.embedding, *net.body.layers]
