"""Finds the module that a script trains, and the training steps of its optimizers.

The root is the module that the script itself calls: `DistributedDataParallel`, or the
engine of DeepSpeed, and not a layer within. A step of an optimizer counts if it is

- the outermost: Horovod's optimizer and `GradScaler` call another one;
- of the leader: a script may have several optimizers, and steps all of them in each
  iteration. The first that stepped leads, until another one takes over;
- computed: a module or a backward ran since the last one. `broadcast_optimizer_state`
  of Horovod makes a step of zeros, and ZeRO-3 of DeepSpeed one for each part of the
  parameters.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

# Identities of code that runs steps of optimizers: the function in which torch wraps
# the method of every optimizer, and the one in which we wrap that of `GradScaler`. To
# hash the code itself would take longer than everything else here.
_STEPS = {id(Optimizer.profile_hook_step(lambda optimizer: None).__code__)}


# Steps of other optimizers, which train other parameters, after which the leader does
# not train any more: a round of a game between two optimizers may have several.
_PATIENCE = 10


class StepCounter:
    """Calls back after each training step, from within the step of the optimizer.

    Attributes:
        seen: outermost steps of optimizers, whether they counted or not.
        passes: backwards that ended, of all models.
        leaders: each optimizer that has led, in words.
    """

    def __init__(
        self,
        *,
        on_step: Callable[[], None],
        on_update: Callable[[], None] = lambda: None,
        on_backward: Callable[[], None] = lambda: None,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        """Take callbacks.

        Args:
            on_step: a training step ends.
            on_update: another step of an optimizer ends, which is no training step.
            on_backward: a backward ends.
            on_restart: another optimizer leads, since some steps: none so far counts.
        """
        self.seen = self.passes = 0
        self.leaders: list[str] = []
        self._on_step = on_step
        self._on_update = on_update
        self._on_backward = on_backward
        self._on_restart = on_restart
        self._computed = False
        # Steps of the leader; of others since then; of others between two of its own.
        self._led = self._others = self._usual = 0
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._leader: weakref.ref[Optimizer] | None = None
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

    def compute(self) -> None:
        """Note that a module or a backward runs."""
        self._computed = True

    @property
    def leader(self) -> Optimizer | None:
        """The optimizer whose steps count; None if there is none, or none any more."""
        return self._leader() if self._leader is not None else None

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # This test comes first, so that torch.compile sees an empty function.
        if torch.compiler.is_compiling():
            return
        if not _is_nested(sys._getframe(1)):
            self._note(optimizer)

    def _note(self, optimizer: Optimizer) -> None:
        """Note an outermost step of an optimizer, or one that a scaler has skipped."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return  # Replays of the graph call no optimizer.
        self.seen += 1
        if self._computed and self.leader is not optimizer:
            self._consider(optimizer)
        if self._computed and self.leader is optimizer:
            self._computed = False
            self._usual = max(self._usual, self._others)
            self._led, self._others = self._led + 1, 0
            self._on_step()
        else:
            self._on_update()

    def _consider(self, optimizer: Optimizer) -> None:
        """Let an optimizer lead if the leader is gone, or trains no more.

        An optimizer that is new and has parameters of the leader succeeds it at once.
        """
        leader = self.leader
        if leader is not None:
            self._others += 1
            is_new = optimizer not in self._known
            self._known.add(optimizer)
            if not is_new and self._others <= 2 * self._usual + 1:
                return  # Usual steps cost no look at parameters.
            shares = not _parameters(leader).isdisjoint(_parameters(optimizer))
            if not (shares and is_new and self._led > 1):
                patience = 1 if shares else _PATIENCE
                if self._others <= 2 * self._usual + patience:
                    return
                self._on_restart()
        self._known.add(optimizer)
        self._leader = weakref.ref(optimizer)
        self._led = self._others = self._usual = 0
        # SGD of 4,160 weights at learning rate 0.01
        said = f"{type(optimizer).__name__} of {count_trained(optimizer):,} weights"
        if (rate := optimizer.param_groups[0].get("lr")) is not None:
            said += f" at learning rate {float(rate):g}"
        self.leaders.append(said)

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
            plain(*args, **kwargs)
            if not torch.compiler.is_compiling():
                self.compute()
                self.passes += 1
                self._on_backward()

        torch.autograd.backward = backward
        return lambda: setattr(torch.autograd, "backward", plain)


def count_trained(optimizer: Optimizer) -> int:
    """Number of values that an optimizer trains on this rank, without frozen ones."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return sum(weight.numel() for weight in weights if weight.requires_grad)


def _parameters(optimizer: Optimizer) -> set[int]:
    groups = optimizer.param_groups
    return {id(weight) for group in groups for weight in group["params"]}


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
    usual, and torch.compile does not see it: a global hook would be compiled into the
    model, and the model again without it.

    Attributes:
        inputs: digest of the first inputs of the root, once the search has ended; None
            if there is no root, or it takes no tensor.
    """

    def __init__(self, on_call: Callable[[], None]) -> None:
        """Take a callback.

        Args:
            on_call: any module is called.
        """
        self.inputs: str | None = None
        self._on_call = on_call
        self._found: dict[int, tuple[weakref.ref[nn.Module], str | None]] = {}
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
                self._on_call()
                if (
                    torch.is_grad_enabled()
                    and self._known(module) is None
                    and any(weight.requires_grad for weight in module.parameters())
                ):
                    inputs = digest_values([args, kwargs])
                    self._found[id(module)] = weakref.ref(module), inputs
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
        living = [one for one in self._found.values() if one[0]() is not None]
        self._found = {}
        if len(living) != 1:
            return None
        ((root, self.inputs),) = living
        return root()

    def _known(self, module: nn.Module) -> nn.Module | None:
        """The module, if it was noted; an identity may be that of one that is gone."""
        found = self._found.get(id(module))
        return found[0]() if found is not None else None


# Values of a tensor that tell it from another one.
_SAMPLE = 4096


def digest_values(given: Any) -> str | None:
    """A digest of tensors in lists and mappings, of any depth; None if there is none.

    It reads some values of each, spread evenly, which waits for the device.
    """
    tensors: list[torch.Tensor] = []
    waiting = [given]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            if _is_plain(value):
                tensors.append(value.detach().reshape(-1))
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    digest = hashlib.sha256()
    for flat in tensors:
        sample = flat[:: max(1, len(flat) // _SAMPLE)].cpu().contiguous()
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16] if tensors else None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor can be read here."""
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_quantized or tensor.is_nested)
    )


# Callbacks for the begin and the end of the root's forward. They and the hooks belong
# to this module, because a script may copy or pickle the root with its hooks.
_callbacks: tuple[Callable[[], None], Callable[[], None]] | None = None


def watch(
    root: nn.Module, on_begin: Callable[[], None], on_end: Callable[[], None]
) -> Callable[[], None]:
    """Call back when a forward of the root begins and ends that records gradients.

    Returns:
        A function that ends it.
    """
    global _callbacks
    _callbacks = on_begin, on_end
    compiled = root._compiled_call_impl
    if compiled is not None:  # by `root.compile()`, which would compile hooks as well

        def call(*args: Any, **kwargs: Any) -> Any:
            _begin(root, args)
            output = compiled(*args, **kwargs)
            _end(root, args, output)
            return output

        root._compiled_call_impl = call
        undo = [lambda: setattr(root, "_compiled_call_impl", compiled)]
    else:
        undo = [
            root.register_forward_pre_hook(_begin, prepend=True).remove,
            root.register_forward_hook(_end).remove,
        ]

    def end() -> None:
        global _callbacks
        _callbacks = None
        for function in undo:
            function()

    return end


def _begin(root: nn.Module, args: Any) -> None:
    if not torch.compiler.is_compiling() and _callbacks and torch.is_grad_enabled():
        _callbacks[0]()


def _end(root: nn.Module, args: Any, output: Any) -> None:
    if not torch.compiler.is_compiling() and _callbacks and torch.is_grad_enabled():
        _callbacks[1]()
