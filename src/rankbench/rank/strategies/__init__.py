"""Strategies: each file `NAME.py` in this folder is the strategy `NAME`."""

from __future__ import annotations

import inspect

from rankbench.rank import variants
from rankbench.rank.strategies.base import Strategy


def runtime_of(name: str) -> str:
    """The runtime that joins the ranks of a strategy; the default is in the catalog."""
    return str(find_strategy(name).needs.get("runtime", "process_group"))


def find_strategy(name: str) -> type[Strategy]:
    """The strategy class in the file of that name.

    Raises:
        ValueError: there is no such file, or it has no such class.
    """
    module = variants.load("strategy", name)
    for _, found in inspect.getmembers(module, inspect.isclass):
        if issubclass(found, Strategy) and found.__module__ == module.__name__:
            return found
    raise ValueError(f"{module.__file__} has no class that derives from Strategy")
