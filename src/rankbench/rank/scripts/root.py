"""Finds the module that a script trains, and tells when its forward begins and ends.

The root is the module that the script itself calls: `DistributedDataParallel`, or the
engine of DeepSpeed, and not a layer within.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class RootSearch:
    """Notes the modules that are called from outside of all modules, and learn.

    It replaces `nn.Module.__call__`, and restores it within each call. So layers run as
    usual, and torch.compile does not see it: a global hook would be compiled into the
    model, and the model again without it.
    """

    def __init__(self, on_call: Callable[[], None]) -> None:
        """Take a callback.

        Args:
            on_call: any module is called.
        """
        self._on_call = on_call
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
                self._on_call()
                if torch.is_grad_enabled() and _learns(module):
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
        found = (ref() for ref in self._found.values())
        living = [module for module in found if module is not None]
        return living[0] if len(living) == 1 else None


def _learns(module: nn.Module) -> bool:
    return any(one.requires_grad for one in module.parameters())


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
