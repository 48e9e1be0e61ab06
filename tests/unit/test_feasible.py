"""Tests of whether a site can run a cell, and of the shape of its processes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from factories import (
    backends_of,
    make_cell,
    make_gpu_site,
    make_site,
    read_pairs,
    site_with_images,
)
from rankbench.cell import Cell
from rankbench.matrix.candidate import make_candidate, shape_of
from rankbench.matrix.catalog import Catalog, load_catalog
from rankbench.matrix.feasible import find_obstacle, marks_of
from rankbench.matrix.own import describe_library_model
from rankbench.schema import parse_yaml

pytestmark = pytest.mark.unit


NO_CXX = "c++ is not installed: torch.compile needs a C++ compiler (Debian: g++)"
NO_TORCHAO = "torchao is not installed: pip install torchao"
NO_HOROVOD_CUDA = "this Horovod is built without CUDA, and takes tensors on CPUs only"
NO_MPIRUN = "mpirun is not installed: install Open MPI (Debian: openmpi-bin)"
HERE = make_site()
# Names of sites in obstacles.txt and marks.txt.
SITES = {
    "here": HERE,
    "images": site_with_images(),
    "one core": make_site(cores=1),
    "four cores": make_site(cores=4),
    "all backends": make_site(backends=backends_of()),
    "no mpirun": make_site(programs={"mpirun": NO_MPIRUN}),
    "preload": make_site(env={"LD_PRELOAD": "/lib/mine.so"}),
    "no compiler": make_site(programs={"torchrun": None, "c++": NO_CXX}),
    "two hosts": make_site(nodes=2),
    "two hosts of four cores": make_site(nodes=2, cores=4),
    "two hosts without Slurm": make_site(nodes=2, scheduler="none"),
    "torch 2.6": make_site(nodes=2, torch="2.6.0"),
    "torch 2.7": make_site(nodes=2, torch="2.7.1+cpu"),
    "torch 2.13": make_site(nodes=2, torch="2.13.0+cpu"),
    "one GPU": make_gpu_site(1),
    "two GPUs": make_gpu_site(2),
    "GPUs": make_gpu_site(),
    "GPUs of 2020": make_gpu_site(compute_capability=8.0),
    "GPUs and Horovod for CPUs": make_gpu_site(horovod_no_cuda=NO_HOROVOD_CUDA),
    "GPUs without torchao": make_gpu_site(packages={"torchao": NO_TORCHAO}),
    "two hosts with GPUs": make_gpu_site(nodes=2),
}


def cell_of(text: str) -> Cell:
    """A cell from strategy, fields and options: ``ddp topology=1x2 bucket_mb=1``."""
    strategy, *words = text.split()
    pairs = [word.split("=") for word in words]
    given = {key: parse_yaml(value, "test") for key, value in pairs}
    fields = {key: value for key, value in given.items() if key in Cell.__slots__}
    model = catalog_with(fields).models[fields.get("model", "convnet")]
    known = model.get("options", {}).keys() & given.keys()
    options = {
        key.removeprefix(f"{strategy}_"): given[key]
        for key in given.keys() - fields.keys() - known
    }
    of_model = {key: given[key] for key in known}
    return make_cell(
        strategy=strategy, options=options, model_options=of_model, **fields
    )


def catalog_with(fields: dict[str, Any]) -> Catalog:
    """The catalog, with the model of a library that a cell names."""
    name = fields.get("model", "")
    own = {"model": {name: describe_library_model(name)}} if "/" in name else {}
    return load_catalog().with_own(own)


@pytest.mark.parametrize(("row", "reason"), read_pairs("obstacles.txt"))
def test_obstacles(row, reason):
    """The reason is what users read; `ok` if there is none."""
    site, cell = row.split(": ", 1)
    whole = cell_of(cell)
    catalog = catalog_with({"model": whole.model})
    found = find_obstacle(make_candidate(whole, SITES[site], catalog))
    assert (found or "ok") == reason


@pytest.mark.parametrize(("row", "marks"), read_pairs("marks.txt"))
def test_marks(row, marks):
    site, cell = row.split(": ", 1)
    candidate = make_candidate(cell_of(cell), SITES[site], load_catalog())
    assert " ".join(marks_of(candidate) or ["none"]) == marks


@pytest.mark.parametrize(("cell", "numbers"), read_pairs("shapes.txt"))
def test_shape(cell, numbers):
    whole = cell_of(cell)
    shape = shape_of(whole, load_catalog().strategies[whole.strategy])
    assert " ".join(map(str, dataclasses.astuple(shape))) == numbers


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
def test_needs_of_a_strategy(need, value, cell, site, reason):
    catalog = load_catalog()
    ddp = catalog.strategies["ddp"]
    changed = {**ddp, "needs": {**ddp["needs"], need: value}}
    strategies = {**catalog.strategies, "ddp": changed}
    catalog = dataclasses.replace(catalog, strategies=strategies)
    assert find_obstacle(make_candidate(cell_of(cell), site, catalog)) == reason


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("ddp model=lenet", "lenet takes [3] channels, not 1: set channels: 3"),
        ("ddp model=lenet channels=3", None),
    ],
)
def test_models_may_want_certain_channels(cell, reason):
    catalog = load_catalog()
    lenet = {**catalog.models["lenet"], "channels": [3]}
    models = {**catalog.models, "lenet": lenet}
    catalog = dataclasses.replace(catalog, models=models)
    assert find_obstacle(make_candidate(cell_of(cell), HERE, catalog)) == reason
