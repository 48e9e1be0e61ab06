"""Imports torchvision even if its compiled operators cannot be loaded."""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType

import torch

# The compiled operators in torchvision's wheels need CUDA libraries, so they do not
# load with a CPU build of torch. Then the import fails when torchvision registers a
# shape rule for a missing operator. Declaring the operators is enough, because models,
# data sets and transforms do not call them.
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_MISSING = ("nms", "qnms")
_kept: list[torch.library.Library] = []


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
    # Kept, because its operators disappear together with it.
    _kept.append(library := torch.library.Library("torchvision", "DEF"))
    for name in _MISSING:
        library.define(name + _SCHEMA)
    return importlib.import_module("torchvision")
