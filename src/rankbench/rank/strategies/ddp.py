"""DistributedDataParallel: a replica per rank, gradients averaged during backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Strategy

# torch wants two steps before it; the plan wants them within the warm-up.
FIRST_POWERSGD_STEP = 2

# DDP's own timers, in nanoseconds, by the names that the record gives them.
TIMERS = {
    "forward_ms": "avg_forward_compute_time",
    "backward_ms": "avg_backward_compute_time",
    "communication_ms": "avg_backward_comm_time",
    "overlap_ms": "avg_backward_compute_comm_overlap_time",
}


class Ddp(Strategy):
    """Backward ends when this rank's last gradient is there.

    What follows until `backward` returns is communication that nothing hides.
    """

    needs = {
        "backends": ["gloo", "mpi", "nccl"],
        "precisions": ["fp32", "tf32", "bf16", "fp16"],
        "multiple_of": "accumulation",
        "splits_batch": "accumulation",
    }
    options = {
        "bucket_mb": {"type": "number", "exclusiveMinimum": 0, "default": 25},
        "gradient_as_bucket_view": {"type": "boolean", "default": False},
        "static_graph": {"type": "boolean", "default": False},
        # Micro-steps: the batch of a rank in so many parts, averaged after the last.
        "accumulation": {"type": "integer", "minimum": 1, "default": 1},
        # Normalise over the samples of all ranks.
        "sync_bn": {"type": "boolean", "default": False},
        # What gradients are on their way.
        "compression": {
            "enum": ["none", "fp16", "bf16", "powersgd"],
            "default": "none",
        },
        "powersgd_rank": {"type": "integer", "minimum": 1, "default": 1},
    }
    approximate = {"compression": ["fp16", "bf16", "powersgd"]}
    conditions = [
        {
            "if": {"sync_bn": {"const": True}},
            "then": {"device": {"const": "cuda"}},
            "else": "torch's SyncBatchNorm does not train on a CPU",
        },
        {
            "if": {"compression": {"const": "fp16"}},
            "then": {"backend": {"enum": ["gloo", "nccl"]}},
            "else": "torch's MPI backend carries no numbers of 16 bits",
        },
        {
            "if": {"compression": {"const": "bf16"}},
            "then": {"backend": {"const": "nccl"}},
            "else": "torch's bf16 compression hook runs over nccl only",
        },
        {
            "if": {"compression": {"const": "powersgd"}},
            "then": {"warmup": {"minimum": 2}},
            "else": "powersgd begins with the third step: take a warmup of 2 or more",
        },
        {
            "if": {"static_graph": {"const": True}},
            "then": {"accumulation": {"const": 1}},
            "else": "torch's DDP cannot accumulate gradients of a static graph",
        },
    ]
    operations = {"all_reduce": 1}
    phases = ["forward", "backward", "communication", "update"]

    model: DistributedDataParallel

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        on_gpu = self.world.device.type == "cuda"
        self.bare = model
        if self.chosen["sync_bn"]:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.model = DistributedDataParallel(
            self.wrap(model),
            device_ids=[self.world.device] if on_gpu else None,
            bucket_cap_mb=self.chosen["bucket_mb"],
            gradient_as_bucket_view=self.chosen["gradient_as_bucket_view"],
            static_graph=self.chosen["static_graph"],
        )
        self._compress()
        self.optimizer = make_optimizer(self.model.parameters())
        self._watch_gradients()

    def wrap(self, model: nn.Module) -> nn.Module:
        """What a rank does with its replica; here nothing."""
        return model

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        self._mark = mark
        parts = int(self.chosen["accumulation"])
        images, labels = (tensor.chunk(parts) for tensor in batch)
        *first, last = zip(images, labels, strict=True)
        losses = []
        with self.model.no_sync():
            for part in first:
                losses.append(self._learn(part, 1 / parts))
                mark("backward")
        losses.append(self._learn(last, 1 / parts))
        mark("communication")
        self._watch_last_gradient_only()
        self.update()
        mark("update")
        return losses[0] if parts == 1 else torch.stack(losses).sum()

    def details(self) -> dict[str, Any]:
        """DDP's own timers, means over the steps that it sampled, as far as it has any.

        `iteration` is the last step that they know of, counted from 1.
        """
        # A private function of torch, so that it may be gone.
        logged: dict[str, Any] = getattr(self.model, "_get_ddp_logging_data", dict)()
        timers = {ms: logged[ns] / 1e6 for ms, ns in TIMERS.items() if logged.get(ns)}
        if timers:
            timers["iteration"] = logged["iteration"]
        return {"ddp_timers": timers}

    def state_dict(self) -> dict[str, Tensor]:
        return self.bare.state_dict()

    def _learn(self, part: Batch, share: float) -> Tensor:
        """Forward and backward of a part of the batch; its share of the loss."""
        loss = self.compute_loss(self.model, part)
        if share < 1:
            loss = loss * share
        self._mark("forward")
        self.backward(loss)
        return loss.detach()

    def _compress(self) -> None:
        """A hook does what DDP does without one, but for what it sends."""
        kind = self.chosen["compression"]
        if kind == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=self.chosen["powersgd_rank"],
                start_powerSGD_iter=FIRST_POWERSGD_STEP,
            )
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif kind != "none":
            hook = getattr(default_hooks, f"{kind}_compress_hook")
            self.model.register_comm_hook(None, hook)

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
