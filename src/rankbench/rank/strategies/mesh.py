"""A mesh of ranks: layers are split along one dimension, weights along another."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from rankbench.rank.strategies._split_layers import local
from rankbench.rank.strategies._weights import gathered_parts, make_contiguous
from rankbench.rank.strategies.base import Operation
from rankbench.rank.strategies.tp import TensorParallel


class Mesh(TensorParallel):
    """A mesh [copy, shard, tensor] of ranks, such as the devices of several hosts.

    The ranks along `tensor` work on the same samples, each with a part of the layers.
    The ranks along `shard` share out what each of them holds: FSDP2 gathers a block
    when it is needed. The copies average their gradients. The phases forward and
    backward include all of this.
    """

    needs = {
        **TensorParallel.needs,
        "replica_ranks": "tensor",
        "group_ranks": ["shard", "tensor"],
        # Before, FSDP2 uses streams, which a CPU does not have.
        "torch": {"cpu": "2.8"},
    }
    options = {
        # Numbers of ranks; shard 0: all that tensor leaves. Others hold copies.
        "shard": {"type": "integer", "minimum": 0, "default": 0},
        "tensor": {"type": "integer", "minimum": 1, "default": 2},
        # As in tp and in fsdp.
        "sequence": {"type": "boolean", "default": True},
        "reshard_after_forward": {"type": "boolean", "default": True},
    }
    casts = True

    def make_mesh(self) -> DeviceMesh:
        tensor = self.chosen["tensor"]
        shard = self.chosen["shard"] or self.world.size // tensor
        shape = (self.world.size // (shard * tensor), shard, tensor)
        return device_mesh.init_device_mesh(
            self.world.device.type, shape, mesh_dim_names=("copy", "shard", "tensor")
        )

    def shard(self, model: nn.Module) -> None:
        make_contiguous(model)
        # What this rank would hold without sharding.
        self.own_bytes = 4 * sum(local(p).numel() for p in model.parameters())
        low = MixedPrecisionPolicy(
            param_dtype=self.low_dtype,
            reduce_dtype=torch.float32 if self.low_dtype else None,
        )
        dims = ("copy", "shard") if self.mesh.size(0) > 1 else "shard"
        shard = partial(
            fully_shard,
            mesh=self.mesh[dims],
            mp_policy=low,
            reshard_after_forward=self.chosen["reshard_after_forward"],
        )
        for part in gathered_parts(model):
            shard(part)
        shard(model)

    def average(self) -> None:
        """FSDP has averaged the gradients."""

    def operations_of_groups(self) -> list[Operation]:
        low, size = self.low_dtype or torch.float32, self.own_bytes
        times = 2 if self.chosen["reshard_after_forward"] else 1
        copies, shards = self.mesh.get_group("copy"), self.mesh.get_group("shard")
        return [
            Operation("all_gather", times * size * low.itemsize / 4, low, shards),
            Operation("reduce_scatter", size, group=shards),
            Operation("all_reduce", size / shards.size(), group=copies),
        ]
