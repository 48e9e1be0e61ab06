"""Pipelined model parallelism over torch.distributed.rpc: rank 0 drives the others."""

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

from rankbench.rank.runtimes.rpc import barrier, name_of
from rankbench.rank.strategies._partition import count_parts
from rankbench.rank.strategies._pipeline import Stage
from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Strategy


class RpcPmp(Strategy):
    """Rank 0 sends micro-batches through the stages, and has the first one itself.

    Gradients come back by distributed autograd, updates by a distributed optimizer.
    Tensors pass through the memory of the hosts, also those of GPUs.
    """

    needs = {
        "runtime": "rpc",
        "own_backend": "tensorpipe",
        "replica_ranks": "all",
        "splits_batch": True,
        "compiles": False,
    }
    options = {
        # As in pmp.
        "split_size": {"type": "integer", "minimum": 1, "default": 16},
        "balance": {
            "type": "string",
            "pattern": "^(measured|parameters|[0-9]+(,[0-9]+)*)$",
            "default": "measured",
        },
    }
    operations = {"send_recv": None}
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
        barrier()  # from here on rank 0 may call

    def step(self, batch: Batch, mark: Mark) -> Tensor | None:
        if self.world.rank > 0:
            # Other threads serve what rank 0 asks for.
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
        """Which parts this rank has."""
        return {"parts": self.names}

    def state_dict(self) -> dict[str, Tensor]:
        """The weights of a rank's own parts; on rank 0 those of all."""
        weights = self.own_weights()
        if self.world.rank == 0:
            for name in self.others:
                of_other = rpc.rpc_sync(name, _own_weights)
                weights |= {k: v.to(self.world.device) for k, v in of_other.items()}
        barrier()  # until then the others must be there, and as they are
        return weights

    def keep(self, first: int, last: int) -> None:
        """Have only these parts of the model from here on."""
        parts = list(self.model)
        self.names = [name for name, _ in self.model.named_children()][first:last]
        for part in parts[:first] + parts[last:]:
            part.to("meta")
        self.stage = Stage(parts[first:last], self.arithmetic)

    def parameters(self) -> list[nn.Parameter]:
        """Those of this rank; an optimizer wants one, and a stage may have none."""
        return list(self.stage.parameters()) or [nn.Parameter(torch.zeros(1))]

    def forward(self, x: Tensor) -> Tensor:
        """Of this rank's stage; micro-batches come in threads of their own."""
        with self.lock:
            y: Tensor = self.stage(x.to(self.world.device))
            return y

    def own_weights(self) -> dict[str, Tensor]:
        whole = self.model.state_dict()
        return {k: v for k, v in whole.items() if k.partition(".")[0] in self.names}

    def _split(self, images: Tensor) -> None:
        balance, ranks = str(self.chosen["balance"]), self.world.size
        size = int(self.chosen["split_size"])
        with self.arithmetic():
            counts = count_parts(balance, list(self.model), images[:size], ranks)
        borders = list(pairwise(accumulate(counts, initial=0)))
        for name, (first, last) in zip(self.others, borders[1:], strict=True):
            rpc.rpc_sync(name, _keep, (first, last))
        self.keep(*borders[0])
        parameters = [rpc.RRef(parameter) for parameter in self.parameters()]
        for name in self.others:
            parameters += rpc.rpc_sync(name, _share_parameters)
        self.together = DistributedOptimizer(_make_optimizer, parameters)

    def _forward(self, batch: Batch) -> Tensor:
        """The loss over all micro-batches: while one is here, others are ahead."""
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
        total = labels.new_zeros((), dtype=images.dtype)
        for x, wanted in zip(coming, labels.split(size), strict=True):
            output = x.to_here() if self.others else x
            received = (output.to(self.world.device), wanted)
            loss = self.compute_loss(nn.Identity(), received)
            total = total + loss * (len(wanted) / len(labels))
        return total

    def _end(self, phase: str, mark: Mark) -> None:
        """No rank goes on before all have ended the phase."""
        calls = [rpc.rpc_async(name, _note_end, (phase,)) for name in self.others]
        torch.futures.wait_all(calls)
        mark(phase)


# What rank 0 calls on the others. A process is one rank.
_here: RpcPmp


def _keep(first: int, last: int) -> None:
    _here.keep(first, last)


def _share_parameters() -> list[Any]:
    return [rpc.RRef(parameter) for parameter in _here.parameters()]


def _make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    _here.optimizer = _here.make_optimizer(parameters)
    return _here.optimizer


def _forward(x: Any) -> Tensor:
    """Of the stage here, on what the stage before has made or will make."""
    arrived = x.to_here() if isinstance(x, rpc.PyRRef) else x
    return _here.forward(arrived).cpu()


def _note_end(phase: str) -> None:
    _here.ended.put(phase)


def _own_weights() -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in _here.own_weights().items()}
