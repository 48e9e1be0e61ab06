"""A mesh of ranks: layers are split along one dimension, weights along another."""

from __future__ import annotations

from torch import nn
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh

from rankbench.rank.strategies._weights import Shards
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
        "backends": ["gloo", "nccl"],
        "divides": "layers",
        "sequential": True,
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
    conditions = [
        {
            "if": {"fused_optimizer": {"const": True}},
            "then": {"optimizer": {"enum": ["adam", "adamw"]}},
            "else": "torch has no fused sgd for weights that are sharded",
        },
        {
            "if": {"compile": {"const": True}},
            "then": {"checkpointing": {"const": "none"}},
            "else": "torch compiles no blocks that communicate under checkpointing",
        },
    ]
    on_meta = True
    casts = True
    phases = ["forward", "backward", "communication", "update"]

    def make_mesh(self) -> DeviceMesh:
        tensor = self.chosen["tensor"]
        shard = self.chosen["shard"] or self.world.size // tensor
        shape = (self.world.size // (shard * tensor), shard, tensor)
        return device_mesh.init_device_mesh(
            self.world.device.type, shape, mesh_dim_names=("copy", "shard", "tensor")
        )

    def shard(self, model: nn.Module) -> None:
        self.shards = Shards(self.mesh, self.low_dtype)
        self.shards.add(model, again=self.chosen["reshard_after_forward"])

    def average(self) -> None:
        """FSDP has averaged the gradients."""

    def operations_of_groups(self) -> list[Operation]:
        return self.shards.operations()
