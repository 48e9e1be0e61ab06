"""Tests of whether a site can run a cell, and of the shape of its processes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from factories import (
    backends_of,
    make_cell,
    make_gpu_site,
    make_site,
    site_with_images,
)
from rankbench.cell import Cell
from rankbench.matrix.candidate import make_candidate, shape_of
from rankbench.matrix.catalog import Catalog, load_catalog
from rankbench.matrix.feasible import find_obstacle, marks_of
from rankbench.matrix.own import describe_library_model
from rankbench.matrix.site import Site

pytestmark = pytest.mark.unit


NO_CXX = "c++ is not installed: torch.compile needs a C++ compiler (Debian: g++)"
NO_MPIRUN = "mpirun is not installed: install Open MPI (Debian: openmpi-bin)"
HERE, TWO, ONE_GPU = make_site(), make_site(nodes=2), make_gpu_site(1)
# Names of sites in obstacles.txt.
SITES = {
    "here": HERE,
    "images": site_with_images(),
    "one core": make_site(cores=1),
    "four cores": make_site(cores=4),
    "all backends": make_site(backends=backends_of()),
    "no mpirun": make_site(programs={"mpirun": NO_MPIRUN}),
    "no compiler": make_site(programs={"torchrun": None, "c++": NO_CXX}),
    "two hosts": TWO,
    "two hosts of four cores": make_site(nodes=2, cores=4),
    "two hosts without Slurm": make_site(nodes=2, scheduler="none"),
    "torch 2.6": make_site(nodes=2, torch="2.6.0"),
    "torch 2.7": make_site(nodes=2, torch="2.7.1+cpu"),
    "torch 2.13": make_site(nodes=2, torch="2.13.0+cpu"),
    "one GPU": ONE_GPU,
    "GPUs": make_gpu_site(),
    "two hosts with GPUs": make_gpu_site(nodes=2),
}
GOLDEN = Path(__file__).with_name("obstacles.txt").read_text().splitlines()


def cell_of(text: str) -> Cell:
    """A cell from strategy, fields and options: ``ddp topology=1x2 bucket_mb=1``."""
    strategy, *words = text.split()
    pairs = [word.split("=") for word in words]
    given = {key: yaml.safe_load(value) for key, value in pairs}
    fields = {key: value for key, value in given.items() if key in Cell.__slots__}
    model = catalog_with(fields).models[fields.get("model", "convnet")]
    known = model.get("options", {}).keys() & given.keys()
    options = {key: given[key] for key in given.keys() - fields.keys() - known}
    of_model = {key: given[key] for key in known}
    return make_cell(
        strategy=strategy, options=options, model_options=of_model, **fields
    )


def catalog_with(fields: dict[str, Any]) -> Catalog:
    """The catalog, with the model of a library that a cell names."""
    name = fields.get("model", "")
    own = {"model": {name: describe_library_model(name)}} if "/" in name else {}
    return load_catalog().with_own(own)


@pytest.mark.parametrize("line", [line for line in GOLDEN if line and line[0] != "#"])
def test_obstacles(line: str) -> None:
    """The reason is what users read; `ok` if there is none."""
    site, rest = line.split(": ", 1)
    cell, reason = rest.split(" -> ")
    whole = cell_of(cell)
    catalog = catalog_with({"model": whole.model})
    found = find_obstacle(make_candidate(whole, SITES[site], catalog))
    assert (found or "ok") == reason


@pytest.mark.parametrize(
    ("cell", "site", "marks"),
    [
        ("ddp topology=1x2 oversubscribe=true", HERE, []),
        ("mp backend=none topology=1x2", HERE, ["functional"]),
        (
            "pmp backend=none topology=1x2 model=resnet18",
            HERE,
            ["approximate", "functional"],
        ),
        # With accumulation, batch norm would use the statistics of a part of the batch.
        ("ddp model=resnet18 accumulation=2", HERE, ["approximate"]),
        ("ddp model=resnet18", HERE, []),
        ("ddp accumulation=2", HERE, []),
        ("ddp compression=fp16", HERE, ["approximate"]),
        ("ddp_dp topology=1x2", HERE, ["functional"]),
        ("ddp topology=1x3 oversubscribe=true", HERE, ["oversubscribed"]),
        ("ddp cores_per_device=3 oversubscribe=true", HERE, ["oversubscribed"]),
        (
            "ddp device=cuda topology=1x2 oversubscribe=true",
            ONE_GPU,
            ["oversubscribed"],
        ),
        ("ddp device=cuda topology=1x2 oversubscribe=true", make_gpu_site(2), []),
    ],
)
def test_marks(cell: str, site: Site, marks: list[str]) -> None:
    candidate = make_candidate(cell_of(cell), site, load_catalog())
    assert marks_of(candidate) == marks


@pytest.mark.parametrize(
    ("cell", "numbers"),
    [
        # The numbers are: nodes, ranks, ranks per node, devices per rank, cores per
        # rank, replicas, ranks per replica, global batch, batch of a rank.
        ("single backend=none", (1, 1, 1, 1, 1, 1, 1, 64, 64)),
        ("single topology=1x2", (1, 1, 1, 2, 2, 1, 1, 64, 64)),
        ("single topology=1x2 cores_per_device=3", (1, 1, 1, 2, 6, 1, 1, 64, 64)),
        ("single device=cuda", (1, 1, 1, 1, 0, 1, 1, 64, 64)),
        ("dp device=cuda topology=1x4", (1, 1, 1, 4, 0, 4, 1, 256, 256)),
        ("dp device=cuda topology=1x4 scaling=strong", (1, 1, 1, 4, 0, 4, 1, 64, 64)),
        ("ddp", (1, 1, 1, 1, 1, 1, 1, 64, 64)),
        ("ddp topology=1x2", (1, 2, 2, 1, 1, 2, 1, 128, 64)),
        ("ddp topology=1x2 scaling=strong", (1, 2, 2, 1, 1, 2, 1, 64, 32)),
        ("ddp topology=2x4", (2, 8, 4, 1, 1, 8, 1, 512, 64)),
        ("ddp topology=2x4 scaling=strong", (2, 8, 4, 1, 1, 8, 1, 64, 8)),
        ("ddp topology=2x4 cores_per_device=2", (2, 8, 4, 1, 2, 8, 1, 512, 64)),
        ("ddp topology=2x4 device=cuda", (2, 8, 4, 1, 0, 8, 1, 512, 64)),
        # There is one process per host, and each of its devices has a replica.
        ("ddp_dp topology=2x4", (2, 2, 1, 4, 4, 8, 1, 512, 256)),
        # The ranks of a replica load the same samples.
        ("tp topology=2x2 degree=2", (2, 4, 2, 1, 1, 2, 2, 128, 64)),
        ("tp topology=2x2 degree=0", (2, 4, 2, 1, 1, 1, 4, 64, 64)),
    ],
)
def test_shape(cell: str, numbers: tuple[int, ...]) -> None:
    whole = cell_of(cell)
    shape = shape_of(whole, load_catalog().strategies[whole.strategy])
    assert dataclasses.astuple(shape) == numbers


NO_HOROVOD = "horovod is not installed: `make extras` builds it"
WITHOUT = make_site(packages={"horovod": NO_HOROVOD})
BY_OTHERS = "ddp is started by spawn or manual, not by torchrun"


@pytest.mark.parametrize(
    ("need", "value", "cell", "site", "reason"),
    [
        ("packages", ["horovod"], "ddp", HERE, None),
        ("packages", ["horovod"], "ddp", WITHOUT, NO_HOROVOD),
        ("launchers", ["spawn", "manual"], "ddp", HERE, BY_OTHERS),
        ("launchers", ["spawn", "manual"], "ddp launcher=manual", HERE, None),
        ("runtime", "horovod", "ddp", HERE, "torchrun starts other programs than ddp"),
    ],
)
def test_needs_of_a_strategy(
    need: str, value: Any, cell: str, site: Site, reason: str | None
) -> None:
    catalog = load_catalog()
    ddp = catalog.strategies["ddp"]
    changed = dataclasses.replace(ddp, needs={**ddp.needs, need: value})
    strategies = {**catalog.strategies, "ddp": changed}
    catalog = dataclasses.replace(catalog, strategies=strategies)
    assert find_obstacle(make_candidate(cell_of(cell), site, catalog)) == reason


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("ddp model=lenet", "lenet takes [3] channels, not 1"),
        ("ddp model=lenet channels=3", None),
    ],
)
def test_models_may_want_certain_channels(cell: str, reason: str | None) -> None:
    catalog = load_catalog()
    lenet = {**catalog.models["lenet"], "channels": [3]}
    models = {**catalog.models, "lenet": lenet}
    catalog = dataclasses.replace(catalog, models=models)
    assert find_obstacle(make_candidate(cell_of(cell), HERE, catalog)) == reason
