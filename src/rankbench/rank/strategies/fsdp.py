"""Fully sharded data parallel: weights, gradients and optimizer state are split."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from rankbench.rank.strategies.base import MakeOptimizer
from rankbench.rank.strategies.single import Single


class Fsdp(Single):
    """Each part of the model is gathered when it is needed.

    Forward and backward contain that communication; it cannot be told from them.
    """

    needs = {"backends": ["gloo", "nccl"], "compiles": False}
    options = {
        # auto: FSDP2, but FSDP1 where this torch cannot run FSDP2 on a CPU.
        "implementation": {"enum": ["auto", "fsdp2", "fsdp1"], "default": "auto"},
        "reshard_after_forward": {"type": "boolean", "default": True},
    }
    phases = ["forward", "backward", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        wrap = self._wrap_2 if self._runs_fsdp2() else self._wrap_1
        super().setup(wrap(model), make_optimizer)

    def state_dict(self) -> dict[str, Tensor]:
        whole = StateDictOptions(full_state_dict=True)
        weights = get_model_state_dict(self.model, options=whole)
        return cast(dict[str, Tensor], weights)

    def _runs_fsdp2(self) -> bool:
        if self.chosen["implementation"] != "auto":
            return bool(self.chosen["implementation"] == "fsdp2")
        # FSDP2 of torch 2.6 uses streams that a CPU does not have.
        major, minor = (int(part) for part in torch.__version__.split(".")[:2])
        return self.world.device.type == "cuda" or (major, minor) >= (2, 8)

    def _wrap_2(self, model: nn.Module) -> nn.Module:
        reshard = self.chosen["reshard_after_forward"]
        for part in model.children():
            if any(True for _ in part.parameters()):
                fully_shard(part, reshard_after_forward=reshard)
        fully_shard(model, reshard_after_forward=reshard)
        return model

    def _wrap_1(self, model: nn.Module) -> nn.Module:
        wrapped: nn.Module = FullyShardedDataParallel(
            model, device_id=self.world.device, use_orig_params=True
        )
        return wrapped
