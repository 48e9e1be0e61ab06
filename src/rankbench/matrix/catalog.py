"""The catalog of strategies, models, data sets, launchers and images.

A strategy, a model, a data set and a launcher is a file; `containers/images.yaml`
lists what each image serves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rankbench import decoder
from rankbench.assets import find_asset
from rankbench.cell import AUTO, Cell, list_variants
from rankbench.matrix.declarations import (
    LAUNCHER_DEFAULTS,
    MODEL_DEFAULTS,
    PACKAGE,
    SCRIPT,
    describe_strategy,
    literals,
)
from rankbench.schema import load_yaml

CONTAINERS = find_asset("containers")

# Variants in files of the user's own: kind -> name -> declarations.
Own = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Catalog:
    """All variants: name -> declarations."""

    strategies: dict[str, dict[str, Any]]
    models: dict[str, dict[str, Any]]
    data: dict[str, dict[str, Any]]
    launchers: dict[str, dict[str, Any]] = field(default_factory=dict)
    images: dict[str, dict[str, Any]] = field(default_factory=dict)

    def names(self, kind: str) -> list[str]:
        """Names of the models, data sets, strategies or images."""
        of_kind: dict[str, Mapping[str, object]] = {
            "model": self.models,
            "data": self.data,
            "strategy": self.strategies,
            "image": {AUTO: None, **self.images},
        }
        return list(of_kind[kind])

    def with_images(self, given: Mapping[str, Any]) -> Catalog:
        """The catalog together with images that a site or an experiment names.

        Args:
            given: name -> `AUTO`, or where the image comes from.
        """
        more = {
            name: {**self.images.get(name, {"serves": {}}), "given": entry}
            for name, entry in given.items()
        }
        return dataclasses.replace(self, images={**self.images, **more})

    def for_cuda(self, flavour: str) -> Catalog:
        """The catalog in which cells on GPUs use images of one flavour.

        Args:
            flavour: ``cuda`` or ``cuda12``: key of `serves` in `images.yaml`.
        """
        chosen = {}
        for name, promise in self.images.items():
            serves = promise["serves"]
            chosen[name] = {
                **promise,
                "serves": {**serves, "cuda": serves.get(flavour, ())},
            }
        return dataclasses.replace(self, images=chosen)

    def with_own(self, own: Mapping[str, Mapping[str, dict[str, Any]]]) -> Catalog:
        """The catalog together with variants of the user's own."""
        return dataclasses.replace(
            self,
            strategies={**self.strategies, **own.get("strategy", {})},
            models={**self.models, **own.get("model", {})},
            data={**self.data, **own.get("data", {})},
        )


@cache
def load_catalog(package: Path = PACKAGE, containers: Path = CONTAINERS) -> Catalog:
    """Read the variants from the folders of the package, and the images.

    Raises:
        ValueError: a declaration of a strategy is missing or wrong, or `images.yaml`
            is missing or no YAML.
    """

    def read(folder: str) -> dict[str, dict[str, Any]]:
        files = list_variants(package / folder)
        return {name: literals(package / folder / f"{name}.py") for name in files}

    strategies = package / "rank/strategies"
    launchers = {
        name: {**LAUNCHER_DEFAULTS, **facts.get("NEEDS", {})}
        for name, facts in read("launch/launchers").items()
    }
    for needs in launchers.values():
        needs["runtimes"] = [*needs["runtimes"], SCRIPT]
    return Catalog(
        strategies={
            name: describe_strategy(strategies / f"{name}.py")
            for name in list_variants(strategies)
        },
        models={
            name: {
                **MODEL_DEFAULTS,
                **facts["NEEDS"],
                "options": {
                    **(decoder.OPTIONS if facts["NEEDS"].get("decoder") else {}),
                    **facts.get("OPTIONS", {}),
                },
                "presets": facts.get("PRESETS", {}),
            }
            for name, facts in read("rank/models").items()
        },
        data={
            name: {**facts["SHAPE"], "prepared": facts["PREPARED"]}
            for name, facts in read("rank/data").items()
        },
        launchers=launchers,
        images=load_yaml(containers / "images.yaml"),
    )


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
    """The image of a cell: with its flavour, such as ``gloo-cpu``, unless it is given.

    Returns:
        (image, None), or (None, the reason why there is no image).
    """
    name = cell.image
    if name == AUTO or promises[name].get("given") == AUTO:
        chosen = default_image(promises, cell.backend, cell.device)
        if chosen is None:
            said = f"no image serves {cell.backend} on {cell.device}"
            return None, f"{said}: name one that has it (image: ...)"
        name = chosen
    if promises[name].get("given", AUTO) != AUTO:
        return name, None
    if cell.device not in promises[name]["flavours"]:
        made = " and ".join(promises[name]["flavours"])
        return None, f"the image {name} is made for {made}, not for {cell.device}"
    return f"{name}-{cell.device}", None
