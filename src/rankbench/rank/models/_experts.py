"""A mixture of experts in place of an MLP; a router chooses some for each token.

Jiang et al. 2024, Mixtral of Experts, arXiv 2401.04088.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mixture(nn.Module):
    """The weighted sum of `top_k` experts of each token.

    No expert refuses a token, however many it gets, and no term of the loss balances
    them.
    """

    def __init__(
        self, width: int, inner: int, experts: int, top_k: int, *, balanced: bool
    ) -> None:
        """Build router and experts.

        Args:
            balanced: whether tokens take their experts in turn, so that all experts get
                equally many; otherwise each takes those that the router prefers. In
                both cases the router says how much each of them counts.
        """
        super().__init__()
        self.top_k, self.balanced = top_k, balanced
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(width, inner, experts)

    def forward(self, tokens: Tensor) -> Tensor:
        flat = tokens.flatten(0, -2)
        logits, experts = self.router(flat), self.router.out_features
        counts = None
        if self.balanced:
            numbers = torch.arange(len(flat) * self.top_k, device=flat.device) % experts
            logits = logits.gather(1, numbers.view(-1, self.top_k))
        else:
            logits, chosen = logits.topk(self.top_k)
            numbers = chosen.flatten()
            counts = numbers.new_zeros(experts)
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


class Experts(nn.Module):
    """Gated MLPs, each of which sees its own rows; their weights lie together.

    It is a module of its own so that ranks can share it out. Every expert runs, with no
    rows as well, so every weight has a gradient.

    Attributes:
        number: of experts, of which this rank may have some only.
        routed: number of rows for each expert since the beginning, if a router chooses.
    """

    def __init__(self, width: int, inner: int, number: int) -> None:
        super().__init__()
        self.number, self.routed = number, [0] * number
        self.gate = nn.Parameter(torch.empty(number, inner, width))
        self.up = nn.Parameter(torch.empty(number, inner, width))
        self.down = nn.Parameter(torch.empty(number, width, inner))
        # See `expect_balance`.
        self.is_balanced = False

    def forward(self, rows: Tensor, counts: Tensor | None) -> Tensor:
        """Apply the experts.

        Args:
            rows: [rows, width], those of the first expert first.
            counts: number of rows for each expert; None if equally many, or one more
                for the first ones.
        """
        if counts is None:
            return self.share(rows, None)
        results: Tensor = self.share_as_read(rows, counts)
        return results

    def share(self, rows: Tensor, counts: Tensor | None) -> Tensor:
        """As `forward`; all experts are on this rank."""
        if counts is None:
            return self.run(rows, self.evenly(len(rows)))
        return self.run(rows, *self.read(counts[None], len(rows)))

    def run(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Apply the experts that are here to so many rows each."""
        if multiplies_in_groups(rows):
            ends = torch.tensor([*accumulate(sizes)], dtype=torch.int32)
            ends = ends.to(rows.device, non_blocking=True)
            gate, up, down = (w.mT for w in (self.gate, self.up, self.down))
            gated = functional.silu(torch._grouped_mm(rows, gate, offs=ends))
            inner = gated * torch._grouped_mm(rows, up, offs=ends)
            return torch._grouped_mm(inner, down, offs=ends)
        done = []
        parts = zip(rows.split(sizes), self.gate, self.up, self.down, strict=True)
        for part, gate, up, down in parts:
            gated = functional.silu(functional.linear(part, gate))
            inner = gated * functional.linear(part, up)
            done.append(functional.linear(inner, down))
        return torch.cat(done)

    def evenly(self, rows: int) -> list[int]:
        """Number of rows for each expert, if they take them in turn."""
        return [(rows + n) // self.number for n in reversed(range(self.number))]

    def read(self, counts: Tensor, rows: int) -> list[list[int]]:
        """The values of counts [any number, experts]; the host waits for them.

        Args:
            counts: the first line says how many rows of this rank each expert gets.
            rows: the sum of that line.
        """
        if self.is_balanced:
            values = [self.evenly(rows)] * len(counts)
        else:
            values = counts.tolist()
        self.routed = [a + b for a, b in zip(self.routed, values[0], strict=True)]
        return values

    def share_as_read(self, rows: Tensor, counts: Tensor) -> Tensor:
        return self.share(rows, counts)


def multiplies_in_groups(rows: Tensor) -> bool:
    """Whether one kernel of torch multiplies rows by the matrices of all experts."""
    return (
        rows.dtype == torch.bfloat16
        and rows.is_cuda
        and hasattr(torch, "_grouped_mm")
        and torch.cuda.get_device_capability(rows.device) >= (9, 0)
    )


def expect_balance(model: nn.Module) -> None:
    """Let a model whose tensors have no values route rows to its experts evenly."""
    for module in model.modules():
        if isinstance(module, Experts):
            module.is_balanced = True


def describe_experts(model: nn.Module, dtype: torch.dtype, device: torch.device) -> str:
    """How tokens come to experts, and how these multiply; empty without experts."""
    for module in model.modules():
        if isinstance(module, Mixture):
            how = "balanced" if module.balanced else "learned"
            grouped = multiplies_in_groups(torch.empty(0, dtype=dtype, device=device))
            return f"{how}, {'grouped products' if grouped else 'one by one'}"
    return ""


def routed_rows(model: nn.Module) -> dict[str, list[int]]:
    """Number of rows for each expert since the beginning, by block on this rank."""
    return {
        name: module.routed
        for name, module in model.named_modules()
        if isinstance(module, Experts) and any(module.routed)
    }
