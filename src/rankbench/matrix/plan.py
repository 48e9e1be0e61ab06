"""The plan: all cells of an experiment on a site, each with its shape or obstacle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankbench.cell import Cell, Shape
from rankbench.matrix.candidate import make_candidate
from rankbench.matrix.catalog import Catalog, Own
from rankbench.matrix.experiment import Experiment
from rankbench.matrix.feasible import find_obstacle, marks_of
from rankbench.matrix.predicted_cells import PredictedCell, plan_predicted
from rankbench.matrix.schema import did_you_mean
from rankbench.matrix.selection import Filter
from rankbench.matrix.sharing import check_sharing
from rankbench.matrix.site import Site, use_hosts
from rankbench.record import read_json

PLAN_VERSION = 2


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell of the plan.

    Attributes:
        infeasible: the reason why the cell cannot run here, or None.
        image: name and flavour of the image for its ranks; None if they run natively.
    """

    id: str
    hash: str
    cell: Cell
    shape: Shape
    phases: Sequence[str]
    infeasible: str | None
    marks: Sequence[str]
    image: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "hash": self.hash,
            "cell": self.cell.to_dict(),
            "shape": self.shape.to_dict(),
            "phases": list(self.phases),
            "infeasible": self.infeasible,
            "marks": list(self.marks),
            "image": self.image,
        }


@dataclass(frozen=True)
class Plan:
    """The cells of an experiment on a site; all jobs read them from `plan.json`.

    Attributes:
        images: name and flavour -> file, recipe and sha256 (None: not built yet).
        beyond: cells that are not measured but predicted.
        own: variants in files of the user's own, as the catalog describes them.
    """

    experiment: dict[str, Any]
    site: dict[str, Any]
    code: dict[str, str]
    images: dict[str, dict[str, Any]]
    cells: dict[str, PlannedCell]
    beyond: Sequence[PredictedCell] = field(default_factory=list)
    own: Own = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.experiment["name"])

    @property
    def is_study(self) -> bool:
        """Whether the experiment repeats published measurements."""
        return self.experiment.get("study") is not None

    @property
    def feasible(self) -> list[PlannedCell]:
        return [c for c in self.cells.values() if c.infeasible is None]

    def find(self, cell_id: str) -> PlannedCell:
        """A cell by its readable id.

        Raises:
            ValueError: there is no such cell; suggests a similar id.
        """
        if cell_id not in self.cells:
            raise ValueError(
                f"no cell {cell_id!r} in the experiment {self.name}"
                f"{did_you_mean(cell_id, self.cells)} (`rankbench cells` lists them)"
            )
        return self.cells[cell_id]

    def select(self, only: str | None) -> list[PlannedCell]:
        """The cells that match a filter `key=value,value ...`; all without a filter.

        Raises:
            ValueError: the filter is malformed, or no cell matches it.
        """
        planned = list(self.cells.values())
        if not only:
            return planned
        try:
            wanted = Filter.parse(only)
            wanted.check([p.cell for p in planned])
        except ValueError as error:
            raise ValueError(f"only: {error}") from error
        chosen = [p for p in planned if wanted.accepts(p.cell)]
        if not chosen:
            raise ValueError(f"only: no cell matches {only!r}")
        return chosen

    def to_json(self) -> bytes:
        value = {
            "schema": PLAN_VERSION,
            "experiment": self.experiment,
            "site": self.site,
            "code": self.code,
            "images": self.images,
            "cells": [planned.to_dict() for planned in self.cells.values()],
        }
        if self.own:
            value["own"] = self.own
        if self.beyond:
            value["beyond"] = [one.to_dict() for one in self.beyond]
        return (json.dumps(value, indent=1) + "\n").encode()


def make_plan(
    experiment: Experiment,
    site: Site,
    catalog: Catalog,
    *,
    code: str,
    source: str,
    images: Mapping[str, dict[str, Any]] | None = None,
) -> Plan:
    """Make the plan: resolve every cell against the site.

    Args:
        experiment: the checked experiment.
        site: the machine.
        catalog: the variants that exist.
        code: SHA-256 of the rank-side code.
        source: name of the experiment file in the plan and in errors.
        images: name and flavour -> facts about the image.

    Raises:
        ValueError: cells cannot share jobs here as the experiment wants, or it names
            a host that the site does not list.
    """
    site = use_hosts(site, experiment.values["hosts"], source)
    own = experiment.own.facts()
    catalog = catalog.with_own(own)
    planned = {}
    for cell_id, cell in experiment.cells.items():
        candidate = make_candidate(cell, site, catalog)
        planned[cell_id] = PlannedCell(
            id=cell_id,
            hash=cell.hash(),
            cell=cell,
            shape=candidate.shape,
            phases=candidate.facts.phases,
            infeasible=find_obstacle(candidate),
            marks=marks_of(candidate),
            image=candidate.image,
        )
    values = experiment.values
    try:
        check_sharing(values, site)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    header = {
        "name": experiment.name,
        "description": values["description"],
        "file": source,
        "sha256": experiment.sha256,
        # A number, or a rule that ends the launches: see `rankbench.stopping`.
        "launches": values["launches"],
        "time_limit": values["time_limit"],
        "order": values["order"],
        "allocation": values["allocation"],
        "budget": values["budget"],
        "start_within": values["start_within"],
        "gate": values["gate"],
        "profile": values["profile"],
        "save_model": values["save_model"],
        "backend_logs": values["backend_logs"],
        "collectives": values["collectives"],
        "override": experiment.override,
        "study": experiment.study,
    }
    used = {one.image for one in planned.values() if one.infeasible is None}
    taken = {name: facts for name, facts in (images or {}).items() if name in used}
    beyond = plan_predicted(experiment.cells, values["predict"], site, catalog)
    return Plan(header, site.to_dict(), {"rank": code}, taken, planned, beyond, own)


def read_plan(path: Path) -> Plan:
    """Read `plan.json`.

    Raises:
        ValueError: the file is damaged or was written by another version.
    """
    value = read_json(path)
    if value.get("schema") != PLAN_VERSION:
        raise ValueError(
            f"{path} has plan schema {value.get('schema')}, "
            f"this rankbench reads {PLAN_VERSION}: `rankbench run` makes a new plan"
        )
    try:
        cells = {entry["id"]: _read_cell(entry) for entry in value["cells"]}
        header = {key: value[key] for key in ("experiment", "site", "code", "images")}
        beyond = [_read_beyond(entry) for entry in value.get("beyond") or ()]
        return Plan(**header, cells=cells, beyond=beyond, own=value.get("own") or {})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged or of another version ({error}): "
            "`rankbench run` makes a new plan"
        ) from error


def _read_beyond(entry: dict[str, Any]) -> PredictedCell:
    cell, shape = Cell.from_dict(entry["cell"]), Shape(**entry["shape"])
    return PredictedCell(entry["id"], cell, shape, entry["infeasible"])


def _read_cell(entry: dict[str, Any]) -> PlannedCell:
    return PlannedCell(
        id=entry["id"],
        hash=entry["hash"],
        cell=Cell.from_dict(entry["cell"]),
        shape=Shape(**entry["shape"]),
        phases=entry["phases"],
        infeasible=entry["infeasible"],
        marks=entry["marks"],
        image=entry["image"],
    )
