"""nn.DataParallel: one process scatters each batch over the GPUs of its host."""

from __future__ import annotations

from torch import Tensor, nn

from rankbench.rank.strategies.base import MakeOptimizer
from rankbench.rank.strategies.single import Single


class DataParallel(Single):
    """nn.DataParallel; the phase forward includes scatter, replicate and gather."""

    needs = {
        "ranks": "one",
        "replicas": "device",
        "device": ["cuda"],
        "min_devices": 2,
        "max_nodes": 1,
        "precisions": ["fp32", "tf32", "bf16", "fp16"],
        "compiles": False,
    }
    phases = ["forward", "backward", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        indices = [device.index for device in self.world.devices]
        self.bare = model
        super().setup(nn.DataParallel(model, device_ids=indices), make_optimizer)

    def state_dict(self) -> dict[str, Tensor]:
        return self.bare.state_dict()
