"""Tensor parallelism: the linear layers of attention and MLP blocks are split."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark
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
        "shards": {"blocks": "replica"},
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
    operations = {"all_reduce": None}
    phases = ["forward", "backward", "communication", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        degree = self.chosen["degree"] or self.world.size
        shape = (self.world.size // degree, degree)
        kind = self.world.device.type
        mesh = init_device_mesh(kind, shape, mesh_dim_names=("data", "tensor"))
        split_blocks(model, mesh["tensor"])
        self.model = model
        self.groups = shape[0]
        self.peers = mesh["data"].get_group()
        weights = list(model.parameters())
        split = [weight for weight in weights if isinstance(weight, DTensor)]
        assert split, "the plan lets through only models that can be split"
        whole = [weight for weight in weights if not isinstance(weight, DTensor)]
        # Two parameter groups, because one kernel cannot update both kinds.
        sorts = [{"params": split}, {"params": whole}]
        self.optimizer = make_optimizer(cast("Iterable[nn.Parameter]", sorts))

    def train_on(self, batch: Batch, mark: Mark) -> Tensor:
        loss = super().train_on(batch, mark)
        if self.groups > 1:
            self._average()
        mark("communication")
        return loss

    def state_dict(self) -> dict[str, Tensor]:
        return {name: _whole(value) for name, value in self.model.state_dict().items()}

    def _average(self) -> None:
        """Average this rank's gradients over the ranks that hold the same weights."""
        gradients = [_local(weight.grad) for weight in self.model.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(flat, group=self.peers)
        flat /= self.groups
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, average in zip(gradients, flat.split(sizes), strict=True):
            gradient.copy_(average.view_as(gradient))


def split_blocks(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split the linear layers of all blocks over the ranks of a mesh."""
    for block in model.modules():
        if plan := _plan(block):
            parallelize_module(block, mesh, plan)


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


def _local(tensor: Any) -> Tensor:
    """The part of a tensor that this rank holds."""
    return cast(Tensor, tensor.to_local() if isinstance(tensor, DTensor) else tensor)


def _whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that is split over ranks; all ranks call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
