"""One process trains on one device: the base of every speedup."""

from __future__ import annotations

from torch import Tensor, nn

from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Strategy


class Single(Strategy):
    """One process on one device.

    On a CPU with several devices per host, the process uses the cores of all of them.
    """

    needs = {
        "ranks": "one",
        "replicas": "one",
        "max_nodes": 1,
        "max_cuda_devices": 1,
        "precisions": ["fp32", "tf32", "bf16", "fp16", "fp8"],
    }
    phases = ["forward", "backward", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        self.model = model
        self.optimizer = make_optimizer(model.parameters())

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        loss = self.train_on(batch, mark)
        self.update()
        mark("update")
        return loss

    def train_on(self, batch: Batch, mark: Mark) -> Tensor:
        """Run forward and backward, which leave the gradients; return the loss."""
        loss = self.compute_loss(self.model, batch)
        mark("forward")
        self.backward(loss)
        mark("backward")
        return loss.detach()

    def state_dict(self) -> dict[str, Tensor]:
        return self.model.state_dict()
