"""DDP with ZeroRedundancyOptimizer: each rank keeps a part of the optimizer state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from rankbench.rank.strategies.base import MakeOptimizer, Operation
from rankbench.rank.strategies.ddp import Ddp


class Zero1(Ddp):
    """Averages gradients as DDP does; each rank updates and broadcasts its weights.

    The phase update includes that broadcast.
    """

    like = "ddp"
    options = {"parameters_as_bucket_view": {"type": "boolean", "default": False}}

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        def make_part(parts: Iterable[Any], **_defaults: Any) -> torch.optim.Optimizer:
            return make_optimizer(parts)

        def make_sharded(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return ZeroRedundancyOptimizer(
                parameters,
                # It is only called, so a function works in place of a class.
                optimizer_class=cast("type[torch.optim.Optimizer]", make_part),
                parameters_as_bucket_view=self.chosen["parameters_as_bucket_view"],
            )

        super().setup(model, make_sharded)

    def operations(self) -> list[Operation]:
        return [*super().operations(), Operation("broadcast", self.weight_bytes)]

    def optimizer_state(self) -> Iterable[Any]:
        """The optimizer state of this rank's part of the weights."""
        sharded = self.optimizer
        assert isinstance(sharded, ZeroRedundancyOptimizer)
        part: torch.optim.Optimizer = sharded.optim
        return part.state.values()
