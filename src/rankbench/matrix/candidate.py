"""A cell with its shape and all facts that decide whether it can run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankbench.cell import AUTO, Cell, Shape
from rankbench.matrix.catalog import Catalog, find_image
from rankbench.matrix.site import CONTAINER, Site, Software
from rankbench.own_files import count_samples, values_of


@dataclass(frozen=True, slots=True)
class Candidate:
    """The argument of each rule in obstacles.py and feasible.py.

    Attributes:
        image: name and flavour of the image for the ranks; None if they run natively.
        no_place: the reason why neither an image nor the machine fits, or None.
        estimate: what `rankbench run -n --memory` found of the cell; None: not asked.
    """

    cell: Cell
    facts: Mapping[str, Any]
    shape: Shape
    site: Site
    catalog: Catalog
    image: str | None
    no_place: str | None
    estimate: Mapping[str, Any] | None = None

    @property
    def needs(self) -> Mapping[str, Any]:
        """The needs of its strategy."""
        needs: Mapping[str, Any] = self.facts["needs"]
        return needs

    @property
    def model(self) -> Mapping[str, Any]:
        """What its model declares."""
        return self.catalog.models[self.cell.model]

    @property
    def data(self) -> Mapping[str, Any]:
        """What its data set declares."""
        return self.catalog.data[self.cell.data]

    @property
    def software(self) -> Software:
        """The software that ranks find; defined only if `no_place` is None."""
        images: Mapping[str, Software] = self.site["images"]
        return images[self.image] if self.image else self.site["native"]

    @property
    def demand(self) -> tuple[str, int, int]:
        """GPUs or cores: (their name, needed per host, present per host)."""
        devices = self.cell.size.devices_per_node
        if self.cell.device == "cuda":
            return "GPUs", devices, self.site["cuda_devices"]
        return "cores", devices * self.cell.cores_per_device, self.site["cores"]

    @property
    def is_oversubscribed(self) -> bool:
        """Whether the ranks on a host must share its cores or GPUs."""
        _, needed, present = self.demand
        return needed > present


def make_candidate(
    cell: Cell,
    site: Site,
    catalog: Catalog,
    estimate: Mapping[str, Any] | None = None,
) -> Candidate:
    """Collect the facts about a cell, and choose its image."""
    facts = catalog.strategies[cell.strategy]
    image, reason = None, None
    if site["software"] == CONTAINER:
        image, reason = find_image(cell, catalog.images)
        if image is not None and image not in site["images"]:
            reason = f"{image} was not probed yet: `rankbench images` does so"
            image = None
    elif cell.image != AUTO:
        reason = (
            f"the cell names the image {cell.image}; here ranks run in none "
            "(software: container in the site file)"
        )
    shape = shape_of(cell, facts)
    return Candidate(cell, facts, shape, site, catalog, image, reason, estimate)


def shape_of(cell: Cell, facts: Mapping[str, Any]) -> Shape:
    """The numbers of processes, devices and samples of a cell."""
    size, needs = cell.size, facts["needs"]
    ranks = {"one": 1, "node": size.nodes, "device": size.devices}[needs["ranks"]]
    replica_ranks = needs["replica_ranks"]
    if isinstance(replica_ranks, list):
        replica_ranks = math.prod(cell.options[name] for name in replica_ranks)
    elif replica_ranks == "all":
        replica_ranks = ranks
    replicas = {
        "one": 1,
        "rank": max(1, ranks // replica_ranks),
        "device": size.devices,
    }[needs["replicas"]]
    devices_per_rank = size.devices // ranks
    global_batch = cell.batch_size * (replicas if cell.scaling == "weak" else 1)
    if cell.script is not None:
        global_batch = count_samples(cell.script["samples_per_step"], values_of(cell))
    on_cpu = cell.device == "cpu"
    return Shape(
        nodes=size.nodes,
        ranks=ranks,
        ranks_per_node=max(1, ranks // size.nodes),
        devices_per_rank=devices_per_rank,
        cores_per_rank=cell.cores_per_device * devices_per_rank if on_cpu else 0,
        replicas=replicas,
        replica_ranks=replica_ranks,
        global_batch=global_batch,
        rank_batch=global_batch * replica_ranks // ranks,
    )
