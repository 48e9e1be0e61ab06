"""LocalSGD and DiLoCo: ranks train on their own, and meet every few steps.

Stich 2018, Local SGD Converges Fast and Communicates Little, arXiv 1805.09767.
Douillard et al. 2023, DiLoCo, arXiv 2311.08105.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed, nn

from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Operation
from rankbench.rank.strategies.single import Single


class LocalSgd(Single):
    """Every `period` steps an outer step moves the weights that all ranks share.

    Its gradient is how far the ranks have moved away from them, on average. The
    optimizer's state stays on its rank.
    """

    needs = {"backends": ["gloo", "mpi", "nccl"], "clips": False, "periodic": "period"}
    options = {
        # Number of steps between two outer steps.
        "period": {"type": "integer", "minimum": 1, "default": 1},
        # Of the outer SGD with Nesterov momentum. These defaults average the weights.
        "outer_lr": {"type": "number", "exclusiveMinimum": 0, "default": 1},
        "outer_momentum": {
            "type": "number",
            "minimum": 0,
            "exclusiveMaximum": 1,
            "default": 0,
        },
    }
    approximate = {
        "period": "not default",
        "outer_lr": "not default",
        "outer_momentum": "not default",
    }
    conditions = [
        {
            "if": {"optimizer": {"enum": ["adam", "adamw"]}},
            "then": {"period": {"minimum": 2}},
            "else": "with period 1, averaged weights are those of ddp with sgd only: "
            "take a period of 2 or more, or ddp",
        }
    ]
    phases = ["forward", "backward", "communication", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        super().setup(model, make_optimizer)
        self.period = int(self.chosen["period"])
        self.steps = 0
        # The shared weights, as one vector.
        self.shared = nn.Parameter(self._flatten())
        momentum = float(self.chosen["outer_momentum"])
        self.outer = torch.optim.SGD(
            [self.shared],
            lr=float(self.chosen["outer_lr"]),
            momentum=momentum,
            nesterov=momentum > 0,
        )

    def train_on(self, batch: Batch, mark: Mark) -> Tensor:
        loss = super().train_on(batch, mark)
        mark("communication")  # most steps have none
        return loss

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        loss = super().step(batch, mark)
        self.steps += 1
        if self.steps % self.period == 0:
            self.shared.grad = self.shared.detach() - self._flatten()
            distributed.all_reduce(self.shared.grad)
            mark("communication")
            self.shared.grad /= self.world.size
            self.outer.step()
            self.outer.zero_grad()
            self._start_again()
            mark("update")
        return loss

    def operations(self) -> list[Operation]:
        return [Operation("all_reduce", self.weight_bytes / self.period)]

    def optimizer_state(self) -> Iterable[Any]:
        """The shared weights and their momentum, too."""
        outer = self.outer.state.values()
        return [*super().optimizer_state(), *outer, {"shared": self.shared}]

    def state_dict(self) -> dict[str, Tensor]:
        """The mean over the ranks, which may be between two outer steps."""
        weights = {}
        for name, value in self.model.state_dict().items():
            weights[name] = value.clone()
            if value.is_floating_point():
                distributed.all_reduce(weights[name])
                weights[name] /= self.world.size
        return weights

    def _flatten(self) -> Tensor:
        """This rank's weights, as one vector."""
        # Weights may be in another order in memory (channels_last).
        weights = [weight.detach().flatten() for weight in self.model.parameters()]
        return torch.cat(weights)

    def _start_again(self) -> None:
        """Continue with the shared weights."""
        weights = [weight.detach() for weight in self.model.parameters()]
        parts = self.shared.detach().split([weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.copy_(part.view_as(weight))
