"""Fully sharded data parallel: weights, gradients and optimizer state are sharded."""

from __future__ import annotations

from typing import Any

from rankbench.rank.strategies.base import ComputeLoss, World
from rankbench.rank.strategies.mesh import Mesh


class Fsdp(Mesh):
    """A mesh of copies and shards, for any model; the host may hold the weights.

    With bf16 it gathers weights in bf16, and reduces gradients in float32.

    The phases forward and backward include the communication, which cannot be measured
    apart.
    """

    needs = {
        "backends": ["gloo", "nccl"],
        "group_ranks": "shard_ranks",
        "precisions": ["fp32", "tf32", "bf16", "fp8"],
        "multiple_of": "accumulation",
        "splits_batch": "accumulation",
        # As of mesh.
        "torch": {"cpu": "2.8"},
    }
    options = {
        "reshard_after_forward": {"type": "boolean", "default": True},
        # Number of ranks that share one copy of the model; 0: all ranks. With fewer
        # there are several copies, which average their gradients.
        "shard_ranks": {"type": "integer", "minimum": 0, "default": 0},
        # Number of parts of a rank's batch. Gradients are sent after the last only.
        "accumulation": {"type": "integer", "minimum": 1, "default": 1},
        # Keep weights, gradients and the optimizer's state in the memory of the host,
        # which also updates the weights.
        "offload": {"type": "boolean", "default": False},
    }
    conditions = [
        {
            "if": {"offload": {"const": True}},
            "then": {"device": {"const": "cuda"}, "clip_gradients": {"const": None}},
            "else": "offload is of GPUs, without clip_gradients",
        },
        {
            "if": {"fused_optimizer": {"const": True}},
            "then": {"optimizer": {"enum": ["adam", "adamw"]}},
            "else": "torch has no fused sgd for weights that are sharded",
        },
    ]
    on_meta = True
    phases = ["forward", "backward", "update"]

    def __init__(self, world: World, compute_loss: ComputeLoss, **options: Any) -> None:
        ranks = options["shard_ranks"] or world.size
        axes = dict.fromkeys(("pipe", "context", "tensor", "expert"), 1)
        axes |= {"copy": world.size // ranks, "shard": ranks}
        parts = options["accumulation"]
        super().__init__(world, compute_loss, microbatches=parts, **axes, **options)
        self.offload = options["offload"]
