"""Horovod's DistributedOptimizer: gradients averaged by a thread beside backward."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Strategy


class Horovod(Strategy):
    """A replica per rank; each gradient goes to Horovod as soon as it is there.

    What is not averaged when backward ends is exposed communication.
    """

    needs = {
        "runtime": "horovod",
        "packages": ["horovod"],
        "launchers": ["horovodrun", "mpirun", "hydra", "srun"],
        "backends": ["gloo", "mpi", "nccl", "ccl"],
        "precisions": ["fp32", "tf32", "bf16", "fp16"],
    }
    options = {
        # Gradients that wait at the same time are sent as one, up to this size.
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
    operations = {"all_reduce": 1}
    phases = ["forward", "backward", "communication", "update"]

    # Horovod derives its class from that of the cell's optimizer at run time.
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

    def state_dict(self) -> dict[str, Tensor]:
        return self.model.state_dict()
