"""DDP between hosts, nn.DataParallel within: one process drives a host's devices."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rankbench.rank.strategies.ddp import Ddp


class DdpOfDataParallel(Ddp):
    """nn.DataParallel scatters a rank's batch over its host's devices.

    The devices of a host add up their gradients at the end of backward, all at once.
    Therefore hardly any communication between hosts overlaps with backward.
    """

    like = "ddp"
    needs = {
        "ranks": "node",
        "replicas": "device",
        "logical_on_cpu": True,
        "compiles": False,
    }
    conditions = [
        {
            "if": {"sync_bn": {"const": True}},
            "then": {"sync_bn": {"const": False}},
            "else": "SyncBatchNorm wants a process for each device",
        },
    ]

    def wrap(self, model: nn.Module) -> nn.Module:
        devices = self.world.devices
        if self.world.device.type == "cuda":
            return nn.DataParallel(model, device_ids=[one.index for one in devices])
        return LogicalDataParallel(model, len(devices))


class LogicalDataParallel(nn.Module):
    """nn.DataParallel on logical CPU devices, which compute one after the other.

    Each device gets a copy of the weights for the step. Autograd adds the gradients of
    the copies to the original weights.
    """

    def __init__(self, module: nn.Module, devices: int) -> None:
        super().__init__()
        self.module = module
        self.devices = devices

    def forward(self, images: Tensor) -> Tensor:
        parts = images.chunk(self.devices)
        outputs = [
            functional_call(self.module, self._replicate(first=number == 0), (part,))
            for number, part in enumerate(parts)
        ]
        return torch.cat(outputs)

    def _replicate(self, *, first: bool) -> dict[str, Tensor]:
        weights = {name: p.clone() for name, p in self.module.named_parameters()}
        # Only the first device updates the running statistics, as on GPUs.
        buffers = {} if first else dict(self.module.named_buffers())
        return weights | {name: buffer.clone() for name, buffer in buffers.items()}
