"""Precision, memory format and checkpointing change how a model is computed."""

from __future__ import annotations

import copy
import dataclasses
import shutil
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.fx_passes import micro_pipeline_tp
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode

from factories import make_cell
from rankbench.rank import models
from rankbench.rank.purposes.setup import set_up_strategy
from rankbench.rank.strategies import find_strategy
from rankbench.rank.strategies._axes import Axis, split_decoder
from rankbench.rank.strategies._weights import Shards
from rankbench.rank.strategies.base import World
from rankbench.rank.strategies.mp import ModelParallel
from rankbench.rank.strategies.single import Single
from rankbench.rank.training.recipe import (
    make_loss,
    optimizer_maker,
    prepare_model,
    set_arithmetic,
    use_float8,
)

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")
WORLD = World(
    rank=0,
    size=1,
    local_rank=0,
    device=CPU,
    devices=(CPU,),
    backend="none",
    rank_batch=8,
)


@pytest.mark.parametrize("tries", [True, False])
def test_cudnn_tries_its_algorithms_only_if_the_cell_says_so(tries):
    try:
        set_arithmetic("tf32" if tries else "fp32", cudnn_benchmark=tries)
        assert torch.backends.cudnn.benchmark is tries
        assert torch.backends.cuda.matmul.allow_tf32 is tries
    finally:
        set_arithmetic("fp32", cudnn_benchmark=False)
        torch.backends.cudnn.allow_tf32 = True  # as torch has it


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_fused_optimizer_learns_the_same(optimizer):
    apart, together = (
        train(optimizer=optimizer, fused_optimizer=fused) for fused in (False, True)
    )
    assert optimizer_maker(make_cell(fused_optimizer=True)).keywords["fused"]
    torch.testing.assert_close(together, apart)


def test_clipped_gradients_have_at_most_the_norm():
    free, clipped = (
        train(steps=1, clip_gradients=limit, momentum=0.0) for limit in (None, 1e-3)
    )
    torch.manual_seed(0)
    start = convolutions().state_dict()
    moved = [
        sum(float((found[1][name] - start[name]).square().sum()) for name in start)
        for found in (free, clipped)
    ]
    # A step of sgd moves the weights by the learning rate times the gradient.
    assert moved[1] ** 0.5 == pytest.approx(0.1 * 1e-3, rel=0.05)
    assert moved[0] > 100 * moved[1]


def convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Flatten(), nn.Linear(8 * 6 * 6, 5)),
    )


def train(steps: int = 3, *, strategy=Single, world=WORLD, **options):
    """Losses and weights after a few steps with the options of a cell."""
    cell = make_cell(strategy="single", backend="none", learning_rate=0.1, **options)
    model = prepare_model(convolutions(), cell)
    own = {"balance": "1,1"} if strategy is ModelParallel else {}
    trained = strategy(world, make_loss(cell.precision, CPU), **own)
    trained.scaler = torch.amp.GradScaler("cpu", enabled=cell.precision == "fp16")
    trained.max_norm = cell.clip_gradients
    trained.setup(model, optimizer_maker(cell))
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        images, labels = torch.randn(4, 3, 8, 8), torch.randint(5, (4,))
        if cell.channels_last:
            images = images.to(memory_format=torch.channels_last)
        losses.append(trained.step((images, labels), lambda phase: None))
    return torch.stack(losses), trained.state_dict()


@pytest.mark.parametrize(
    "option",
    [
        {"channels_last": True},
        {"checkpointing": "full"},
        {"checkpointing": "selective"},
        # `compile` needs a C++ compiler.
        pytest.param({"compile": True}, marks=pytest.mark.equipment),
    ],
    ids=str,
)
def test_training_is_the_same_with(option):
    if "compile" in option and not shutil.which("c++"):
        pytest.skip("no C++ compiler: install g++")
    losses, weights = train()
    other, others = train(**option)
    torch.testing.assert_close(other, losses)
    assert others.keys() == weights.keys()
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value)


SIZES = {"vocabulary": 11, "context": 6}


def decoder(checkpointing: str) -> nn.Module:
    """A decoder of 3 layers; its embedding, norm and head are no blocks."""
    model = models.build("gpt", **SIZES, options={"layers": 3, "width": 16})
    return prepare_model(model, make_cell(checkpointing=checkpointing))


def test_checkpointing_computes_as_much_again_as_it_says():
    flops = {}
    for kind in ("none", "selective", "full"):
        model, calls = decoder(kind), []
        for part in (model.embedding, model.block2.norm1, model.norm, model.head):
            part.register_forward_hook(lambda part, *_, calls=calls: calls.append(part))
        with FlopCounterMode(display=False) as counter:
            model(models.example_inputs(SIZES, 2)).sum().backward()
        flops[kind] = counter.get_total_flops()
        assert [calls.count(part) for part in dict.fromkeys(calls)] == [
            1,
            1 + (kind != "none"),
            1,
            1,
        ]
    assert flops["none"] < flops["selective"] < flops["full"] < 4 / 3 * flops["none"]


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("axis", [None, "shard", "tensor", "context"])
def test_all_blocks_are_one_graph(axis, checkpointing):
    """Also on a mesh, where no other rank answers here."""
    torch._dynamo.reset()
    graphs = []

    def keep(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    strategy, ranks = ("mesh", 2) if axis else ("single", 1)
    rules = find_strategy(strategy).options
    options = {name: rule["default"] for name, rule in rules.items()}
    options |= {axis: 2} if axis else {}
    model = {"layers": 3, "width": 16, "heads": 2}
    tokens = {"vocabulary": 12, "context": 8}
    blueprint = models.Blueprint(
        lambda: models.build("llama", options=model, **tokens), seed=0
    )
    cell = make_cell(
        strategy=strategy, options=options, compile=True, checkpointing=checkpointing
    )
    world = dataclasses.replace(WORLD, size=ranks)
    init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        trained = set_up_strategy(
            cell, world, blueprint, replica_ranks=1, compiler=keep
        )
        ids = torch.zeros(2, 8, dtype=torch.int64)
        trained.step((ids, ids), lambda phase: None)
    finally:
        destroy_process_group()
    # And the loss is another one.
    assert len(graphs) == 2


def test_inductor_recognises_what_async_tensor_overlaps():
    """Its pass for GPUs finds all that a block exchanges, forwards and backwards."""
    torch._dynamo.reset()
    found = []

    def look(graph: Any, _inputs: Any) -> Any:
        names = [str(node.target) for node in graph.graph.nodes]
        for find, name in (
            (micro_pipeline_tp.find_all_gather_patterns, "all_gather_into_tensor"),
            (micro_pipeline_tp.find_reduce_scatter_patterns, "reduce_scatter_tensor"),
        ):
            there = sum(one.startswith(f"_c10d_functional.{name}") for one in names)
            found.append((len(find(graph.graph)), there))
        return make_boxed_func(graph.forward)

    model = models.build("llama", **SIZES, options={"layers": 1, "width": 16})
    init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
        names = ("tensor", "context", "expert")
        split_decoder(model.block1, {name: Axis.of(mesh, name) for name in names})
        compiler = aot_autograd(fw_compiler=look, bw_compiler=look)
        block = torch.compile(model.block1, backend=compiler)
        block(torch.randn(1, 3, 16, requires_grad=True)).sum().backward()
    finally:
        destroy_process_group()
    assert found == [(2, 2)] * 4


def test_a_copy_of_a_checkpointed_part_is_a_part_of_its_own():
    """Measured splits copy the parts of a model."""
    model = prepare_model(convolutions(), make_cell(checkpointing="full"))
    part = copy.deepcopy(model[1])
    nn.init.zeros_(part[1].weight)
    nn.init.zeros_(part[1].bias)
    assert not part(torch.randn(2, 8, 6, 6)).any()
    assert model[1](torch.randn(2, 8, 6, 6)).any()


def test_channels_last_reaches_the_weights():
    model = prepare_model(convolutions(), make_cell(channels_last=True))
    weight = model[0][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("strategy", [Single, ModelParallel])
def test_half_precision_comes_near(precision, strategy):
    world = dataclasses.replace(WORLD, devices=(CPU, CPU))
    losses, _ = train()
    other, _ = train(precision=precision, strategy=strategy, world=world)
    assert not torch.equal(other, losses)
    torch.testing.assert_close(other, losses, rtol=0.05, atol=0.05)


@pytest.mark.equipment
def test_float8_is_of_the_linear_layers_of_blocks_whose_sides_fit():
    pytest.importorskip("torchao", reason="torchao is not installed: make extras")
    sizes = {"vocabulary": 512, "context": 8}
    options = {"layers": 1, "width": 32, "heads": 4, "kv_heads": 1}
    model = models.build("llama", options=options, **sizes)
    before = dict(model.named_parameters())
    use_float8(model, emulate=True)
    kinds = {
        name: type(part).__name__
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear)
    }
    assert {name for name, kind in kinds.items() if kind == "Float8Linear"} == {
        f"block1.{name}" for name in ("query", "out", "mlp.gate", "mlp.up", "mlp.down")
    }
    # Those of keys and values have a side of 8.
    assert {name for name, kind in kinds.items() if kind == "Linear"} == {
        "block1.key",
        "block1.value",
        "head",
    }
    assert all(before[name] is weight for name, weight in model.named_parameters())
    ids = torch.arange(8)[None]
    loss = make_loss("fp8", CPU)(model, (ids, ids))
    loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())
    small = models.build("gpt", options={"width": 24, "heads": 2}, **sizes)
    with pytest.raises(ValueError, match="fp8: no linear layer of a block is large"):
        use_float8(small, emulate=True)


@pytest.mark.equipment
def test_weights_with_one_scale_are_gathered_in_float8():
    pytest.importorskip("torchao", reason="torchao is not installed: make extras")
    sizes, options = {"vocabulary": 512, "context": 8}, {"layers": 1, "width": 32}
    sent = {}
    init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
        for recipe in ("tensorwise", "rowwise"):
            model = models.build("llama", options=options, **sizes)
            numbers = sum(weight.numel() for weight in model.parameters())
            use_float8(model, recipe, emulate=True)
            shards = Shards(mesh, torch.bfloat16)
            shards.add(model, again=False)
            sent[recipe] = shards.operations()[0].bytes
    finally:
        destroy_process_group()
    layers = 4 * 32 * 32 + 3 * 32 * 96
    assert sent == {"tensorwise": 2 * numbers - layers, "rowwise": 2 * numbers}


def test_a_step_whose_scaled_gradients_overflow_is_left_out():
    cell = make_cell(precision="fp16")
    trained = Single(WORLD, make_loss("fp16", CPU))
    trained.scaler = torch.amp.GradScaler("cpu")
    trained.setup(convolutions(), optimizer_maker(cell))
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    images = torch.full((4, 3, 8, 8), float("inf"))
    trained.step((images, torch.zeros(4, dtype=torch.long)), lambda phase: None)
    for name, value in trained.state_dict().items():
        assert torch.equal(value, before[name])
    assert trained.scaler.get_scale() < 65536


@pytest.mark.parametrize("name", ["fsdp", "mesh"])
def test_a_strategy_that_casts_weights_has_no_autocast(name, tmp_path):
    """Both together keep copies of the weights in bf16, and of the activations."""
    seen = set()

    def look(block: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        weight = next(block.parameters())
        seen.add((torch.is_autocast_enabled("cpu"), weight.dtype, inputs[0].dtype))

    sizes = {"vocabulary": 11, "context": 6}
    blueprint = models.Blueprint(lambda: models.build("gpt", **sizes), seed=0)
    for block in list(blueprint.model)[1:]:
        block.register_forward_pre_hook(look)
    declared = find_strategy(name).options
    options = {key: rule["default"] for key, rule in declared.items()}
    cell = make_cell(strategy=name, precision="bf16", options=options)
    store = f"file://{tmp_path}/store"
    init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        trained = set_up_strategy(cell, WORLD, blueprint, replica_ranks=1)
        ids = torch.zeros(2, 6, dtype=torch.int64)
        loss = trained.step((ids, ids), lambda phase: None)
        weights = trained.state_dict()
    finally:
        destroy_process_group()
    assert seen == {(False, torch.bfloat16, torch.bfloat16)}
    assert loss.dtype == torch.float32
    assert {value.dtype for value in weights.values()} == {torch.float32}
