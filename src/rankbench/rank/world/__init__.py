"""How ranks are started and joined, and how their supervisor hears of them.

A runtime joins the ranks of a launch: it is a file of this folder that strategies name.
This module imports no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from rankbench.environ import Place

if TYPE_CHECKING:
    import torch


class Runtime(Protocol):
    """The functions that the module of each runtime has."""

    def join(
        self, backend: str, place: Place, init_method: str, device: torch.device
    ) -> None:
        """Join the other ranks; not called if ranks do not communicate.

        Args:
            backend: name of the backend.
            place: place of this rank among all.
            init_method: URL at which the ranks meet.
            device: device of this rank.
        """

    def barrier(self) -> None:
        """Wait until all ranks are here; do nothing if this rank has joined none."""

    def operation(
        self,
        name: str,
        size: int,
        device: torch.device,
        group: torch.distributed.ProcessGroup | None = None,
    ) -> Callable[[], None]:
        """A function that runs a communication operation on `size` bytes.

        The ranks of a group take part; None is all ranks. Bytes are rounded up if they
        cannot be divided evenly among them. Every rank must call the function the same
        number of times.

        Raises:
            KeyError: this runtime has no such operation.
        """

    def largest(self, value: float) -> float:
        """The largest of the values of all ranks, which call it together."""

    def leave(self) -> None:
        """Leave the other ranks; do nothing if this rank has joined none.

        Raises:
            RuntimeError: another rank closed a connection earlier than expected.
        """


def find_runtime(name: str) -> Runtime:
    """The runtime of that name, which is a file in this folder."""
    module = importlib.import_module(f"{__name__}.{name}")
    return cast(Runtime, module)
