"""Horovod's DistributedOptimizer: a thread averages gradients during backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rankbench.rank.strategies.base import (
    Batch,
    MakeOptimizer,
    Mark,
    Operation,
    Strategy,
)


class Horovod(Strategy):
    """A replica per rank; Horovod gets each gradient as soon as it is computed.

    The phase communication is the time that Horovod still needs after backward.
    """

    needs = {
        "runtime": "horovod",
        "packages": ["horovod"],
        "launchers": ["horovodrun", "mpirun", "hydra", "srun"],
        "backends": ["gloo", "mpi", "nccl", "ccl"],
        "precisions": ["fp32", "tf32", "bf16", "fp16"],
    }
    options = {
        # Gradients that are ready at the same time are sent together, up to this size.
        "fusion_threshold_mb": {"type": "number", "minimum": 0, "default": 128},
        "compression": {"enum": ["none", "fp16"], "default": "none"},
    }
    conditions = [
        {
            "if": {"compression": {"const": "fp16"}},
            "then": {"backend": {"not": {"const": "ccl"}}},
            "else": "Horovod sends nothing of half precision over ccl",
        }
    ]
    approximate = {"compression": ["fp16"]}
    phases = ["forward", "backward", "communication", "update"]

    # Any, because Horovod derives the class from the cell's optimizer at run time.
    optimizer: Any

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        import horovod.torch as horovod

        self.model = model
        self.optimizer = horovod.DistributedOptimizer(
            make_optimizer(model.parameters()),
            named_parameters=model.named_parameters(),
            compression=getattr(horovod.Compression, self.chosen["compression"]),
        )

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        loss = self.compute_loss(self.model, batch)
        mark("forward")
        self.backward(loss)
        mark("backward")
        self.optimizer.synchronize()
        mark("communication")
        with self.optimizer.skip_synchronize():
            self.update()
        mark("update")
        return loss.detach()

    def operations(self) -> list[Operation]:
        dtype = torch.float16 if self.chosen["compression"] == "fp16" else torch.float32
        return [Operation("all_reduce", self.weight_bytes * dtype.itemsize / 4, dtype)]

    def state_dict(self) -> dict[str, Tensor]:
        return self.model.state_dict()
