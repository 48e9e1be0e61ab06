"""Finds models, data sets and strategies by name: files of rankbench, or of the user.

A file of rankbench is `FOLDER/NAME.py` in this room. A file of the user's own takes
part once it is in `own`. All of them keep the same contract.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rankbench.cell import list_variants

# Kind of a variant -> folder of this room.
FOLDERS = {"model": "models", "data": "data", "strategy": "strategies"}

# Kind and name of a user's own variant -> its file. `load` finds it under this name.
own: dict[tuple[str, str], Path] = {}


def names(kind: str) -> list[str]:
    """Names of rankbench's own variants of a kind, sorted."""
    return list_variants(Path(__file__).parent / FOLDERS[kind])


def load(kind: str, name: str) -> Any:
    """Import the file of a variant.

    Raises:
        ValueError: there is no such variant.
    """
    if (kind, name) in own:
        return _load_own(own[kind, name])
    if name not in names(kind):
        raise ValueError(
            f"unknown {kind} {name!r}: choose from {', '.join(names(kind))}"
        )
    return importlib.import_module(f"rankbench.rank.{FOLDERS[kind]}.{name}")


def call(function: Callable[..., Any], offered: Mapping[str, Any], **given: Any) -> Any:
    """Call a function of a variant.

    Args:
        function: the function.
        offered: arguments that it may leave out; it gets those that it declares.
        given: arguments that it must take.
    """
    takes = inspect.signature(function).parameters
    return function(**{k: v for k, v in offered.items() if k in takes}, **given)


def _load_own(file: Path) -> ModuleType:
    """Import a user's file, which may import files beside it, as a script does."""
    # A name that no package has; pickle finds classes of the file under it.
    name = f"own_{file.parent.name}_{file.stem}".replace("-", "_").replace(".", "_")
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ValueError(f"{file} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
