"""How a model is trained over devices: one file per strategy, found by its name."""

from __future__ import annotations

import importlib
import inspect

from rankbench.rank.strategies.base import Strategy


def runtime_of(name: str) -> str:
    """What joins the ranks of that strategy; the default is matrix/catalog.py's."""
    return str(find_strategy(name).needs.get("runtime", "process_group"))


def find_strategy(name: str) -> type[Strategy]:
    """The class that the file of that name holds."""
    module = importlib.import_module(f"{__name__}.{name}")
    for _, found in inspect.getmembers(module, inspect.isclass):
        if issubclass(found, Strategy) and found.__module__ == module.__name__:
            return found
    raise ValueError(f"strategies/{name}.py has no class that derives from Strategy")
