"""Fully sharded data parallel: weights, gradients and optimizer state are sharded."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
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
    CPUOffloadPolicy,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import CustomPolicy

from rankbench.rank.strategies._weights import (
    gathered_parts,
    keep_statistics,
    make_contiguous,
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
        "group_ranks": ["shard_ranks"],
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
        wrap = self._wrap_2 if self._runs_fsdp2() else self._wrap_1
        self.mesh = self._make_mesh()
        parts = gathered_parts(model)
        # Backward begins with the last part, and with what is of no part.
        kept = {*model.parameters()} - {p for part in parts for p in part.parameters()}
        if parts and self._runs_fsdp2():
            kept |= {*parts[-1].parameters()}
        self.kept_bytes = 4 * sum(weight.numel() for weight in kept)
        wrapped = wrap(model, self.mesh)
        offload, device = self.chosen["offload"], self.world.device
        self.load(wrapped, torch.device("cpu") if offload else device)
        # Only weights are offloaded.
        for module in wrapped.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
        super().setup(wrapped, make_optimizer)

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
        low = self.low_dtype or torch.float32
        shards = self.mesh.get_group("shard")
        size, gathered = self.weight_bytes, float(self.weight_bytes)
        again, passes = (
            self.chosen["reshard_after_forward"],
            self.chosen["accumulation"],
        )
        if again:
            gathered += size - self.kept_bytes  # before backward
        if again or isinstance(self.model, FSDPModule):
            gathered *= passes  # else FSDP1 keeps the weights until the last
        gathered *= low.itemsize / 4
        sent = [
            Operation("all_gather", gathered, low, shards),
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
        low = MixedPrecisionPolicy(
            param_dtype=self.low_dtype,
            reduce_dtype=torch.float32 if self.low_dtype else None,
        )
        # On a CPU, as of fake ranks, there is nothing to offload to.
        offload = self.chosen["offload"] and self.world.device.type == "cuda"
        shard = partial(
            fully_shard,
            mesh=mesh,
            mp_policy=low,
            offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy(),
        )
        parts, again = gathered_parts(model), self.chosen["reshard_after_forward"]
        for part in parts:
            # Backward begins with the last one.
            shard(part, reshard_after_forward=again and part is not parts[-1])
        shard(model, reshard_after_forward=False)
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
