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

from rankbench.rank.strategies._partition import count_parts
from rankbench.rank.strategies._pipeline import Stage
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
                of_other = rpc.rpc_sync(name, _own_weights)
                weights |= {k: v.to(self.world.device) for k, v in of_other.items()}
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

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of this rank's stage, or a dummy if the stage has none.

        An optimizer requires at least one parameter.
        """
        return list(self.stage.parameters()) or [nn.Parameter(torch.zeros(1))]

    def forward(self, x: Tensor) -> Tensor:
        """Run this rank's stage on a micro-batch.

        Each micro-batch arrives in a thread of its own, so a lock serialises them.
        """
        with self.lock:
            y: Tensor = self.stage(x.to(self.world.device))
            return y

    def own_weights(self) -> dict[str, Tensor]:
        """The weights of the parts on this rank."""
        whole = self.model.state_dict()
        return {k: v for k, v in whole.items() if k.partition(".")[0] in self.names}

    def _split(self, images: Tensor) -> None:
        balance, ranks = str(self.chosen["balance"]), self.world.size
        size = int(self.chosen["split_size"])
        with self.arithmetic():
            parts = list(self.model)
            counts = count_parts(balance, parts, images[:size], ranks, self.load)
        borders = list(pairwise(accumulate(counts, initial=0)))
        for name, (first, last) in zip(self.others, borders[1:], strict=True):
            rpc.rpc_sync(name, _keep, (first, last))
        self.keep(*borders[0])
        parameters = [rpc.RRef(parameter) for parameter in self.parameters()]
        for name in self.others:
            parameters += rpc.rpc_sync(name, _share_parameters)
        self.together = DistributedOptimizer(_make_optimizer, parameters)

    def _forward(self, batch: Batch) -> Tensor:
        """Send all micro-batches through the stages; return the loss over all."""
        images, labels = batch
        size = int(self.chosen["split_size"])
        coming = []
        for part in images.split(size):
            x: Any = self.forward(part)
            if self.others:
                x = x.cpu()
            for name in self.others:
                x = rpc.remote(name, _forward, (x,))
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
        calls = [rpc.rpc_async(name, _note_end, (phase,)) for name in self.others]
        torch.futures.wait_all(calls)
        mark(phase)


# Rank 0 calls the functions below on the other ranks. They act on the strategy of
# their process.
_here: RpcPmp


def _keep(first: int, last: int) -> None:
    _here.keep(first, last)


def _share_parameters() -> list[Any]:
    return [rpc.RRef(parameter) for parameter in _here.parameters()]


def _make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    _here.optimizer = _here.make_optimizer(parameters)
    return _here.optimizer


def _forward(x: Any) -> Tensor:
    """Wait for the output of the previous stage, and run this rank's stage on it."""
    arrived = x.to_here() if isinstance(x, rpc.PyRRef) else x
    return _here.forward(arrived).cpu()


def _note_end(phase: str) -> None:
    _here.ended.put(phase)


def _own_weights() -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in _here.own_weights().items()}
