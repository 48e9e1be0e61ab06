"""The plan: all cells of an experiment on a site. Every room reads it here.

Standard library only. `rankbench.matrix` makes a plan; everything else is computed from
it and from the records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rankbench.cell import Cell, Shape
from rankbench.record import Record, encode, read_versioned

PLAN_VERSION = 3

AnyCell = TypeVar("AnyCell")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCell:
    """A cell that is not measured but predicted: what every cell of a plan has.

    Attributes:
        infeasible: the reason why its strategy cannot have this topology anywhere, or
            None. Whether this site has as many hosts does not matter.
    """

    id: str
    cell: Cell
    shape: Shape
    infeasible: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCell(PredictedCell):
    """A cell of the plan.

    Attributes:
        infeasible: the reason why the cell cannot run here, or None.
        image: name and flavour of the image for its ranks; None if they run natively.
        code: hash of the code that its ranks use.
        estimated_mib: estimated memory of the rank that needs most in a step; None: it
            was not estimated.
    """

    hash: str
    marks: Sequence[str]
    image: str | None = None
    code: str | None = None
    estimated_mib: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The cells of an experiment on a site; all jobs read them from `plan.json`.

    Attributes:
        images: name -> file, recipe and sha256 (None: not built yet).
        predicted: cells that are not measured but predicted.
        own: variants in files of the user's own, as the catalog describes them.
    """

    experiment: dict[str, Any]
    site: dict[str, Any]
    code: dict[str, str]
    images: dict[str, dict[str, Any]]
    cells: dict[str, PlannedCell]
    predicted: Sequence[PredictedCell] = field(default_factory=list)
    own: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.experiment["name"])

    @property
    def feasible(self) -> list[PlannedCell]:
        return [c for c in self.cells.values() if c.infeasible is None]

    def image_of(self, cell: PlannedCell) -> Record | None:
        """Facts about the image of a cell; None if it runs natively."""
        return None if cell.image is None else self.images.get(cell.image)

    def to_json(self) -> bytes:
        value = {
            "schema": PLAN_VERSION,
            "experiment": self.experiment,
            "site": self.site,
            "code": self.code,
            "images": self.images,
            "cells": list(self.cells.values()),
        }
        if self.own:
            value["own"] = self.own
        if self.predicted:
            value["predicted"] = self.predicted
        return (json.dumps(value, indent=1, default=encode) + "\n").encode()


def read_plan(path: Path) -> Plan:
    """Read `plan.json`.

    Raises:
        ValueError: the file is damaged or was written by another version.
    """
    remedy = "run the experiment again to make a new one"
    return parse_plan(read_versioned(path, "plan", PLAN_VERSION, remedy), path)


def parse_plan(value: Record, path: Path) -> Plan:
    """Make a plan of the content of `plan.json`.

    Raises:
        ValueError: it is damaged; the message names the path.
    """
    try:
        planned = [_parse(entry, PlannedCell) for entry in value["cells"]]
        cells = {cell.id: cell for cell in planned}
        if len(cells) < len(planned):
            raise ValueError("a cell stands in it twice")
        return Plan(
            **{key: value[key] for key in ("experiment", "site", "code", "images")},
            cells=cells,
            predicted=[
                _parse(entry, PredictedCell) for entry in value.get("predicted") or ()
            ],
            own=value.get("own") or {},
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged or of another version ({error}): "
            "run the experiment again to make a new one"
        ) from error


def _parse(entry: Record, kind: Callable[..., AnyCell]) -> AnyCell:
    cell, shape = Cell.from_dict(entry["cell"]), Shape(**entry["shape"])
    return kind(**{**entry, "cell": cell, "shape": shape})
