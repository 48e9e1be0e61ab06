"""What planning says of tokens, and of models of libraries."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.matrix.own import describe_library_model
from rankbench.rank.data import tokens
from rankbench.rank.data.tokens import SHAPE, generate
from rankbench.rank.models import find_parts
from rankbench.rank.training.recipe import make_loss

pytestmark = pytest.mark.unit

GPT = {"model": "gpt", "data": "tokens"}


def test_an_experiment_names_models_of_libraries(tmp_path):
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


def test_each_name_of_no_library_model_is_told_once(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text(
        "name: some\nstrategy: ddp\nblocks: [{model: timm/}, {batch_size: 8}]\n"
    )
    with pytest.raises(ValueError, match="expected timm/NAME") as caught:
        load_experiment(path, load_catalog(), cuda=False)
    assert str(caught.value).count("timm/NAME") == 1


@pytest.mark.parametrize("name", ["timm/", "timm/../x", "transformers/a b"])
def test_names_in_libraries_are_plain(name):
    with pytest.raises(ValueError, match=r"expected .*/NAME"):
        describe_library_model(name)


def test_the_loss_is_the_mean_over_all_tokens():
    logits, ids = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2], [3, 4, 0]])
    compute = make_loss("fp32", torch.device("cpu"))
    each = -logits.log_softmax(-1).gather(2, ids[..., None])
    torch.testing.assert_close(compute(nn.Identity(), (logits, ids)), each.mean())


def test_tokens_have_the_frequencies_of_words_and_a_habit():
    ids = torch.from_numpy(generate(0, context=64).train).long()
    counts = torch.bincount(ids[:, 0], minlength=SHAPE["vocabulary"])
    # The first token of a sequence is drawn alone: 1 / H(512) of them are 0.
    assert counts[0] / len(ids) == pytest.approx(1 / 6.82, rel=0.2)
    after = ids[:, 1:][ids[:, :-1] == 0]
    assert 0.45 < torch.bincount(after).max() / len(after) < 0.8


def test_a_long_sequence_goes_on_with_those_that_follow(monkeypatch):
    monkeypatch.setattr(tokens, "_DRAWN", 8)
    plain, long = (generate(0, context=length) for length in (8, 20))
    for short, found in ((plain.train, long.train), (plain.test, long.test)):
        assert found.shape == (len(short), 21)
        assert (found[:, :8] == short[:, :8]).all()
        assert (found[:-1, 8:] == found[1:, :13]).all()
        # The last one goes on with the first.
        assert (found[-1, 8:16] == short[0, :8]).all()


def test_parts_of_a_model_are_the_blocks_in_its_lists():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(3, 4)
            self.body = nn.Module()
            self.body.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
            self.drop = nn.Dropout()

    net = Net()
    assert find_parts(net) == [net.embedding, *net.body.layers]
