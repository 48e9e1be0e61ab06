"""Tensor parallelism: the layers of a transformer are split over the ranks."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh

from rankbench.rank.strategies._split_layers import (
    SplitLayers,
    by_mesh,
    clip,
    local_bytes,
    sum_gradients,
    whole,
)
from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Operation
from rankbench.rank.strategies.single import Single


class TensorParallel(Single):
    """The ranks of a group work on the same samples, each with a part of the weights.

    The phases forward and backward include the communication within a group. After
    backward, groups average their gradients, and ranks of a group add up those of
    weights that saw only some of the tokens.
    """

    needs = {
        "backends": ["gloo", "nccl"],
        "replica_ranks": "degree",
        "divides": "layers",
        "sequential": True,
    }
    options = {
        # Number of ranks in a group; 0: all ranks.
        "degree": {"type": "integer", "minimum": 0, "default": 0},
        # Whether activations between layers are split over the sequence.
        "sequence": {"type": "boolean", "default": True},
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
    phases = ["forward", "backward", "communication", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        self.mesh = self.make_mesh()
        self.layers = SplitLayers(
            model,
            self.mesh["tensor"],
            self.low_dtype,
            sequence=self.chosen["sequence"],
        )
        model.register_forward_hook(lambda _, __, output: self.layers.logits(output))
        self.shard(model)
        self.load(model, self.world.device)
        self.model = model
        self.optimizer = make_optimizer(by_mesh(model.parameters()))

    def make_mesh(self) -> DeviceMesh:
        """All ranks, as groups that share weights: [groups, ranks of a group]."""
        degree = self.chosen["degree"] or self.world.size
        shape = (self.world.size // degree, degree)
        return device_mesh.init_device_mesh(
            self.world.device.type, shape, mesh_dim_names=("data", "tensor")
        )

    def shard(self, model: nn.Module) -> None:
        """Share out what a rank of a group holds; here the groups are copies."""

    def train_on(self, batch: Batch, mark: Mark) -> Tensor:
        with self.layers.split_loss():
            loss = whole(super().train_on(batch, mark))
        self.layers.end_step()
        self.average()
        mark("communication")
        return loss

    def average(self) -> None:
        """Average gradients over the groups, unless backward has done so."""
        groups = self.mesh.size(0)
        if groups > 1:
            weights, peers = self.model.parameters(), self.mesh.get_group("data")
            sum_gradients(weights, peers, divide=groups)

    def operations(self) -> list[Operation]:
        return [*self.layers.operations(), *self.operations_of_groups()]

    def operations_of_groups(self) -> list[Operation]:
        """What groups send to each other."""
        mine = local_bytes(self.model.parameters())
        return [Operation("all_reduce", mine, group=self.mesh.get_group("data"))]

    def clip(self, max_norm: float) -> None:
        clip(self.optimizer, max_norm)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: whole(value) for name, value in self.model.state_dict().items()}
