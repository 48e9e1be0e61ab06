"""What joins the ranks of a launch: one file per runtime; a strategy names its own."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

import torch

from rankbench.environ import Place


class Runtime(Protocol):
    """Each runtime is a module with these three functions."""

    def join(
        self, backend: str, place: Place, init_method: str, device: torch.device
    ) -> None:
        """Meet the other ranks at `init_method`; not called where there are none."""

    def barrier(self) -> None:
        """All ranks have come here; nothing if this process has joined nobody."""

    def leave(self) -> None:
        """Part from the others, if this process has joined them.

        Raises:
            RuntimeError: a connection was closed in another order than expected.
        """


def find_runtime(name: str) -> Runtime:
    """The runtime of that name; a contract test holds that strategies name one."""
    module = importlib.import_module(f"{__name__}.{name}")
    return cast(Runtime, module)
