"""The parts of a model that are recomputed, or gathered, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

# Containers: not all of them have a forward of their own.
_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def find_parts(model: nn.Module) -> list[nn.Module]:
    """The parts with weights: those of a sequence, else the blocks in lists.

    What is outside of lists is a part as a whole, such as an embedding.
    """
    parts = model.children() if isinstance(model, nn.Sequential) else _blocks(model)
    return [part for part in parts if any(True for _ in part.parameters())]


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, _LISTS):
            yield from child.children()
        elif any(isinstance(one, _LISTS) for one in child.modules()):
            yield from _blocks(child)
        else:
            yield child
