"""Tensor parallelism: the linear layers of attention and perceptrons are split."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark
from rankbench.rank.strategies.single import Single

# By name within a block. The first split their outputs, so that a rank has some of the
# heads or some of the hidden values; the second split their inputs and add up.
COLUMNS = ("query", "key", "value", "up")
ROWS = ("out", "down")


class TensorParallel(Single):
    """The ranks of a group work on the same samples, each with a part of the weights.

    What they tell each other is within forward and backward. With fewer ranks in a
    group than there are, groups average their gradients after backward.
    """

    needs = {
        "backends": ["gloo", "nccl"],
        "replica_ranks": "degree",
        "divides": "heads",
        "compiles": False,
    }
    options = {
        # Ranks of a group; 0: all.
        "degree": {"type": "integer", "minimum": 0, "default": 0},
    }
    operations = {"all_reduce": None}
    phases = ["forward", "backward", "communication", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        degree = self.chosen["degree"] or self.world.size
        shape = (self.world.size // degree, degree)
        kind = self.world.device.type
        mesh = init_device_mesh(kind, shape, mesh_dim_names=("data", "tensor"))
        for block in model.modules():
            if plan := _plan(block):
                parallelize_module(block, mesh["tensor"], plan)
        self.model = model
        self.groups = shape[0]
        self.peers = mesh["data"].get_group()
        weights = list(model.parameters())
        split = [weight for weight in weights if isinstance(weight, DTensor)]
        assert split, "the plan lets through only models that can be split"
        whole = [weight for weight in weights if not isinstance(weight, DTensor)]
        # Apart, because one kernel cannot update both kinds.
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
        """The gradients of this rank's part, over the ranks that hold the same part."""
        gradients = [_local(weight.grad) for weight in self.model.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(flat, group=self.peers)
        flat /= self.groups
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, average in zip(gradients, flat.split(sizes), strict=True):
            gradient.copy_(average.view_as(gradient))


def _plan(block: nn.Module) -> dict[str, ParallelStyle]:
    """How the block's own linear layers are split, by name; {} if it has none."""
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
    """What this rank holds of a tensor."""
    return cast(Tensor, tensor.to_local() if isinstance(tensor, DTensor) else tensor)


def _whole(tensor: Tensor) -> Tensor:
    """A tensor of which every rank holds a part; all call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
