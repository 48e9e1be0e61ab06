"""3D parallelism: stages of a pipeline, each on a mesh of ranks as `mesh` has them."""

from __future__ import annotations

from torch import Tensor
from torch.distributed import ProcessGroup, device_mesh

from rankbench.rank.strategies._pipeline import Stage
from rankbench.rank.strategies._split_layers import SplitLayers, whole
from rankbench.rank.strategies._weights import Shards
from rankbench.rank.strategies.base import Batch, Operation
from rankbench.rank.strategies.pipeline import Pipeline


class Mesh3d(Pipeline):
    """A mesh [pipe, copy, shard, tensor] of ranks, such as the GPUs of several hosts.

    The ranks along `pipe` have different stages. Those along `tensor` split the layers
    of a stage. Those along `shard` share out what each of them holds: FSDP2 gathers it
    once in a step. Shards and copies average their gradients after the last
    micro-batch.
    """

    like = "pipeline"
    needs = {
        "replica_ranks": ["pipe", "tensor"],
        "group_ranks": ["pipe", "shard", "tensor"],
        "divides": "layers",
        # As of mesh.
        "torch": {"cpu": "2.8"},
    }
    options = {
        # Numbers of ranks; shard 0: all that others leave. Others hold copies.
        "pipe": {"type": "integer", "minimum": 1, "default": 2},
        "shard": {"type": "integer", "minimum": 0, "default": 0},
        "tensor": {"type": "integer", "minimum": 1, "default": 1},
        # As in tp.
        "sequence": {"type": "boolean", "default": True},
    }
    conditions = [
        {
            "if": {"fused_optimizer": {"const": True}},
            "then": {"optimizer": {"enum": ["adam", "adamw"]}},
            "else": "torch has no fused sgd for weights that are sharded",
        },
    ]
    casts = True

    def find_group(self) -> ProcessGroup:
        pipe, tensor = self.chosen["pipe"], self.chosen["tensor"]
        shard = self.chosen["shard"] or self.world.size // (pipe * tensor)
        self.mesh = device_mesh.init_device_mesh(
            self.world.device.type,
            (pipe, self.world.size // (pipe * shard * tensor), shard, tensor),
            mesh_dim_names=("pipe", "copy", "shard", "tensor"),
        )
        self.shards = Shards(self.mesh, self.low_dtype)
        return self.mesh.get_group("pipe")

    def split_layers(self, shapes: list[Tensor]) -> list[Tensor]:
        self.layers = SplitLayers(
            self.model,
            self.mesh["tensor"],
            self.low_dtype,
            sequence=self.chosen["sequence"],
        )
        return self.layers.shapes(shapes)

    def shard(self, stage: Stage) -> None:
        # Weights stay gathered for the micro-batches that follow.
        self.shards.add(stage, again=False)

    def run(self, batch: Batch) -> Tensor | None:
        with self.layers.split_loss():
            loss = super().run(batch)
        self.layers.end_step()
        return loss

    def share_of_loss(self, output: Tensor, labels: Tensor) -> Tensor:
        loss = super().share_of_loss(self.layers.logits(output), labels)
        # No view: see Stage.
        return whole(loss).clone()

    def operations(self) -> list[Operation]:
        return [
            *super().operations(),
            *self.layers.operations(),
            *self.shards.operations(),
        ]
