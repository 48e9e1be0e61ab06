"""Fully sharded data parallel: weights, gradients and optimizer state are sharded."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import device_mesh
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import CustomPolicy

from rankbench.rank.strategies._weights import (
    Shards,
    gathered_parts,
    keep_statistics,
)
from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Operation
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
        "group_ranks": "shard_ranks",
        "precisions": ["fp32", "tf32", "bf16", "fp8"],
        "multiple_of": "accumulation",
        "splits_batch": "accumulation",
    }
    options = {
        # auto: FSDP2; FSDP1 on a CPU if this torch cannot run FSDP2 there.
        "implementation": {"enum": ["auto", "fsdp2", "fsdp1"], "default": "auto"},
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
            "then": {
                "device": {"const": "cuda"},
                "implementation": {"enum": ["auto", "fsdp2"]},
                "clip_gradients": {"const": None},
            },
            "else": "offload is of FSDP2 on GPUs, without clip_gradients",
        },
        {
            "if": {"fused_optimizer": {"const": True}},
            "then": {"optimizer": {"enum": ["adam", "adamw"]}},
            "else": "torch has no fused sgd for weights that are sharded",
        },
    ]
    on_meta = True
    casts = True
    phases = ["forward", "backward", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        if self.low_dtype:
            keep_statistics(model)
        self.mesh, again = self._make_mesh(), self.chosen["reshard_after_forward"]
        offload, device = self.chosen["offload"], self.world.device
        self.shards = Shards(self.mesh, self.low_dtype)
        if self._runs_fsdp2():
            # On a CPU, as of fake ranks, there is nothing to offload to.
            self.shards.add(
                model, again=again, offload=offload and device.type == "cuda"
            )
        else:
            self.shards.count(model, gathered_parts(model) if again else [])
            model = self._wrap_1(model, again=again)
        self.load(model, torch.device("cpu") if offload else device)
        # Only weights are offloaded.
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
        super().setup(model, make_optimizer)

    def train_on(self, batch: Batch, mark: Mark) -> Tensor:
        parts = int(self.chosen["accumulation"])
        losses = []
        for number in range(parts):
            inputs, targets = (tensor.chunk(parts)[number] for tensor in batch)
            with self._sending(number == parts - 1):
                loss = self.compute_loss(self.model, (inputs, targets)) / parts
                mark("forward")
                self.backward(loss)
                mark("backward")
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def _sending(self, sends: bool) -> AbstractContextManager[Any]:
        """A context for a pass after which gradients are sent, or are kept whole."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(sends)
        elif not sends:
            return cast(FullyShardedDataParallel, self.model).no_sync()
        return nullcontext()

    def operations(self) -> list[Operation]:
        # Without gathering again, FSDP1 keeps the weights until the last pass.
        again = self.chosen["reshard_after_forward"]
        each = again or isinstance(self.model, FSDPModule)
        return self.shards.operations(self.chosen["accumulation"] if each else 1)

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

    def _wrap_1(self, model: nn.Module, *, again: bool) -> nn.Module:
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
            device_mesh=self.mesh,
            sharding_strategy=_STRATEGIES[self.mesh.ndim == 2, again],
            auto_wrap_policy=CustomPolicy(set(gathered_parts(model)).__contains__),
            use_orig_params=True,
        )
        return wrapped
