"""Finds the module that a script trains, and the training steps of its optimizer.

A step of an optimizer counts if it is the outermost (Horovod's optimizer and
`GradScaler` call another one) and if a backward ran since the last one:
`broadcast_optimizer_state` of Horovod makes a step of zeros, and ZeRO-3 of DeepSpeed
one for each part of the parameters. Only one optimizer may step: what a step of several
is, only the script knows, and says by `rankbench.hooks.step`.

The root is the module that the script itself calls: `DistributedDataParallel`, or the
engine of DeepSpeed, and not a layer within.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

# What a script does whose steps cannot be seen.
MARK_STEPS = (
    "call rankbench.hooks.step() at the end of each step, in the process that the "
    "launcher starts"
)


class ScriptError(RuntimeError):
    """A script did not do what its measurement needs."""


# Identities of code that runs steps of optimizers: the function in which torch wraps
# the method of every optimizer, and the one in which we wrap that of `GradScaler`. To
# hash the code itself would take longer than everything else here.
_STEPS = {id(Optimizer.profile_hook_step(lambda optimizer: None).__code__)}


class StepCounter:
    """Calls back after each training step, from within the step of the optimizer.

    Forward ends where backward begins, so that the loss function belongs to it.

    Attributes:
        seen: outermost steps of optimizers, whether they counted or not.
        passes: backwards that ended, of all models.
        may_differ: whether several optimizers may step, as the script marks its steps.
    """

    def __init__(
        self, *, on_step: Callable[[], None], on_phase: Callable[[str], None]
    ) -> None:
        """Take callbacks.

        Args:
            on_step: a training step ends.
            on_phase: forward, backward or update ends. An update is a step of an
                optimizer which is no training step.
        """
        self.seen = self.passes = 0
        self.may_differ = False
        self._on_step, self._on_phase = on_step, on_phase
        self._computed = self._in_backward = False
        self._optimizer: weakref.ref[Optimizer] | None = None
        # Optimizers that have stepped within the backward that runs.
        self._waiting: list[Optimizer] = []
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Observe all optimizers, gradient scalers and backwards of this process."""
        handle = register_optimizer_step_post_hook(self._after_optimizer)
        self._undo = [handle.remove, self._wrap_scaler(), self._wrap_backward()]

    def remove(self) -> None:
        """Observe nothing any more."""
        for undo in self._undo:
            undo()
        self._undo = []

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer that steps; None if there is none, or none any more."""
        return self._optimizer() if self._optimizer is not None else None

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # This test comes first, so that torch.compile sees an empty function.
        if torch.compiler.is_compiling():
            return
        if not _is_nested(sys._getframe(1)):
            self._note(optimizer)

    def _note(self, optimizer: Optimizer) -> None:
        """Note an outermost step of an optimizer, or one that a scaler has skipped.

        Raises:
            ScriptError: another one has stepped before, and steps are not marked.
        """
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return  # Replays of the graph call no optimizer.
        if self._in_backward:
            # A hook on a gradient steps. The step belongs to the backward.
            self._waiting.append(optimizer)
            return
        self.seen += 1
        if not self._computed:
            self._on_phase("update")
            return
        if self.optimizer not in (None, optimizer):
            # One that the script has dropped may be part of a cycle.
            gc.collect()
        if self.optimizer in (None, optimizer):
            self._optimizer = weakref.ref(optimizer)
            self._computed = False
            self._on_step()
        elif self.may_differ:
            self._on_phase("update")
        else:
            raise ScriptError(
                f"two optimizers step, {describe_optimizer(self.optimizer)} and "
                f"{describe_optimizer(optimizer)}, so a step is not clear: call "
                "rankbench.hooks.step() at the end of each iteration"
            )

    def _wrap_scaler(self) -> Callable[[], None]:
        """Observe `GradScaler.step`, because it skips steps with infinite gradients."""
        scaler = torch.amp.GradScaler
        plain = scaler.step

        def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = plain(self, optimizer, *args, **kwargs)
            if not _is_nested(sys._getframe()):
                counter._note(optimizer)
            return result

        counter = self
        _STEPS.add(id(step.__code__))
        scaler.step = functools.wraps(plain)(step)  # type: ignore[method-assign]
        return lambda: setattr(scaler, "step", plain)

    def _wrap_backward(self) -> Callable[[], None]:
        """Observe `torch.autograd.backward`, which `Tensor.backward` calls."""
        plain = torch.autograd.backward

        @functools.wraps(plain)
        def backward(*args: Any, **kwargs: Any) -> None:
            if torch.compiler.is_compiling():
                plain(*args, **kwargs)
                return
            # A checkpointed block runs a backward within the backward.
            outer, self._in_backward = self._in_backward, True
            if not outer:
                self._on_phase("forward")
            try:
                plain(*args, **kwargs)
            finally:
                self._in_backward = outer
            if not outer:
                self._computed = True
                self.passes += 1
                self._on_phase("backward")
                for optimizer in dict.fromkeys(self._waiting):
                    self._computed = True
                    self._note(optimizer)
                self._waiting.clear()

        torch.autograd.backward = backward
        return lambda: setattr(torch.autograd, "backward", plain)


def describe_optimizer(optimizer: Optimizer) -> str:
    """An optimizer in words: ``SGD of 4,160 weights at learning rate 0.01``."""
    said = f"{type(optimizer).__name__} of {count_trained(optimizer):,} weights"
    if (rate := optimizer.param_groups[0].get("lr")) is not None:
        said += f" at learning rate {float(rate):g}"
    return said


def count_trained(optimizer: Optimizer) -> int:
    """Number of values that an optimizer trains on this rank, without frozen ones."""
    return sum(weight.numel() for weight in trained_weights(optimizer))


def trained_weights(optimizer: Optimizer) -> list[torch.Tensor]:
    """The weights of an optimizer that are not frozen."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return [weight for weight in weights if weight.requires_grad]


def _is_nested(frame: Any) -> bool:
    """Whether the step of an optimizer in this frame is part of another one.

    The stack tells it even after a step that raised an exception.
    """
    frame = frame.f_back
    while frame is not None:
        if id(frame.f_code) in _STEPS:
            return True
        frame = frame.f_back
    return False


class RootSearch:
    """Notes the modules that are called from outside of all modules, and learn.

    It replaces `nn.Module.__call__`, and restores it within each call. So layers run as
    usual, and torch.compile does not see it: a hook on all modules would be compiled
    into the model, and the model again without it.
    """

    def __init__(self) -> None:
        self._found: dict[int, weakref.ref[nn.Module]] = {}
        self._searches = False
        self._plain = nn.Module.__call__

    def begin(self) -> None:
        self._searches = True
        plain = self._plain

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return plain(module, *args, **kwargs)
            nn.Module.__call__ = plain  # type: ignore[method-assign]
            try:
                weights = module.parameters() if torch.is_grad_enabled() else ()
                if any(weight.requires_grad for weight in weights):
                    self._found[id(module)] = weakref.ref(module)
                return plain(module, *args, **kwargs)
            finally:
                if self._searches:
                    nn.Module.__call__ = call  # type: ignore[method-assign]

        nn.Module.__call__ = call  # type: ignore[method-assign]

    def end(self) -> nn.Module | None:
        """The root; None if there is no module, or several."""
        if self._searches:
            self._searches = False
            nn.Module.__call__ = self._plain  # type: ignore[method-assign]
        living = [one for ref in self._found.values() if (one := ref()) is not None]
        self._found = {}
        return living[0] if len(living) == 1 else None


# Values of a tensor that tell it from another one.
_SAMPLE = 4096


def digest_values(given: Any) -> str | None:
    """A digest of tensors in lists and mappings, of any depth; None if there is none.

    It reads some values of each, spread evenly, which waits for the device.
    """
    digest, some = hashlib.sha256(), False
    for tensor in filter(_is_plain, _tensors(given)):
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, len(flat) // _SAMPLE)].cpu().contiguous()
        digest.update(sample.view(torch.uint8).numpy().tobytes())
        some = True
    return digest.hexdigest()[:16] if some else None


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists and mappings, of any depth."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, Mapping):
        yield from _tensors(list(given.values()))
    elif isinstance(given, list | tuple):
        for value in given:
            yield from _tensors(value)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor can be read here."""
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_quantized or tensor.is_nested)
    )


def leading_sizes(given: Any) -> tuple[int, ...]:
    """What a batch may count: samples, or tokens if each sample is a row of them.

    Returns:
        The product of the first dimension, of the first two, and so on, of the first
        tensor; () if there is none.
    """
    shape: Iterable[int] = next(_tensors(given), torch.tensor(0)).shape
    sizes = list(shape)
    return tuple(math.prod(sizes[: n + 1]) for n in range(len(sizes)))


# Called with the inputs when a forward of the root begins that records gradients. It
# and the hook belong to this module, because a script may copy or pickle the root with
# its hooks.
_on_forward: Callable[[Any], None] | None = None


def watch(root: nn.Module, on_forward: Callable[[Any], None]) -> Callable[[], None]:
    """Call back, with the inputs, when a forward of the root begins that learns.

    Returns:
        A function that ends it.
    """
    global _on_forward
    _on_forward = on_forward
    compiled = root._compiled_call_impl
    if compiled is None:
        hooked = root.register_forward_pre_hook(_begin, prepend=True, with_kwargs=True)
        return hooked.remove

    # By `root.compile()`, which would compile a hook as well.
    def call(*args: Any, **kwargs: Any) -> Any:
        _begin(root, args, kwargs)
        return compiled(*args, **kwargs)

    root._compiled_call_impl = call
    return lambda: setattr(root, "_compiled_call_impl", compiled)


def _begin(root: nn.Module, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling() and _on_forward and torch.is_grad_enabled():
        _on_forward([args, kwargs])
