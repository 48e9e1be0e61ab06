"""Manual model parallelism: the parts of a model are on several devices of a host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rankbench.rank.strategies._pipeline import count_parts
from rankbench.rank.strategies.base import Batch, Load, MakeOptimizer, Mark
from rankbench.rank.strategies.single import Single


class ModelParallel(Single):
    """A batch passes from device to device; only one device computes at a time.

    On a CPU the devices are logical: a run shows that the split works, not its speed.
    """

    needs = {
        "ranks": "one",
        "replicas": "one",
        "min_devices": 2,
        "max_nodes": 1,
        "sequential": True,
        "shared_weights": False,
        "logical_on_cpu": True,
        "precisions": ["fp32", "tf32", "bf16", "fp16"],
        "compiles": False,
    }
    options = {
        # How parts are distributed. measured: by the measured time of each part;
        # parameters: by the number of parameters; 3,5: the first three parts on the
        # first device, the next five on the second.
        "balance": {
            "type": "string",
            "pattern": "^(measured|parameters|[0-9]+(,[0-9]+)+)$",
            "default": "measured",
        }
    }
    on_meta = True
    phases = ["forward", "backward", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        assert isinstance(model, nn.Sequential), "models are sequences of named parts"
        self.bare = model
        self.chain = Chain(model, self.world.devices)
        self.model = self.chain
        self.make_optimizer = make_optimizer

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        if not self.chain.stages:
            balance, devices = str(self.chosen["balance"]), len(self.world.devices)
            parts = list(self.bare)
            counts = count_parts(balance, parts, batch[0], devices, self.load)
            self.chain.place(counts, self.load)
            self.optimizer = self.make_optimizer(self.model.parameters())
        images, labels = batch
        return super().step((images, labels.to(self.world.devices[-1])), mark)

    def state_dict(self) -> dict[str, Tensor]:
        first = self.world.devices[0]
        weights = self.bare.state_dict()
        return {name: value.to(first) for name, value in weights.items()}


class Chain(nn.Module):
    """The parts of a model in order, each on its device."""

    def __init__(self, model: nn.Sequential, devices: Sequence[torch.device]) -> None:
        super().__init__()
        self.parts = model
        self.devices = devices
        self.stages: list[nn.Sequential] = []

    def place(self, counts: Sequence[int], load: Load) -> None:
        """Load the first counts[0] parts on the first device, and so on."""
        left = list(self.parts)
        for count, device in zip(counts, self.devices, strict=True):
            stage = nn.Sequential(*left[:count])
            load(stage, device)
            self.stages.append(stage.to(device))
            left = left[count:]

    def forward(self, x: Tensor) -> Tensor:
        for stage, device in zip(self.stages, self.devices, strict=True):
            x = stage(x.to(device, non_blocking=True))
        return x
