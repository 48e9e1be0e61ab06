"""Models on the meta device, and the values that their parts get."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from rankbench.rank import models
from rankbench.rank.models import Blueprint, _blueprint

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")
IMAGES = {"channels": 3, "image_size": 32, "classes": 10}
TOKENS = {"vocabulary": 64, "context": 16}

NAMES = ["convnet", "emulated", "lstm", "pyramidnet", "resnet18", "transformer"]
BUILDERS: dict[str, Callable[[], nn.Module]] = {
    **{name: lambda name=name: models.build(name, **IMAGES) for name in NAMES},
    "gpt": lambda: models.build("gpt", **TOKENS),
    "tied": lambda: models.build("gpt", **TOKENS, options={"tie_embeddings": True}),
}


def build_whole(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    drawn = Blueprint(build, seed=seed)
    drawn.load(drawn.model, CPU)
    return drawn.model


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def check_equal(model: nn.Module, expected: nn.Module) -> None:
    found, wanted = tensors(model), tensors(expected)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
        assert found[name].stride() == value.stride(), name
    ids = [len({id(value) for value in each.values()}) for each in (found, wanted)]
    assert ids[0] == ids[1], "tied weights"


@pytest.mark.parametrize("name", BUILDERS)
def test_a_loaded_model_is_like_the_one_that_is_built(name):
    """Its random numbers are others, of the same distributions."""
    before = torch.get_rng_state()
    drawn = Blueprint(BUILDERS[name], seed=3)
    assert drawn.reason is None
    assert all(value.is_meta for value in tensors(drawn.model).values())
    drawn.load(drawn.model, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    expected = tensors(BUILDERS[name]())
    for key, value in tensors(drawn.model).items():
        like = expected[key]
        assert (value.dtype, value.stride()) == (like.dtype, like.stride())
        if value.numel() > 1000:
            assert float(value.std()) == pytest.approx(float(like.std()), rel=0.1)
        elif like.unique().numel() == 1:
            assert torch.equal(value, like), key
    assert not same(drawn.model, build_whole(BUILDERS[name], 4))


def same(model: nn.Module, other: nn.Module) -> bool:
    others = tensors(other)
    return all(torch.equal(value, others[key]) for key, value in tensors(model).items())


def test_a_shard_is_a_part_of_what_is_drawn_as_a_whole(monkeypatch):
    """However weights are shared out, over several seeds of a weight, too."""
    monkeypatch.setattr(_blueprint, "_OF_A_SEED", 40)

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 12), nn.Embedding(7, 8))

    whole = tensors(build_whole(build, 1))
    # The last of two by three ranks, which has less than others.
    distributed.init_process_group("fake", store=FakeStore(), rank=5, world_size=6)
    try:
        mesh = init_device_mesh("cpu", (2, 3))
        for placements in ((Shard(0), Shard(1)), (Replicate(), Shard(0))):
            drawn = Blueprint(build, seed=1)
            for module in drawn.model:
                weight = module.weight.detach()
                module.weight = nn.Parameter(
                    distribute_tensor(weight, mesh, placements)
                )
            drawn.load(drawn.model, CPU)
            for key, value in drawn.model.named_parameters():
                if key.endswith("weight"):
                    wanted = _blueprint.shard_of(whole[key], value)
                    assert torch.equal(value.to_local(), wanted), key
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("name", BUILDERS)
def test_parts_may_be_loaded_in_any_order_and_again(name):
    drawn = Blueprint(BUILDERS[name], seed=3)
    parts = list(drawn.model.children())
    for part in (*parts[::-1], parts[-1], parts[0]):
        if name != "tied":
            part.to("meta")
        drawn.load(part, CPU)
    check_equal(drawn.model, build_whole(BUILDERS[name], 3))


def test_a_model_may_be_changed_before_it_is_loaded():
    drawn = Blueprint(BUILDERS["resnet18"], seed=3)
    drawn.model.to(torch.float64)
    drawn.model.to(memory_format=torch.channels_last)
    drawn.load(drawn.model, CPU)
    expected = build_whole(BUILDERS["resnet18"], 3).to(torch.float64)
    check_equal(drawn.model, expected.to(memory_format=torch.channels_last))


class Varied(nn.Module):
    """Buffers and weights that are made in all sorts of ways."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.truncated = nn.Parameter(torch.empty(5, 7))
        self.orthogonal = nn.Parameter(torch.empty(6, 4))
        self.scaled = nn.Parameter(0.02 * torch.randn(3, 4))
        self.register_buffer("positions", torch.arange(5).float() / 5)
        self.register_buffer("given", torch.tensor([0.1, 0.2]))
        self.register_buffer("hidden", torch.ones(2), persistent=False)
        self.register_buffer("mask", torch.ones(4, 4).tril())
        self.table = nn.Embedding(8, 4, padding_idx=0)
        with torch.no_grad():
            nn.init.trunc_normal_(self.truncated, std=0.5)
            nn.init.orthogonal_(self.orthogonal)
            self.linear.weight[:3].fill_(2.0)
            self.linear.bias.copy_(self.positions.sum())
            self.scaled += torch.tensor(1.5)


def test_values_may_come_from_anywhere():
    drawn = Blueprint(Varied, seed=5)
    assert drawn.reason is None
    drawn.load(drawn.model, CPU)
    check_equal(drawn.model, build_whole(Varied, 5))


def read_a_value() -> nn.Module:
    model = nn.Linear(4, 4)
    if model.weight.sum() > 0:
        nn.init.ones_(model.bias)
    return model


def keep_a_tensor() -> nn.Module:
    model = nn.Linear(4, 4)
    model.scale = torch.rand(4)
    return model


def draw_from_its_own() -> nn.Module:
    model = nn.Linear(4, 4)
    generator = torch.Generator().manual_seed(1)
    nn.init.normal_(model.weight, generator=generator)
    return model


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (read_a_value, "reads values"),
        (keep_a_tensor, "scale"),
        (draw_from_its_own, "generator"),
    ],
)
def test_what_cannot_be_built_on_meta_is_built_as_a_whole(build, said):
    drawn = Blueprint(build, seed=3)
    assert drawn.reason is not None
    assert said in drawn.reason
    drawn.load(drawn.model, CPU)
    check_equal(drawn.model, build_whole(build, 3))


def test_errors_of_the_model_itself_are_not_hidden():
    def build() -> nn.Module:
        raise ValueError("no such width")

    with pytest.raises(ValueError, match="no such width"):
        Blueprint(build, seed=0)
