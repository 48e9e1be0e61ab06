"""Tensor parallelism: the linear layers of attention and MLP blocks are split."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Operation
from rankbench.rank.strategies.single import Single

# Names of linear layers within a block. COLUMNS split their outputs, so that each rank
# has some of the heads or hidden values. ROWS split their inputs and sum their results.
COLUMNS = ("query", "key", "value", "gate", "up")
ROWS = ("out", "down")


class TensorParallel(Single):
    """The ranks of a group work on the same samples, each with a part of the weights.

    The phases forward and backward include the communication within a group. If there
    are several groups, they average their gradients after backward.
    """

    needs = {
        "backends": ["gloo", "nccl"],
        "replica_ranks": "degree",
        "divides": "heads",
        "sequential": True,
        "compiles": False,
        "clips": False,
    }
    options = {
        # Number of ranks in a group; 0: all ranks.
        "degree": {"type": "integer", "minimum": 0, "default": 0},
    }
    conditions = [
        {
            "if": {"fused_optimizer": {"const": True}},
            "then": {"optimizer": {"enum": ["adam", "adamw"]}},
            "else": "torch has no fused sgd for weights that are sharded",
        }
    ]
    on_meta = True
    phases = ["forward", "backward", "communication", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        mesh = self.make_mesh()
        self.inputs = split_blocks(model, mesh["tensor"], self.low_dtype)
        self.load(model, self.world.device)
        self.model = model
        self.groups = mesh["data"].size()
        self.peers = mesh["data"].get_group()
        weights = list(model.parameters())
        split = [weight for weight in weights if isinstance(weight, DTensor)]
        assert split, "the plan lets through only models that can be split"
        whole = [weight for weight in weights if not isinstance(weight, DTensor)]
        # Two parameter groups, because one kernel cannot update both kinds.
        sorts = [{"params": split}, {"params": whole}]
        self.optimizer = make_optimizer(cast("Iterable[nn.Parameter]", sorts))

    def make_mesh(self) -> DeviceMesh:
        """All ranks, as groups that share weights: [groups, ranks of a group]."""
        degree = self.chosen["degree"] or self.world.size
        shape = (self.world.size // degree, degree)
        return device_mesh.init_device_mesh(
            self.world.device.type, shape, mesh_dim_names=("data", "tensor")
        )

    def train_on(self, batch: Batch, mark: Mark) -> Tensor:
        loss = super().train_on(batch, mark)
        self.inputs.end_step()
        if self.groups > 1:
            self._average()
        mark("communication")
        return loss

    def operations(self) -> list[Operation]:
        sent = [self.inputs.reductions()]
        if self.groups > 1:
            mine = sum(local(weight).nbytes for weight in self.model.parameters())
            sent.append(Operation("all_reduce", mine, group=self.peers))
        return sent

    def state_dict(self) -> dict[str, Tensor]:
        return {name: _whole(value) for name, value in self.model.state_dict().items()}

    def _average(self) -> None:
        """Average this rank's gradients over the ranks that hold the same weights."""
        gradients = [local(weight.grad) for weight in self.model.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(flat, group=self.peers)
        flat /= self.groups
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, average in zip(gradients, flat.split(sizes), strict=True):
            gradient.copy_(average.view_as(gradient))


class SharedInputs:
    """Inputs of split layers; layers that read the same tensor share one.

    The gradient of an input is a sum over all ranks. Queries, keys and values of a
    block add up theirs before the ranks do, so that one all-reduce suffices for them.
    """

    def __init__(self, mesh: DeviceMesh, low_dtype: torch.dtype | None) -> None:
        self._mesh, self._low_dtype = mesh, low_dtype
        # The first layer that reads an input -> numbers of the input.
        self._numbers: dict[nn.Module, int] = {}
        # Numbers of outputs that were summed in this step and in the last one.
        self._summing = self._summed = 0
        self._last: tuple[Tensor, DTensor] | None = None

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor]) -> tuple[DTensor]:
        """Replace the input of a layer, before its forward pass."""
        (x,) = inputs
        if self._last is None or self._last[0] is not x:
            low = x if self._low_dtype is None else x.to(self._low_dtype)
            whole = DTensor.from_local(low, self._mesh, [Replicate()], run_check=False)
            self._last = x, whole
            self._numbers[layer] = x.numel()
        return (self._last[1],)

    def note_output(self, _layer: nn.Module, _inputs: Any, output: Tensor) -> None:
        """Count an output that the ranks have summed.

        Checkpointing sums most of them again in backward, but not the last of a block,
        of which backward needs nothing.
        """
        self._summing += output.numel()

    def end_step(self) -> None:
        """Free the last input, which nothing reads any more."""
        self._last = None
        self._summed, self._summing = self._summing, 0

    def reductions(self) -> Operation:
        """Of each output in forward, and of the gradient of each input in backward."""
        dtype = self._low_dtype or torch.float32
        size = dtype.itemsize * (self._summed + sum(self._numbers.values()))
        return Operation("all_reduce", size, dtype, self._mesh.get_group())


def split_blocks(
    model: nn.Module, mesh: DeviceMesh, low_dtype: torch.dtype | None
) -> SharedInputs:
    """Split the linear layers of all blocks over the ranks of a mesh.

    Args:
        low_dtype: of what the layers read; None leaves it as it is.
    """
    inputs = SharedInputs(mesh, low_dtype)
    for block in model.modules():
        if plan := _plan(block):
            for name in plan.keys() & COLUMNS:
                # Before the hook by which torch would make an input for each layer.
                block.get_submodule(name).register_forward_pre_hook(inputs)
            parallelize_module(block, mesh, plan)
            for name in plan.keys() & ROWS:
                # After the hook by which torch sums the outputs of the ranks.
                block.get_submodule(name).register_forward_hook(inputs.note_output)
    return inputs


def _plan(block: nn.Module) -> dict[str, ParallelStyle]:
    """Name -> how to split that linear layer of a block; {} if none is to be split."""
    styles = {
        **{name: ColwiseParallel() for name in COLUMNS},
        **{name: RowwiseParallel() for name in ROWS},
    }
    children = dict(block.named_children())
    return {
        name: style
        for name, style in styles.items()
        if isinstance(children.get(name), nn.Linear)
    }


def local(tensor: Any) -> Tensor:
    """The part of a tensor that this rank holds."""
    return cast(Tensor, tensor.to_local() if isinstance(tensor, DTensor) else tensor)


def _whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that is split over ranks; all ranks call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
