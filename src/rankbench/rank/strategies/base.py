"""The interface of a strategy, and the types that its methods take and return.

A strategy reads no clock, no file and no environment variable, and it knows nothing of
schedulers. The harness loads the batches, takes the time and writes the record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

# Inputs and targets: images [N, C, H, W], floating point, and labels [N], int64; or
# token ids [N, T], int64, and the token that follows each of them, [N, T], int64.
Batch = tuple[Tensor, Tensor]
# mark(phase) notes that this phase of the step ends now.
Mark = Callable[[str], None]
# Builds the cell's optimizer for the given parameters.
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
# Runs a model on a batch in the cell's precision; returns the mean loss over samples,
# or over all tokens, shape []. A third argument is used in place of torch's
# cross_entropy(logits, targets).
ComputeLoss = Callable[..., Tensor]
# Returns a context for a forward pass: autocast, or a context that does nothing.
Arithmetic = Callable[[], AbstractContextManager[Any]]
# load(part, device) gives memory and first values to those tensors of a part of the
# model that are on the meta device; of a sharded tensor, to this rank's shard. Ranks
# call it for any parts, in any order. It does not communicate.
Load = Callable[[nn.Module, torch.device], None]


@dataclass(frozen=True, slots=True)
class World:
    """The place of this process among the processes of its launch.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes in the launch.
        local_rank: number of this process on its host, from 0.
        device: device of this process; batches and the model are there.
        devices: all devices that this process drives; the first is `device`.
        backend: name of the cell's backend; ``none`` if ranks do not communicate.
        rank_batch: number of samples that this process loads in each step.
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device
    devices: tuple[torch.device, ...]
    backend: str
    rank_batch: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A kind of communication in each step.

    Attributes:
        name: as the runtime names it, such as ``all_reduce``.
        bytes: of the whole tensors of all calls in a step: of what is gathered, or of
            what is scattered, or of what this rank sends; None if it is not known.
        dtype: of the tensors.
        group: the ranks that take part; None for all.
    """

    name: str
    bytes: float | None
    dtype: torch.dtype = torch.float32
    group: ProcessGroup | None = None

    def ranks(self, world: World) -> int:
        """Number of ranks that take part."""
        return world.size if self.group is None else self.group.size()


def stand_in(like: Sequence[Tensor], device: torch.device) -> Batch:
    """A batch of random images, or tokens 0, and targets 0; for steps timed apart.

    Args:
        like: inputs and targets on the meta device, which have shapes and dtypes only.
        device: device of the batch.
    """
    inputs, targets = like
    draw = torch.rand_like if inputs.is_floating_point() else torch.zeros_like
    return draw(inputs, device=device), torch.zeros_like(targets, device=device)


class Strategy(ABC):
    """Trains a model that knows nothing of parallelism.

    A strategy is one file with one class that derives from this one. The harness calls
    `setup` once, then `step` in a loop, and at the end `details` and `state_dict`.

    Planning reads the class attributes from the source, without importing the file.
    They must be literals.

    Attributes:
        like: name of the strategy that the class derives from, if its declarations add
            to those of that one: `needs` and `options` replace single keys there,
            `conditions` come after those, all others replace what it says.
        needs: requirements of the strategy. STRATEGY_DEFAULTS in
            matrix/declarations.py explains every key and gives its default.
        options: option name -> JSON schema, with a default.
        approximate: option name -> list of the values that change the arithmetic on
            purpose; the string "not default" means every value but the default.
        exact_dtype: dtype in which the gate compares the strategy with one process.
        conditions: rules ``{"if", "then", "else"}``. ``if`` and ``then`` map fields
            and options of a cell to JSON schemas. A cell that matches ``if`` but not
            ``then`` is unsupported; ``else`` is the reason that users read.
        on_meta: whether `setup` gets the model on the meta device. It then calls `load`
            for what the rank keeps, once that is sharded, so that no rank ever holds
            more. If False, the harness loads the whole model before.
        casts: whether the strategy itself casts weights and inputs to `low_dtype`. Then
            there is no autocast.
        phases: names of the phases that `step` marks, in this order. The harness marks
            ``load`` and ``transfer`` before it calls `step`.
        model: the model as `setup` leaves it.
        optimizer: set it in `setup`, or in the first `step` at the latest.
    """

    like: ClassVar[str | None] = None
    needs: ClassVar[dict[str, Any]]
    options: ClassVar[dict[str, dict[str, Any]]] = {}
    approximate: ClassVar[dict[str, list[Any] | str]] = {}
    conditions: ClassVar[list[dict[str, Any]]] = []
    phases: ClassVar[list[str]]
    exact_dtype: ClassVar[str] = "float64"
    on_meta: ClassVar[bool] = False
    casts: ClassVar[bool] = False

    model: nn.Module
    optimizer: torch.optim.Optimizer
    # Bytes of the whole model's weights in float32. The harness sets it before `setup`.
    weight_bytes: int = 0
    # A step is like all later ones after so many.
    settled_after: int = 1
    # One step in so many sends the operations, whose bytes are the mean over all steps.
    # The estimator sets it to 1 after `setup`, to see that step.
    period: int = 1

    def __init_subclass__(cls) -> None:
        other: type[Strategy] = cls.__mro__[1]
        if "like" in vars(cls):
            cls.needs = {**other.needs, **cls.needs}
            cls.options = {**other.options, **cls.options}
            cls.conditions = [*other.conditions, *vars(cls).get("conditions", ())]
        elif cls.options and "options" not in vars(cls):
            name = other.__module__.rpartition(".")[2]
            raise TypeError(
                f"{cls.__name__} derives from {other.__name__}, which has options: "
                f"give it like = {name!r}"
            )

    def __init__(self, world: World, compute_loss: ComputeLoss, **options: Any) -> None:
        self.world = world
        self.compute_loss = compute_loss
        # Option name -> value, for every entry of `options`.
        self.chosen = options
        # See `on_meta`; it does nothing for a model that is not on the meta device. The
        # harness sets it before `setup`.
        self.load: Load = lambda part, device: None
        # `compute_loss` enters this context itself. A strategy that runs parts of the
        # model on its own must enter it, too. The harness sets it before `setup`.
        self.arithmetic: Arithmetic = nullcontext
        # Scales the loss under fp16 and passes it through otherwise. The harness sets
        # it before `setup`.
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=False)
        # The dtype of autocast, or to which the strategy casts; None for neither. The
        # harness sets it before `setup`.
        self.low_dtype: torch.dtype | None = None
        # How blocks are checkpointed, as in a cell. The harness sets it before `setup`.
        self.checkpointing = "none"
        # The largest 2-norm of all gradients together; None does not clip them. The
        # harness sets it before `setup`.
        self.max_norm: float | None = None

    @abstractmethod
    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        """Wrap or split the model, and make the optimizer.

        All ranks call it together, once, before the first step.

        Args:
            model: untrained, on `world.device` or, if `on_meta`, on the meta device;
                the weights are equal on all ranks. It is an `nn.Sequential` of named
                parts if `needs` has `sequential`.
            make_optimizer: builds the cell's optimizer for the given parameters.
        """

    @abstractmethod
    def step(self, batch: Batch, mark: Mark) -> Tensor | None:
        """Train on this rank's share of the global batch: one optimizer step.

        Avoid `.item()` and print in it: they make the host wait for the device.

        Args:
            batch: images [N, C, H, W], float32, and labels [N], int64, on
                `world.device`; or token ids and the following tokens, both int64
                [N, T]. N is `world.rank_batch`. In the gate N may be smaller, and
                images have the dtype of the comparison. Ranks that share a model
                replica get the same batch.
            mark: call it with the name of a phase where that phase ends. Every phase
                must be marked in every step, or the launch fails. A phase may be marked
                several times; its durations add up. An unknown name raises KeyError.

        Returns:
            The mean loss over this rank's samples or tokens, a detached tensor of shape
            []; None on a rank that does not know the loss.
        """

    def operations(self) -> list[Operation]:
        """What this rank sends in a step; called after the first `settled_after` steps.

        Empty if the ranks do not communicate. Each launch times these operations.
        """
        return []

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss; under fp16 the loss is scaled first."""
        self.scaler.scale(loss).backward()

    def update(self) -> None:
        """Clip the gradients, run one step of the optimizer, clear the gradients."""
        if self.max_norm is not None:
            self.scaler.unscale_(self.optimizer)
            self.clip(self.max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def clip(self, max_norm: float) -> None:
        """Scale the gradients down to this 2-norm of all of them together."""
        nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)

    def details(self) -> dict[str, Any]:
        """Facts for the record that only the strategy knows, as JSON values.

        All ranks call it together, once, after the timed window.
        """
        return {}

    def optimizer_state(self) -> Iterable[Any]:
        """The optimizer state on this rank: one dictionary for each parameter."""
        return self.optimizer.state.values()

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """The weights of the whole model, under the names of the unwrapped model.

        All ranks call it together, after training. Only the result of rank 0 is
        evaluated and checked; other ranks may return their part. The gate fails if a
        name is missing or unknown.
        """
