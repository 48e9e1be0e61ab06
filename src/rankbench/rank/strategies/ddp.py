"""DistributedDataParallel: a replica per rank, gradients averaged during backward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

from rankbench.rank.strategies._readiness import bucket_times, time_gradients
from rankbench.rank.strategies.base import (
    Batch,
    MakeOptimizer,
    Mark,
    Operation,
    Strategy,
    stand_in,
)

# torch requires two steps before PowerSGD starts; planning requires that they fall
# into the warm-up.
FIRST_POWERSGD_STEP = 2

# Name in the record -> name of DDP's own timer, which counts nanoseconds.
TIMERS = {
    "forward_ms": "avg_forward_compute_time",
    "backward_ms": "avg_backward_compute_time",
    "communication_ms": "avg_backward_comm_time",
    "overlap_ms": "avg_backward_compute_comm_overlap_time",
}


def read_timers(logged: dict[str, Any]) -> dict[str, float]:
    """DDP's own timers: means over the steps that it sampled, in milliseconds.

    `iteration` is the last sampled step, counted from 1. Timers that this torch does
    not have are left out.
    """
    timers = {ms: logged[ns] / 1e6 for ms, ns in TIMERS.items() if logged.get(ns)}
    if timers:
        timers["iteration"] = logged["iteration"]
    return timers


def _compressed(weight: Tensor, rank: int) -> int:
    """Numbers that PowerSGD sends for a gradient: two matrices of this rank, or it."""
    rows = weight.shape[0] if weight.dim() > 1 else weight.numel()
    columns = weight.numel() // rows
    few = (rows + columns) * rank
    # torch's default of `min_compression_rate` is 2.
    return few if 2 * few < weight.numel() else weight.numel()


class Ddp(Strategy):
    """A replica per rank; DDP all-reduces gradients in buckets during backward.

    The phase backward ends when this rank's last gradient is computed. The time from
    there until `backward` returns is exposed communication.
    """

    needs = {
        "backends": ["gloo", "mpi", "nccl"],
        "precisions": ["fp32", "tf32", "bf16", "fp16", "fp8"],
        "multiple_of": "accumulation",
        "splits_batch": "accumulation",
    }
    options = {
        "bucket_mb": {"type": "number", "exclusiveMinimum": 0, "default": 25},
        "gradient_as_bucket_view": {"type": "boolean", "default": False},
        "static_graph": {"type": "boolean", "default": False},
        # Number of parts that a rank's batch is split into. Gradients are averaged over
        # the ranks after the last part only.
        "accumulation": {"type": "integer", "minimum": 1, "default": 1},
        # Batch normalisation uses the statistics of all ranks' samples.
        "sync_bn": {"type": "boolean", "default": False},
        # How gradients are compressed for communication.
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
    phases = ["forward", "backward", "communication", "update"]

    model: DistributedDataParallel

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        on_gpu = self.world.device.type == "cuda"
        self.bare = model
        # Inputs and targets of a backward, without their values.
        self._like: tuple[Tensor, ...] = ()
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
        """Wrap the replica of a rank before DDP does; subclasses may override it."""
        return model

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        self._mark = mark
        parts = int(self.chosen["accumulation"])
        inputs, targets = (tensor.chunk(parts) for tensor in batch)
        *first, last = zip(inputs, targets, strict=True)
        losses = []
        with self.model.no_sync():
            for part in first:
                losses.append(self._learn(part, 1 / parts))
                mark("backward")
        losses.append(self._learn(last, 1 / parts))
        mark("communication")
        if not self._like:
            self._like = tuple(whole.to("meta") for whole in last)
        self._watch_last_gradient_only()
        self.update()
        mark("update")
        return losses[0] if parts == 1 else torch.stack(losses).sum()

    def averaged(self) -> list[nn.Parameter]:
        """The weights whose gradients DDP averages."""
        others = self.model.parameters_to_ignore
        named = self.bare.named_parameters()
        return [one for name, one in named if one.requires_grad and name not in others]

    def operations(self) -> list[Operation]:
        kind = self.chosen["compression"]
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(kind, torch.float32)
        numbers = sum(weight.numel() for weight in self.averaged())
        if kind == "powersgd":
            rank = int(self.chosen["powersgd_rank"])
            numbers = sum(_compressed(weight, rank) for weight in self.averaged())
        sent = [Operation("all_reduce", numbers * dtype.itemsize, dtype)]
        # Before a forward pass, the buffers of rank 0.
        sizes: dict[torch.dtype, int] = defaultdict(int)
        for buffer in self.bare.buffers():
            sizes[buffer.dtype] += buffer.nbytes
        return sent + [Operation("broadcast", size, of) for of, size in sizes.items()]

    def details(self) -> dict[str, Any]:
        """DDP's own timers, and when its buckets are ready.

        The buckets are timed in extra steps, which communicate nothing and leave the
        model as it was.
        """
        # A private function of torch: a later version may lack it.
        logged: dict[str, Any] = getattr(self.model, "_get_ddp_logging_data", dict)()
        return {
            "ddp_timers": read_timers(logged),
            "buckets": self._time_buckets(logged),
        }

    def state_dict(self) -> dict[str, Tensor]:
        return self.bare.state_dict()

    def _time_buckets(self, logged: dict[str, Any]) -> list[dict[str, float]]:
        """Bytes of each bucket, and when it is ready; [] if it cannot be known."""
        if self.chosen["static_graph"]:
            return []  # refuses backward without communication
        kept = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        device = self.world.device
        batch = stand_in(self._like, device)

        def forward() -> Callable[[], None]:
            loss = self.compute_loss(self.model, batch)
            return lambda: self.backward(loss)

        learning = self.averaged()
        with self.model.no_sync():
            ready = time_gradients(learning, forward, device)
        self.optimizer.zero_grad()
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
        return bucket_times(logged, [one.nbytes for one in learning], ready)

    def _learn(self, part: Batch, share: float) -> Tensor:
        """Run forward and backward of a part of the batch; return its weighted loss."""
        loss = self.compute_loss(self.model, part)
        if share < 1:
            loss = loss * share
        self._mark("forward")
        self.backward(loss)
        return loss.detach()

    def _compress(self) -> None:
        """Register the hook that compresses gradients before DDP sends them."""
        kind = self.chosen["compression"]
        if kind == "powersgd":
            self.settled_after = FIRST_POWERSGD_STEP
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
        """Mark the end of backward whenever a gradient is ready; the last mark counts.

        These hooks run before DDP's own hook. So the mark comes before DDP starts the
        communication of the last bucket.
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
        """Keep only the hook of the last gradient, which the first step has found.

        The order of the gradients follows the graph, so it is the same in every step.
        """
        if len(self._hooks) > 1:
            for parameter, hook in self._hooks.items():
                if parameter is not self._last:
                    hook.remove()
            self._hooks = {self._last: self._hooks[self._last]}
