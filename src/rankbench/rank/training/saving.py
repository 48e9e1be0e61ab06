"""Compares two trained models tensor by tensor."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rankbench.record import first_line


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A tensor that differs between two models.

    Attributes:
        name: name of the tensor.
        what: ``values``, ``shape`` or ``type``; ``first`` or ``second`` if the tensor
            is missing from that model.
        largest: largest absolute difference of an element; None unless `values`.
        relative: |a - b| / |a| with 2-norms; None unless `values`.
    """

    name: str
    what: str
    largest: float | None = None
    relative: float | None = None


def compare_models(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], *, tolerance: float = 0.0
) -> list[TensorDifference]:
    """The tensors that differ, in the order of the first model.

    Args:
        tolerance: absolute difference of an element that still counts as equal.
    """
    found = []
    for name in [*first, *(name for name in second if name not in first)]:
        if name not in first or name not in second:
            found.append(TensorDifference(name, "second" if name in first else "first"))
            continue
        a, b = first[name], second[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            what = "shape" if a.shape != b.shape else "type"
            found.append(TensorDifference(name, what))
            continue
        gap = a.double() - b.double()
        largest = float(gap.abs().max()) if gap.numel() else 0.0
        # Not `largest > tolerance`, which would be false for NaN.
        if not largest <= tolerance:
            norm = float(torch.linalg.vector_norm(a.double()))
            distance = float(torch.linalg.vector_norm(gap))
            relative = distance / norm if norm else float("inf")
            found.append(TensorDifference(name, "values", largest, relative))
    return found


def load_model(path: Path) -> dict[str, Tensor]:
    """Read a model that a launch has saved; no code in it is executed.

    Raises:
        ValueError: the file is not a saved model; the message names it.
    """
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        said = first_line(str(error)) or type(error).__name__
        raise ValueError(f"{path} is not a saved model: {said}") from error
    if not isinstance(weights, dict) or not all(
        isinstance(value, Tensor) for value in weights.values()
    ):
        raise ValueError(f"{path} is not a saved model: it must map names to tensors")
    return weights


def find_models(place: Path) -> list[Path]:
    """The model files in the folder of a launch, or the given file itself.

    Raises:
        ValueError: the folder has no model.
    """
    if place.is_file() and place.name != "record.json":
        return [place]
    folder = place.parent if place.is_file() else place
    whole = folder / "model.pt"
    ranks = sorted(
        folder.glob("model_rank*.pt"),
        key=lambda path: int(path.stem.removeprefix("model_rank")),
    )
    found = [whole] if whole.exists() else ranks
    if not found:
        raise ValueError(
            f"{place} has no model: measure with `save_model: per_rank` or "
            "`consolidated`"
        )
    return found
