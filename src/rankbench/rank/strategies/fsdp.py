"""Fully sharded data parallel: weights, gradients and optimizer state are sharded."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed import device_mesh
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import CustomPolicy

from rankbench.rank.strategies._weights import (
    gathered_parts,
    keep_statistics,
    make_contiguous,
)
from rankbench.rank.strategies.base import MakeOptimizer, Operation
from rankbench.rank.strategies.single import Single

# (several copies of the model?, free gathered weights after forward?) -> FSDP1's name.
_STRATEGIES = {
    (False, True): ShardingStrategy.FULL_SHARD,
    (False, False): ShardingStrategy.SHARD_GRAD_OP,
    (True, True): ShardingStrategy.HYBRID_SHARD,
    (True, False): ShardingStrategy._HYBRID_SHARD_ZERO2,
}


class Fsdp(Single):
    """Gathers the weights of each part of the model when they are needed.

    With bf16 it gathers weights in bf16, and reduces gradients in float32.

    The phases forward and backward include the communication, which cannot be measured
    apart.
    """

    needs = {
        "backends": ["gloo", "nccl"],
        "group_ranks": ["shard_ranks"],
    }
    options = {
        # auto: FSDP2; FSDP1 on a CPU if this torch cannot run FSDP2 there.
        "implementation": {"enum": ["auto", "fsdp2", "fsdp1"], "default": "auto"},
        "reshard_after_forward": {"type": "boolean", "default": True},
        # Number of ranks that share one copy of the model; 0: all ranks. With fewer
        # there are several copies, which average their gradients.
        "shard_ranks": {"type": "integer", "minimum": 0, "default": 0},
    }
    conditions = [
        {
            "if": {"fused_optimizer": {"const": True}},
            "then": {"optimizer": {"enum": ["adam", "adamw"]}},
            "else": "torch has no fused sgd for weights that are sharded",
        }
    ]
    on_meta = True
    casts = True
    phases = ["forward", "backward", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        if self.low_dtype:
            keep_statistics(model)
        wrap = self._wrap_2 if self._runs_fsdp2() else self._wrap_1
        self.mesh = self._make_mesh()
        wrapped = wrap(model, self.mesh)
        self.load(wrapped, self.world.device)
        super().setup(wrapped, make_optimizer)

    def operations(self) -> list[Operation]:
        low = self.low_dtype or torch.float32
        shards = self.mesh.get_group("shard")
        # Before forward, and before backward if they were freed.
        times = 2 if self.chosen["reshard_after_forward"] else 1
        size, gathered = self.weight_bytes, self.weight_bytes * low.itemsize / 4
        sent = [
            Operation("all_gather", times * gathered, low, shards),
            Operation("reduce_scatter", size, group=shards),
        ]
        if self.mesh.ndim == 2:
            copies = self.mesh.get_group("copy")
            sent.append(Operation("all_reduce", size / shards.size(), group=copies))
        return sent

    def state_dict(self) -> dict[str, Tensor]:
        # Rank 0 gets the whole model, in the memory of its host. FSDP1 on a CPU would
        # free what it gives.
        is_first = isinstance(self.model, FullyShardedDataParallel)
        offload = self.world.device.type == "cuda" or not is_first
        whole = StateDictOptions(full_state_dict=True, cpu_offload=offload)
        weights = get_model_state_dict(self.model, options=whole)
        return cast(dict[str, Tensor], weights)

    def clip(self, max_norm: float) -> None:
        if isinstance(self.model, FullyShardedDataParallel):
            self.model.clip_grad_norm_(max_norm)
        else:
            super().clip(max_norm)

    def _runs_fsdp2(self) -> bool:
        if self.chosen["implementation"] != "auto":
            return bool(self.chosen["implementation"] == "fsdp2")
        # FSDP2 in torch 2.6 uses streams, which a CPU does not have.
        major, minor = (int(part) for part in torch.__version__.split(".")[:2])
        return self.world.device.type == "cuda" or (major, minor) >= (2, 8)

    def _make_mesh(self) -> DeviceMesh:
        """A mesh [copies, ranks of a copy], or [ranks] if there is a single copy."""
        ranks, kind = self.chosen["shard_ranks"] or self.world.size, self.world.device
        copies = self.world.size // ranks
        sizes = {"shard": ranks} if copies == 1 else {"copy": copies, "shard": ranks}
        return device_mesh.init_device_mesh(
            kind.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )

    def _wrap_2(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        make_contiguous(model)
        shard = partial(
            fully_shard,
            mesh=mesh,
            reshard_after_forward=self.chosen["reshard_after_forward"],
        )
        low = MixedPrecisionPolicy(
            param_dtype=self.low_dtype,
            reduce_dtype=torch.float32 if self.low_dtype else None,
        )
        for part in gathered_parts(model):
            shard(part, mp_policy=low)
        shard(model, mp_policy=low)
        return model

    def _wrap_1(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        low = MixedPrecision(
            param_dtype=self.low_dtype,
            reduce_dtype=torch.float32,
            _module_classes_to_ignore=(),
        )
        wrapped: nn.Module = FullyShardedDataParallel(
            model,
            mixed_precision=low if self.low_dtype else None,
            device_id=self.world.device,
            # FSDP1 calls it for one part after the other, and shards each at once.
            param_init_fn=lambda part: self.load(part, self.world.device),
            device_mesh=mesh,
            sharding_strategy=_STRATEGIES[
                mesh.ndim == 2, self.chosen["reshard_after_forward"]
            ],
            auto_wrap_policy=CustomPolicy(set(gathered_parts(model)).__contains__),
            use_orig_params=True,
        )
        return wrapped
