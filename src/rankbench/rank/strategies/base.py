"""What every strategy offers. It knows nothing of clocks, files and schedulers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
Mark = Callable[[str], None]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
ComputeLoss = Callable[[nn.Module, Batch], Tensor]
Arithmetic = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a launch as one of them sees them.

    Attributes:
        rank, size: this process among all.
        local_rank: this process on its host.
        device: where this process computes.
        devices: the devices that this process drives; the first is `device`.
        backend: name of the process group's backend; ``none`` if there is none.
        rank_batch: samples of one step that this process loads.
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device
    devices: tuple[torch.device, ...]
    backend: str
    rank_batch: int


class Strategy(ABC):
    """Trains a model that knows nothing of parallelism.

    The class attributes are read without importing the file, so they must be literals,
    or literals that unpack those of another strategy (``{**Ddp.options, ...}``).

    Attributes:
        needs: what the plan must know, by the names and with the defaults that
            STRATEGY_DEFAULTS of matrix/catalog.py explains.
        options: option -> JSON schema with a default.
        approximate: option -> values that change the arithmetic on purpose; "not
            default" stands for all values but the default.
        exact_dtype: in which the gate compares it with a single process.
        conditions: where fields and options of a cell are as ``if`` says, they must be
            as ``then`` says (JSON schemas by key); ``else`` is why the cell cannot run.
        operations: what its ranks exchange bytes by, as its runtime names it -> how
            often all bytes of the weights go that way in a step; None if it is other
            bytes. Empty where they exchange none.
        phases: what `step` marks, in this order. The harness has measured ``load`` and
            ``transfer`` before. A phase that comes again within a step adds up.
    """

    needs: ClassVar[dict[str, Any]]
    options: ClassVar[dict[str, dict[str, Any]]] = {}
    approximate: ClassVar[dict[str, list[Any] | str]] = {}
    conditions: ClassVar[list[dict[str, Any]]] = []
    phases: ClassVar[list[str]]
    operations: ClassVar[dict[str, float | None]] = {}
    exact_dtype: ClassVar[str] = "float64"

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(self, world: World, compute_loss: ComputeLoss, **options: Any) -> None:
        self.world = world
        self.compute_loss = compute_loss
        self.chosen = options
        # In which `compute_loss` runs a model; for one that runs parts of it elsewhere.
        self.arithmetic: Arithmetic = nullcontext
        # Scales the loss under fp16; else it passes everything through.
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=False)

    @abstractmethod
    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        """Wrap or split the model, which is on `world.device` with equal weights."""

    @abstractmethod
    def step(self, batch: Batch, mark: Mark) -> Tensor | None:
        """Train on this rank's share of a batch.

        Args:
            batch: images [N, C, H, W] and labels [N] on `world.device`.
            mark: to be called with the name of a phase where that phase ends.

        Returns:
            The mean loss over this rank's samples, a detached scalar; None on a rank
            that does not get to know it.
        """

    def compile(self) -> None:
        """torch.compile what `step` calls; asked for after `setup`, before any step.

        The wrapper with its model: DDP then cuts the graph at its buckets, so that
        their communication still overlaps with backward.
        """
        self.model.compile()

    def backward(self, loss: Tensor) -> None:
        """Gradients of the loss, scaled where the precision wants it."""
        self.scaler.scale(loss).backward()

    def update(self) -> None:
        """The optimizer's step; afterwards there are no gradients."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def details(self) -> dict[str, Any]:
        """What only the strategy can tell of the run, for the record, as JSON.

        Called once, after the timed window, by all ranks together.
        """
        return {}

    def optimizer_state(self) -> Iterable[Any]:
        """The state that this rank's optimizer keeps, parameter by parameter."""
        return self.optimizer.state.values()

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """The whole model's weights, with the names of the bare model.

        All ranks call it together; what rank 0 gets counts.
        """
