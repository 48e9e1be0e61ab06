"""Lets a module compute with other tensors in place of its weights."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils import stateless


class Replaced:
    """A module that computes with what it makes of its weights."""

    def seen(self, weight: Tensor) -> Tensor:
        """What the module computes with in place of a weight."""
        raise NotImplementedError

    def forward(self, *inputs: Any) -> Any:
        module = cast(nn.Module, self)
        # Replicas of nn.DataParallel have no parameters, but tensors of these names.
        kept = getattr(module, "_former_parameters", module._parameters)
        weights = {name: self.seen(w) for name, w in kept.items() if w is not None}
        with cast(Any, stateless._reparametrize_module(module, weights)):
            return super().forward(*inputs)  # type: ignore[misc]


def become(module: nn.Module, kind: type[Replaced], **attributes: Any) -> None:
    """Let a module compute in this way, and as what it is otherwise.

    The class is that of all alike, so that a compiler sees the same code.
    """
    kinds: Any = kind, type(module)
    module.__class__ = _joined(*kinds)
    for name, value in attributes.items():
        setattr(module, name, value)


@cache
def _joined(kind: Any, module: Any) -> Any:
    return type(f"{kind.__name__}{module.__name__}", (kind, module), {})
