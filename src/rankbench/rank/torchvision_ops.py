"""Import torchvision where its compiled operators cannot be loaded."""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType

import torch

# torchvision's wheels want CUDA libraries for their compiled operators. Beside a CPU
# build of torch these do not load, and the import ends where a shape rule is to be
# attached to an operator that nobody declared. Declaring them is enough: models, data
# sets and transforms call none of them.
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_MISSING = ("nms", "qnms")


@functools.cache
def import_torchvision() -> ModuleType:
    """Import torchvision, declaring its operators only if their absence prevents it.

    Raises:
        ImportError: torchvision is not installed.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.startswith("torchvision.")]:
        del sys.modules[name]
    _declare()
    return importlib.import_module("torchvision")


@functools.cache
def _declare() -> torch.library.Library:
    # Cached to stay alive: a library takes its operators along when it goes.
    library = torch.library.Library("torchvision", "DEF")
    for name in _MISSING:
        library.define(name + _SCHEMA)
    return library
