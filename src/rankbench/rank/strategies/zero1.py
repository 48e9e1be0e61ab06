"""ZeroRedundancyOptimizer under DDP: a rank keeps a part of the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from rankbench.rank.strategies.base import MakeOptimizer
from rankbench.rank.strategies.ddp import Ddp


class Zero1(Ddp):
    """Gradients as in DDP; a rank updates its part and sends it to the others.

    That exchange is part of the update phase.
    """

    options = {
        **Ddp.options,
        "parameters_as_bucket_view": {"type": "boolean", "default": False},
    }
    operations = {"all_reduce": 1, "broadcast": 1}

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        def make_part(parts: Iterable[Any], **_defaults: Any) -> torch.optim.Optimizer:
            return make_optimizer(parts)

        def make_sharded(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return ZeroRedundancyOptimizer(
                parameters,
                # It only calls it; so it need not be a class.
                optimizer_class=cast("type[torch.optim.Optimizer]", make_part),
                parameters_as_bucket_view=self.chosen["parameters_as_bucket_view"],
            )

        super().setup(model, make_sharded)

    def optimizer_state(self) -> Iterable[Any]:
        """What the optimizer of this rank's part keeps."""
        sharded = self.optimizer
        assert isinstance(sharded, ZeroRedundancyOptimizer)
        part: torch.optim.Optimizer = sharded.optim
        return part.state.values()
