"""Expert parallelism: the experts of a model are shared out to the ranks of a group.

Lepikhin et al. 2020, GShard, arXiv 2006.16668.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import device_mesh
from torch.nn.parallel import DistributedDataParallel

from rankbench.rank.models import Experts
from rankbench.rank.strategies._split_layers import local, moved
from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Operation
from rankbench.rank.strategies.ddp import Ddp


class ExpertParallel(Ddp):
    """Tokens go to the ranks that have their experts, and the results come back.

    DDP averages the gradients of all other weights. An expert learns from all tokens of
    its group; after backward, its copies in the groups add up their gradients.
    """

    like = "ddp"
    needs = {
        "backends": ["gloo", "nccl"],
        # Ranks would disagree on whether the gradients of their experts are finite.
        "precisions": ["fp32", "tf32", "bf16"],
        "group_ranks": ["degree"],
        "divides": "experts",
    }
    options = {
        # Number of ranks that share the experts; 0: all ranks.
        "degree": {"type": "integer", "minimum": 0, "default": 0},
    }
    on_meta = True

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        degree = int(self.chosen["degree"]) or self.world.size
        mesh = device_mesh.init_device_mesh(
            self.world.device.type,
            (self.world.size // degree, degree),
            mesh_dim_names=("copy", "expert"),
        )
        self.group, self.copies = mesh.get_group("expert"), mesh.get_group("copy")
        # dtype -> bytes that the last step has exchanged.
        self.exchanged: Counter[torch.dtype] = Counter()
        modules = model.named_modules()
        self.shared = {path: m for path, m in modules if isinstance(m, Experts)}
        for experts in self.shared.values():
            # This rank keeps some, which then get rows of all ranks.
            few = len(experts) // degree
            for place, number in enumerate([*experts]):
                if place // few != self.group.rank():
                    del experts[number]
            experts.forward = partial(self._run, experts)
        self.load(model, self.world.device)
        self.own = [p for one in self.shared.values() for p in one.parameters()]
        own = {*self.own}
        names = [name for name, p in model.named_parameters() if p in own]
        ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(model, names)
        super().setup(model, make_optimizer)

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        self.exchanged.clear()
        return super().step(batch, mark)

    def update(self) -> None:
        for weight in self.own:
            gradient = local(weight.grad)
            distributed.all_reduce(gradient, group=self.copies)
            gradient /= self.world.size
        self._mark("communication")
        super().update()

    def operations(self) -> list[Operation]:
        return [
            *super().operations(),
            Operation("all_reduce", sum(p.nbytes for p in self.own), group=self.copies),
            *(
                Operation("all_to_all", size, dtype, self.group)
                for dtype, size in self.exchanged.items()
            ),
        ]

    def clip(self, max_norm: float) -> None:
        squares = [
            nn.utils.get_total_norm([local(weight.grad) for weight in weights]) ** 2
            for weights in (self.averaged(), self.own)
        ]
        distributed.all_reduce(squares[1], group=self.group)
        norm = sum(squares) ** 0.5
        nn.utils.clip_grads_with_norm_(self.bare.parameters(), max_norm, norm)

    def state_dict(self) -> dict[str, Tensor]:
        weights = super().state_dict()
        for path, experts in self.shared.items():
            own = {f"{path}.{k}": v.cpu() for k, v in experts.state_dict().items()}
            parts: list[Any] = [None] * self.group.size()
            distributed.all_gather_object(parts, own, self.group)
            if self.world.rank == 0:  # others would fill the memory of its host
                weights |= ChainMap(*parts)
        return weights

    @torch.compiler.disable  # shapes differ in every step
    def _run(self, experts: Experts, rows: Tensor, counts: Tensor) -> Tensor:
        """As `Experts.forward`, with experts that other ranks have."""
        # How many rows each rank has for each expert of this one.
        arriving = torch.empty_like(counts)
        distributed.all_to_all_single(arriving, counts, group=self.group)
        self.exchanged[counts.dtype] += counts.nbytes
        sizes = experts.read(torch.stack((counts, arriving)), len(rows))
        few = len(experts)
        leave, arrive = (
            [sum(line[i : i + few]) for i in range(0, len(line), few)] for line in sizes
        )
        there = partial(self._send, len(rows), leave, arrive)
        back = partial(self._send, len(rows), arrive, leave)
        if self.low_dtype:
            rows = rows.to(self.low_dtype)
        # By rank, and within by expert; each expert takes what all ranks have for it.
        parts = moved(rows, there, back).split(sizes[1])
        done = [
            mlp(torch.cat(parts[i::few])).split(sizes[1][i::few])
            for i, mlp in enumerate(experts.values())
        ]
        by_rank = [part for parts in zip(*done, strict=True) for part in parts]
        results: Tensor = moved(torch.cat(by_rank), back, there)
        return results

    def _send(
        self, rows: int, leave: list[int], arrive: list[int], x: Tensor
    ) -> Tensor:
        """Exchange rows [rows, width]; numbers of rows are by rank of the group.

        Rows that go out come back. So `rows`, which is the same on all ranks, is how
        many they exchange on average, whatever each of them gets.
        """
        received = x.new_empty(sum(arrive), *x.shape[1:])
        distributed.all_to_all_single(
            received, x.contiguous(), arrive, leave, group=self.group
        )
        self.exchanged[x.dtype] += rows * x.shape[1] * x.itemsize
        return received
