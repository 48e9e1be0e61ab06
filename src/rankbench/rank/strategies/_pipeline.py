"""Cuts a model into stages: a stage, the shapes that it sends, and a stopwatch."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rankbench.decoder import split_evenly
from rankbench.rank.models import expect_balance
from rankbench.rank.strategies._readiness import between, stamp
from rankbench.rank.strategies.base import Arithmetic, Load

# Of a part that is timed. The first includes one-time set-up.
PASSES = 4


class Stage(nn.Module):
    """Consecutive parts of a model; their input may come from another rank."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        arithmetic: Arithmetic,
        low_dtype: torch.dtype | None = None,
    ) -> None:
        """Take the parts.

        Args:
            low_dtype: of activations that are sent, as of a strategy.
        """
        super().__init__()
        self.parts = nn.Sequential(*parts)
        self.arithmetic = arithmetic
        self.low_dtype = low_dtype
        self._learns = any(True for _ in self.parts.parameters())

    def forward(self, x: Tensor) -> Tensor:
        if not self._learns and x.is_floating_point():
            # A first stage without weights would otherwise have no graph for backward.
            x.requires_grad_()
        if x.requires_grad:
            # A clone, because autograd forbids in-place operations on a leaf tensor.
            x = x.clone()
        with self.arithmetic():
            y = self.parts(x)
        # The receiver allocates its buffer from the shape alone, without strides.
        sent: Tensor = lower(y, self.low_dtype).contiguous()
        # Zero-bubble schedules detach it in place, which torch refuses for a view.
        return sent.clone() if sent._is_view() else sent


def lower(x: Tensor, low_dtype: torch.dtype | None) -> Tensor:
    """What is sent of an activation: in the low precision, if the cell has one."""
    return x.to(low_dtype) if low_dtype and x.is_floating_point() else x


def trace_shapes(
    parts: Sequence[nn.Module], x: Tensor, low_dtype: torch.dtype | None
) -> list[Tensor]:
    """The input of the first part and the output of each part, as meta tensors.

    Copies of the parts are run on the meta device, so nothing is computed and the parts
    themselves do not change.
    """
    shapes = [x.to("meta")]
    y = shapes[0]
    with torch.no_grad():
        for part in parts:
            empty = copy_to_meta(part)
            expect_balance(empty)
            y = empty(y.clone())
            sent = lower(y, low_dtype)
            shapes.append(sent.contiguous(memory_format=torch.contiguous_format))
    return shapes


def copy_to_meta(part: nn.Module) -> nn.Module:
    """A copy of a module on the meta device, without a copy of its values."""
    memo: dict[int, Any] = {}
    for value in (*part.parameters(), *part.buffers()):
        empty = torch.empty_like(value, device="meta")
        is_parameter = isinstance(value, nn.Parameter)
        memo[id(value)] = nn.Parameter(empty) if is_parameter else empty
    return copy.deepcopy(part, memo)


def count_parts(
    balance: str,
    parts: Sequence[nn.Module],
    images: Tensor,
    groups: int,
    load: Load,
) -> list[int]:
    """The number of consecutive parts for each group.

    Args:
        balance: ``measured``, ``parameters``, or the numbers themselves (``3,5``).
        parts: the parts of a model, in order.
        images: a batch for measuring, [N, C, H, W].
        groups: number of devices or stages.
        load: as of a strategy.

    Raises:
        ValueError: there are fewer parts than groups, or the numbers in `balance` do
            not fit the parts or the groups.
    """
    if balance == "measured":
        return split_evenly(measure_parts(parts, images, load), groups)
    if balance == "parameters":
        sizes = [sum(p.numel() for p in part.parameters()) for part in parts]
        return split_evenly(sizes, groups)
    counts = [int(count) for count in balance.split(",")]
    if len(counts) != groups or sum(counts) != len(parts):
        raise ValueError(
            f"balance {balance} is not for {len(parts)} parts in {groups} groups"
        )
    return counts


def measure_parts(
    parts: Sequence[nn.Module], images: Tensor, load: Load
) -> list[float]:
    """Seconds that forward and backward of each part take on a batch.

    It is the fastest of some passes: other programs only make a pass slower.
    The parts do not change. Parts on the meta device are loaded one at a time.
    """
    seconds = []
    x = images
    for original in parts:
        on_meta = any(p.is_meta for p in (*original.parameters(), *original.buffers()))
        if on_meta:
            load(original, images.device)
        part = original if on_meta else copy.deepcopy(original)
        watch = Stopwatch(images.device)
        for _ in range(PASSES):
            # A clone, because autograd forbids in-place operations on a leaf tensor.
            source = x.detach().requires_grad_(x.is_floating_point()).clone()
            with watch("part"):
                y = part(source)
                y.sum().backward()
        seconds.append(float(watch.seconds("part").min()))
        x = y.detach()
        if on_meta:
            part.zero_grad()
            part.to("meta")
    return seconds


class Stopwatch:
    """Times the work of a device, by kind; read it when all work is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.spans: dict[str, list[tuple[Any, Any]]] = defaultdict(list)

    @contextmanager
    def __call__(self, kind: str) -> Iterator[None]:
        begin = stamp(self._device)
        yield
        self.spans[kind].append((begin, stamp(self._device)))

    def seconds(self, kind: str) -> Tensor:
        """Duration of each piece of work of this kind, in order: float64 [pieces]."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        taken = [between(*span) for span in self.spans[kind]]
        return torch.tensor(taken, dtype=torch.float64)
