"""Chooses the image of a cell; `containers/images.yaml` lists what each one serves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankbench.cell import Cell
from rankbench.matrix.schema import load_yaml

AUTO = "auto"


def load_promises(folder: Path) -> dict[str, dict[str, Any]]:
    """Name of an image without its flavour -> its entry in `images.yaml`.

    Args:
        folder: `containers/`.

    Raises:
        ValueError: the file is missing, or it is not YAML.
    """
    return load_yaml(folder / "images.yaml")


def default_image(
    promises: Mapping[str, Mapping[str, Any]], backend: str, device: str
) -> str | None:
    """The image that `image: auto` means: it serves this backend on this device."""
    for name, promise in promises.items():
        if backend in promise["serves"].get(device, ()):
            return name
    return None


def find_image(
    cell: Cell, promises: Mapping[str, Mapping[str, Any]]
) -> tuple[str | None, str | None]:
    """The image of a cell with its flavour, such as ``gloo-cpu``.

    Returns:
        (image, None), or (None, the reason why there is no image).
    """
    name = cell.image
    if name == AUTO:
        chosen = default_image(promises, cell.backend, cell.device)
        if chosen is None:
            return None, f"no image serves {cell.backend} on {cell.device}"
        name = chosen
    if cell.device not in promises[name]["flavours"]:
        made = " and ".join(promises[name]["flavours"])
        return None, f"the image {name} is made for {made}, not for {cell.device}"
    return f"{name}-{cell.device}", None
