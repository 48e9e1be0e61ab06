"""Context parallelism: the tokens of a sequence are split over the ranks of a group.

Jacobs et al. 2023, DeepSpeed Ulysses, arXiv 2309.14509.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import device_mesh

from rankbench.rank.strategies._split_layers import moved
from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Operation
from rankbench.rank.strategies.ddp import Ddp

# Dimensions of queries, keys and values, [N, heads, T, width of a head].
HEADS, TOKENS = 1, 2


class ContextParallel(Ddp):
    """Each rank has a slice of the tokens; within attention, it has some of the heads.

    All ranks average their gradients as in DDP: slices have equally many tokens.
    """

    like = "ddp"
    needs = {
        "backends": ["gloo", "nccl"],
        "replica_ranks": "degree",
        "divides": "heads",
        "context": True,
        "compiles": False,
    }
    options = {
        # Number of ranks that share a sequence; 0: all ranks.
        "degree": {"type": "integer", "minimum": 0, "default": 0},
    }

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        self.degree = int(self.chosen["degree"]) or self.world.size
        shape = (self.world.size // self.degree, self.degree)
        mesh = device_mesh.init_device_mesh(
            self.world.device.type, shape, mesh_dim_names=("data", "context")
        )
        self.group = mesh["context"].get_group()
        self.dtype, self.exchanged = torch.float32, 0
        for name, module in model.named_modules():
            if name.endswith("attention"):
                module.register_forward_pre_hook(self._take_heads)
                module.register_forward_hook(self._give_heads)
            elif name.endswith("positions"):
                module.register_forward_pre_hook(self._move)
        super().setup(model, make_optimizer)

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        self.exchanged = 0
        inputs, targets = (self._slice(whole) for whole in batch)
        return super().step((inputs, targets), mark)

    def operations(self) -> list[Operation]:
        swaps = Operation("all_to_all", self.exchanged, self.dtype, self.group)
        return [*super().operations(), swaps]

    def _to_heads(self, x: Tensor) -> Tensor:
        return self._swap(x, HEADS, TOKENS)

    def _to_tokens(self, x: Tensor) -> Tensor:
        return self._swap(x, TOKENS, HEADS)

    def _swap(self, x: Tensor, split: int, join: int) -> Tensor:
        """Split a dimension over the ranks of the group, and join another one."""
        sent = torch.stack(x.chunk(self.degree, split))
        received = torch.empty_like(sent)
        distributed.all_to_all_single(received, sent, group=self.group)
        self.exchanged += sent.nbytes
        self.dtype = sent.dtype
        return torch.cat(received.unbind(), join)

    def _slice(self, tokens: Tensor) -> Tensor:
        """This rank's part of ids [N, T]."""
        place = self.world.rank % self.degree
        return tokens.chunk(self.degree, 1)[place].contiguous()

    def _move(self, _: nn.Module, places: tuple[Tensor]) -> tuple[Tensor]:
        """The places of this rank's tokens, given those of a sequence [T]."""
        return (places[0] + self.world.rank % self.degree * len(places[0]),)

    def _take_heads(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
        return tuple(moved(x, self._to_heads, self._to_tokens) for x in inputs)

    def _give_heads(self, _: nn.Module, __: Any, output: Tensor) -> Any:
        return moved(output, self._to_tokens, self._to_heads)
