"""DistributedDataParallel: a replica per rank, gradients averaged during backward."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Strategy


class Ddp(Strategy):
    """Backward ends when this rank's last gradient is there.

    What follows until `backward` returns is communication that nothing hides.
    """

    needs = {
        "backends": ["gloo", "mpi", "nccl"],
        "precisions": ["fp32", "tf32", "bf16", "fp16"],
    }
    options = {
        "bucket_mb": {"type": "number", "exclusiveMinimum": 0, "default": 25},
        "gradient_as_bucket_view": {"type": "boolean", "default": False},
        "static_graph": {"type": "boolean", "default": False},
    }
    phases = ["forward", "backward", "communication", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        on_gpu = self.world.device.type == "cuda"
        self.model = DistributedDataParallel(
            model,
            device_ids=[self.world.device] if on_gpu else None,
            bucket_cap_mb=self.chosen["bucket_mb"],
            gradient_as_bucket_view=self.chosen["gradient_as_bucket_view"],
            static_graph=self.chosen["static_graph"],
        )
        self.optimizer = make_optimizer(self.model.parameters())
        self._watch_gradients()

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        self._mark = mark
        loss = self.compute_loss(self.model, batch)
        mark("forward")
        self.backward(loss)
        mark("communication")
        self._watch_last_gradient_only()
        self.update()
        mark("update")
        return loss.detach()

    def state_dict(self) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = self.model.module.state_dict()
        return weights

    def _watch_gradients(self) -> None:
        """Mark the end of backward at every gradient; the last mark counts.

        A hook on the parameter runs before DDP's own, which starts the communication
        of the last bucket.
        """
        self._hooks = {
            parameter: parameter.register_post_accumulate_grad_hook(self._note)
            for parameter in self.model.parameters()
            if parameter.requires_grad
        }

    def _note(self, parameter: nn.Parameter) -> None:
        self._last = parameter
        self._mark("backward")

    def _watch_last_gradient_only(self) -> None:
        """The order of gradients is that of the graph: after one step it is known."""
        if len(self._hooks) > 1:
            for parameter, hook in self._hooks.items():
                if parameter is not self._last:
                    hook.remove()
            self._hooks = {self._last: self._hooks[self._last]}
