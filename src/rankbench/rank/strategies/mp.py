"""Manual model parallelism: the parts of a model are on several devices of a host."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from rankbench.rank.strategies._pipeline import count_parts
from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark
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

    model: nn.Sequential

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        assert isinstance(model, nn.Sequential), "models are sequences of named parts"
        self.bare = model
        self.model = nn.Sequential()  # of stages, once the first batch is there
        self.make_optimizer = make_optimizer

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        if not len(self.model):
            self._place(batch[0])
            self.optimizer = self.make_optimizer(self.model.parameters())
        images, labels = batch
        return super().step((images, labels.to(self.world.devices[-1])), mark)

    def _place(self, images: Tensor) -> None:
        """Load the first parts on the first device, and so on."""
        balance, devices = str(self.chosen["balance"]), self.world.devices
        left = list(self.bare)
        counts = count_parts(balance, left, images, len(devices), self.load)
        for count, device in zip(counts, devices, strict=True):
            stage = nn.Sequential(*left[:count])
            left = left[count:]
            self.load(stage, device)
            stage.register_forward_pre_hook(partial(_bring, device))
            self.model.append(stage.to(device))

    def state_dict(self) -> dict[str, Tensor]:
        first = self.world.devices[0]
        weights = self.bare.state_dict()
        return {name: value.to(first) for name, value in weights.items()}


def _bring(device: torch.device, _stage: nn.Module, given: tuple[Tensor]) -> Tensor:
    return given[0].to(device, non_blocking=True)
