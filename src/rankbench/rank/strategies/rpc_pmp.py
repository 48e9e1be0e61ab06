"""Pipelined model parallelism by torch.distributed.rpc: rank 0 calls the others."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise
from queue import SimpleQueue
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer

from rankbench.rank.strategies._pipeline import Stage, count_parts
from rankbench.rank.strategies.base import (
    Batch,
    MakeOptimizer,
    Mark,
    Operation,
    Strategy,
)
from rankbench.rank.world.rpc import barrier, name_of


class RpcPmp(Strategy):
    """Rank 0 holds the first stage and sends micro-batches through all stages.

    Distributed autograd computes the gradients, and a distributed optimizer updates the
    weights. Tensors pass through host memory, also between GPUs.
    """

    needs = {
        "runtime": "rpc",
        "own_backend": "tensorpipe",
        "replica_ranks": "all",
        "sequential": True,
        "shared_weights": False,
        "splits_batch": True,
        "compiles": False,
        "clips": False,
    }
    options = {
        # Number of samples in a micro-batch, as in pmp.
        "split_size": {"type": "integer", "minimum": 1, "default": 16},
        "balance": {
            "type": "string",
            "pattern": "^(measured|parameters|[0-9]+(,[0-9]+)*)$",
            "default": "measured",
        },
    }
    on_meta = True
    phases = ["pipeline", "update"]

    model: nn.Sequential

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        global _here
        assert isinstance(model, nn.Sequential), "models are sequences of named parts"
        self.model = model
        self.make_optimizer = make_optimizer
        self.lock = Lock()
        self.ended: SimpleQueue[str] = SimpleQueue()
        self.others = [name_of(rank) for rank in range(1, self.world.size)]
        self.split = False
        _here = self
        barrier()  # all ranks are ready for calls from rank 0

    def step(self, batch: Batch, mark: Mark) -> Tensor | None:
        if self.world.rank > 0:
            # RPC threads execute the calls of rank 0. This thread waits for the ends
            # of the phases.
            for _ in self.phases:
                mark(self.ended.get())
            return None
        if not self.split:
            self._split(batch[0])
            self.split = True
        with autograd.context() as context:
            loss = self._forward(batch)
            autograd.backward(context, [loss])
            self._end("pipeline", mark)
            self.together.step(context)
        self._end("update", mark)
        return loss.detach()

    def details(self) -> dict[str, Any]:
        """The names of the parts on this rank."""
        return {"parts": self.names}

    def operations(self) -> list[Operation]:
        return [Operation("send_recv", None)]

    def state_dict(self) -> dict[str, Tensor]:
        """The weights of this rank's parts; on rank 0 those of the whole model."""
        weights = self.own_weights()
        if self.world.rank == 0:
            for name in self.others:
                weights |= rpc.rpc_sync(name, _call, ("own_weights",))
        barrier()  # rank 0 has read the weights of all ranks
        return weights

    def keep(self, first: int, last: int) -> None:
        """Keep parts `first` to `last` - 1 of the model; drop the weights of others."""
        parts = list(self.model)
        self.names = [name for name, _ in self.model.named_children()][first:last]
        for part in parts[:first] + parts[last:]:
            part.to("meta")
        for part in parts[first:last]:
            self.load(part, self.world.device)
        self.stage = Stage(parts[first:last], self.arithmetic, self.low_dtype)

    def parameters(self) -> list[Any]:
        """References to the parameters of this rank's stage.

        An optimizer requires at least one parameter: a stage without any has a dummy.
        """
        own = list(self.stage.parameters()) or [nn.Parameter(torch.zeros(1))]
        return [rpc.RRef(parameter) for parameter in own]

    def forward(self, x: Any) -> Tensor:
        """Run this rank's stage on a micro-batch, once it has arrived.

        Each micro-batch arrives in a thread of its own, so a lock serialises them.
        """
        arrived = x.to_here() if isinstance(x, rpc.PyRRef) else x
        with self.lock:
            y: Tensor = self.stage(arrived.to(self.world.device))
            return y.cpu()

    def own_weights(self) -> dict[str, Tensor]:
        """The weights of the parts on this rank, in the memory of its host."""
        whole = self.model.state_dict()
        names = [name for name in whole if name.partition(".")[0] in self.names]
        return {name: whole[name].cpu() for name in names}

    def note_end(self, phase: str) -> None:
        """Note that a phase has ended on all ranks."""
        self.ended.put(phase)

    def _split(self, images: Tensor) -> None:
        balance, ranks = str(self.chosen["balance"]), self.world.size
        size = int(self.chosen["split_size"])
        with self.arithmetic():
            parts = list(self.model)
            counts = count_parts(balance, parts, images[:size], ranks, self.load)
        borders = list(pairwise(accumulate(counts, initial=0)))
        for name, (first, last) in zip(self.others, borders[1:], strict=True):
            rpc.rpc_sync(name, _call, ("keep", first, last))
        self.keep(*borders[0])
        parameters = self.parameters()
        for name in self.others:
            parameters += rpc.rpc_sync(name, _call, ("parameters",))
        self.together = DistributedOptimizer(_make_optimizer, parameters)

    def _forward(self, batch: Batch) -> Tensor:
        """Send all micro-batches through the stages; return the loss over all."""
        images, labels = batch
        size = int(self.chosen["split_size"])
        coming = []
        for part in images.split(size):
            x: Any = self.forward(part)
            for name in self.others:
                x = rpc.remote(name, _call, ("forward", x))
            coming.append(x)
        losses = []
        for x, wanted in zip(coming, labels.split(size), strict=True):
            output = x.to_here() if self.others else x
            received = (output.to(self.world.device), wanted)
            loss = self.compute_loss(nn.Identity(), received)
            losses.append(loss * (len(wanted) / len(labels)))
        return torch.stack(losses).sum()

    def _end(self, phase: str, mark: Mark) -> None:
        """Mark the end of a phase on all ranks together."""
        calls = [
            rpc.rpc_async(name, _call, ("note_end", phase)) for name in self.others
        ]
        torch.futures.wait_all(calls)
        mark(phase)


# The strategy of this process, which rank 0 calls.
_here: RpcPmp


def _call(method: str, *given: Any) -> Any:
    return getattr(_here, method)(*given)


def _make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    _here.optimizer = _here.make_optimizer(parameters)
    return _here.optimizer
