"""A mixture of experts in place of an MLP; a router chooses some for each token.

Jiang et al. 2024, Mixtral of Experts, arXiv 2401.04088.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Mixture(nn.Module):
    """The weighted sum of the `top_k` experts that a router prefers for a token.

    No expert refuses a token, however many it gets, and no term of the loss balances
    them.
    """

    def __init__(
        self, width: int, experts: int, top_k: int, mlp: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(experts, mlp)

    def forward(self, tokens: Tensor) -> Tensor:
        flat = tokens.flatten(0, -2)
        logits, chosen = self.router(flat).topk(self.top_k)
        numbers = chosen.flatten()
        counts = numbers.new_zeros(self.router.out_features)
        counts = counts.scatter_add(0, numbers, torch.ones_like(numbers))
        # A row is a token for one expert; those of one expert lie together.
        order = numbers.argsort(stable=True)
        rows = flat.index_select(0, order // self.top_k)
        results = self.experts(rows, counts).index_select(0, order.argsort())
        accurate = torch.promote_types(logits.dtype, torch.float32)
        shares = logits.softmax(-1, dtype=accurate).to(results.dtype)
        mixed = results.unflatten(0, (-1, self.top_k)) * shares[..., None]
        result: Tensor = mixed.sum(1).view_as(tokens)
        return result


class Experts(nn.ModuleDict):
    """MLPs by their numbers, each of which sees its own rows.

    It is a module of its own so that ranks can share it out. Every expert runs, with no
    rows as well, so every weight has a gradient.

    Attributes:
        routed: number of rows for each expert since the beginning.
    """

    def __init__(self, experts: int, mlp: Callable[[], nn.Module]) -> None:
        super().__init__({str(number): mlp() for number in range(experts)})
        self.routed = [0] * experts
        # Used by `read` in place of values that are not there; see `expect_balance`.
        self.stand_in: Callable[[Tensor, int], list[list[int]]] | None = None

    @torch.compiler.disable  # shapes differ in every step
    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply the experts.

        Args:
            rows: [rows, width], those of the first expert first.
            counts: number of rows for each expert.
        """
        (sizes,) = self.read(counts[None], len(rows))
        pairs = zip(self.values(), rows.split(sizes), strict=True)
        return torch.cat([mlp(part) for mlp, part in pairs])

    def read(self, counts: Tensor, rows: int) -> list[list[int]]:
        """The values of counts [any number, experts]; the host waits for them.

        Args:
            counts: the first line says how many rows of this rank each expert gets.
            rows: the sum of that line.
        """
        values = self.stand_in(counts, rows) if self.stand_in else counts.tolist()
        self.routed = [a + b for a, b in zip(self.routed, values[0], strict=True)]
        return values


def expect_balance(model: nn.Module, wait: Callable[[], Any] = lambda: None) -> None:
    """Let a model whose tensors have no values route rows to its experts evenly.

    Args:
        wait: called where the host would wait for the values.
    """

    def share(counts: Tensor, rows: int) -> list[list[int]]:
        wait()
        lines, experts = counts.shape
        even = [(rows + number) // experts for number in range(experts)]
        return [even] * lines

    for module in model.modules():
        if isinstance(module, Experts):
            module.stand_in = share


def routed_rows(model: nn.Module) -> dict[str, list[int]]:
    """Number of rows for each expert since the beginning, by block on this rank."""
    return {
        name: module.routed
        for name, module in model.named_modules()
        if isinstance(module, Experts) and any(module.routed)
    }
