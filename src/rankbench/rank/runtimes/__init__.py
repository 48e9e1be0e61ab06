"""What joins the ranks of a launch: one file per runtime; a strategy names its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, cast

import torch

from rankbench.environ import Place


class Runtime(Protocol):
    """Each runtime is a module with these functions."""

    def join(
        self, backend: str, place: Place, init_method: str, device: torch.device
    ) -> None:
        """Meet the other ranks at `init_method`; not called where there are none."""

    def barrier(self) -> None:
        """All ranks have come here; nothing if this process has joined nobody."""

    def operation(
        self, name: str, size: int, device: torch.device
    ) -> Callable[[], None]:
        """What exchanges `size` bytes, a little more where ranks cannot share them.

        Every rank has to call it equally often. Raises KeyError for a name that this
        runtime has no operation for.
        """

    def largest(self, value: float) -> float:
        """The largest value of all ranks, which call it together."""

    def leave(self) -> None:
        """Part from the others, if this process has joined them.

        Raises:
            RuntimeError: a connection was closed in another order than expected.
        """


def find_runtime(name: str) -> Runtime:
    """The runtime of that name; a contract test holds that strategies name one."""
    module = importlib.import_module(f"{__name__}.{name}")
    return cast(Runtime, module)
