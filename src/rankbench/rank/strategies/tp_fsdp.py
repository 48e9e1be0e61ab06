"""Tensor parallelism within groups of ranks, fully sharded data parallel across."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rankbench.rank.strategies._weights import gathered_parts, make_contiguous
from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Operation
from rankbench.rank.strategies.single import Single
from rankbench.rank.strategies.tp import TensorParallel, local, split_blocks


class ShardedTensorParallel(TensorParallel):
    """A mesh [data, tensor] of ranks, such as the devices of several hosts.

    The ranks along `tensor` work on the same samples, each with a part of the linear
    layers. The ranks along `data` share what each of them holds: FSDP2 gathers a block
    when it is needed. The phases forward and backward include all communication.
    """

    needs = {
        **TensorParallel.needs,
        # Before, FSDP2 uses streams, which a CPU does not have.
        "torch": {"cpu": "2.8"},
    }
    options = {
        # Number of ranks along `tensor`; 0: all ranks.
        "degree": {"type": "integer", "minimum": 0, "default": 2},
        "reshard_after_forward": {"type": "boolean", "default": True},
    }
    casts = True
    phases = ["forward", "backward", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        mesh = self.make_mesh()
        make_contiguous(model)
        self.inputs = split_blocks(model, mesh["tensor"], self.low_dtype)
        self.shards = mesh["data"].get_group()
        # What this rank would hold without sharding.
        self.own_bytes = 4 * sum(local(p).numel() for p in model.parameters())
        low = MixedPrecisionPolicy(
            param_dtype=self.low_dtype,
            reduce_dtype=torch.float32 if self.low_dtype else None,
        )
        shard = partial(
            fully_shard,
            mesh=mesh["data"],
            mp_policy=low,
            reshard_after_forward=self.chosen["reshard_after_forward"],
        )
        for part in gathered_parts(model):
            shard(part)
        shard(model)
        self.load(model, self.world.device)
        self.model = model
        # One kernel cannot update weights on different meshes.
        sorts: dict[int, list[nn.Parameter]] = {}
        for weight in model.parameters():
            assert isinstance(weight, DTensor)
            sorts.setdefault(weight.device_mesh.ndim, []).append(weight)
        groups = [{"params": weights} for weights in sorts.values()]
        self.optimizer = make_optimizer(cast("Iterable[nn.Parameter]", groups))

    def train_on(self, batch: Batch, mark: Mark) -> Tensor:
        # FSDP averages the gradients: there is nothing to do after backward.
        loss = Single.train_on(self, batch, mark)
        self.inputs.end_step()
        return loss

    def operations(self) -> list[Operation]:
        low, size = self.low_dtype or torch.float32, self.own_bytes
        times = 2 if self.chosen["reshard_after_forward"] else 1
        return [
            self.inputs.reductions(),
            Operation("all_gather", times * size * low.itemsize / 4, low, self.shards),
            Operation("reduce_scatter", size, group=self.shards),
        ]
