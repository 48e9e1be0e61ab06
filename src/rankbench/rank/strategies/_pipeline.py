"""A stage of a pipeline, what it sends to the next one, and how long it works."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rankbench.rank.strategies.base import Arithmetic


class Stage(nn.Module):
    """Neighbouring parts of a model: what they are fed may come from another rank."""

    def __init__(self, parts: Sequence[nn.Module], arithmetic: Arithmetic) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)
        self.arithmetic = arithmetic
        self._learns = any(True for _ in self.parts.parameters())

    def forward(self, x: Tensor) -> Tensor:
        if not self._learns:
            # Else a first stage would leave nothing that a backward could begin at.
            x.requires_grad_()
        if x.requires_grad:
            # A copy, because a part may work in place, which a leaf does not allow.
            x = x.clone()
        with self.arithmetic():
            y = self.parts(x)
        # The receiver knows its shape and nothing of its strides.
        sent: Tensor = y.contiguous()
        return sent


def trace_shapes(
    parts: Sequence[nn.Module], x: Tensor, arithmetic: Arithmetic
) -> list[Tensor]:
    """What goes into the first part and what comes out of each, without its data.

    The parts stay as they are.
    """
    shapes = [x.to("meta")]
    with torch.no_grad(), arithmetic():
        for part in parts:
            x = copy.deepcopy(part)(x.clone())
            shapes.append(x.to("meta", memory_format=torch.contiguous_format))
    return shapes


class Stopwatch:
    """Takes the time of what a device does, by kind; read when all of it is done.

    On a CPU `spans` has the begin and the end of each, on the host's monotonic clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]]
        self._events = defaultdict(list)

    @contextmanager
    def __call__(self, kind: str) -> Iterator[None]:
        if self._on_gpu:
            events = (torch.cuda.Event(True), torch.cuda.Event(True))
            events[0].record()
            yield
            events[1].record()
            self._events[kind].append(events)
        else:
            begin = time.perf_counter()
            yield
            self.spans[kind].append((begin, time.perf_counter()))

    def seconds(self, kind: str) -> Tensor:
        """Of each time that it was done, in their order, [times]."""
        if self._on_gpu:
            torch.cuda.synchronize()
            taken = [a.elapsed_time(b) * 1e-3 for a, b in self._events[kind]]
        else:
            taken = [end - begin for begin, end in self.spans[kind]]
        return torch.tensor(taken, dtype=torch.float64)
