"""Lets a module compute with other tensors in place of its weights."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils import stateless


class Replaced:
    """A module that computes with what it makes of its weights.

    Attributes:
        names: of its weights, which libraries may keep as tensors that are no
            parameters.
    """

    names: tuple[str, ...]

    def seen(self, weight: Tensor) -> Tensor:
        """What the module computes with in place of a weight."""
        raise NotImplementedError

    def forward(self, *inputs: Any) -> Any:
        kept = [(name, getattr(self, name)) for name in self.names]
        weights = {name: self.seen(w) for name, w in kept if w is not None}
        module = cast(nn.Module, self)
        with cast(Any, stateless._reparametrize_module(module, weights)):
            return super().forward(*inputs)  # type: ignore[misc]


def become(module: nn.Module, kind: type[Replaced], **attributes: Any) -> None:
    """Let a module compute in this way, and as what it is otherwise.

    The class is that of all alike, so that a compiler sees the same code.
    """
    kinds: Any = kind, type(module)
    module.__class__ = _joined(*kinds)
    attributes["names"] = tuple(module._parameters)
    for name, value in attributes.items():
        setattr(module, name, value)


@cache
def _joined(kind: Any, module: Any) -> Any:
    return type(f"{kind.__name__}{module.__name__}", (kind, module), {})
