"""The image of a cell, and the software in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from factories import make_cell, read_experiment, read_plan_of, site_with_images
from rankbench.matrix.catalog import find_image, load_catalog

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("cell", "image"),
    [
        ({}, "gloo-cpu"),
        ({"strategy": "single", "backend": "none"}, "gloo-cpu"),
        ({"strategy": "rpc_pmp", "backend": "tensorpipe"}, "gloo-cpu"),
        ({"backend": "mpi"}, "mpi-cpu"),
        ({"backend": "gloo", "image": "mpi"}, "mpi-cpu"),
        ({"backend": "gloo", "device": "cuda"}, "gloo-cuda"),
    ],
)
def test_a_backend_has_its_image(cell: dict[str, Any], image: str) -> None:
    found = find_image(make_cell(**cell), load_catalog().images)
    assert found == (image, None)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ({"backend": "mpi", "device": "cuda"}, "no image serves mpi on cuda"),
        (
            {"backend": "mpi", "device": "cuda", "image": "mpi"},
            "the image mpi is made for cpu, not for cuda",
        ),
    ],
)
def test_no_image(cell: dict[str, Any], reason: str) -> None:
    assert find_image(make_cell(**cell), load_catalog().images) == (None, reason)


def test_naming_the_image_of_the_backend_is_the_same_cell(tmp_path: Path) -> None:
    text = "name: e\nstrategy: ddp\nimage: {}\n"
    said = read_experiment(tmp_path, text.format("gloo")).cells
    silent = read_experiment(tmp_path, text.format("auto")).cells
    other = read_experiment(tmp_path, text.format("mpi")).cells
    assert said == silent
    assert list(other) == ["ddp.gloo.1x1.convnet.digits.image=mpi"]


def test_a_plan_names_the_images_of_its_cells(tmp_path: Path) -> None:
    text = "name: e\nstrategy: [single, ddp]\nbackend: [gloo, mpi, nccl]\n"
    plan = read_plan_of(tmp_path, text, site_with_images())
    images = {cell_id.split(".")[1]: cell.image for cell_id, cell in plan.cells.items()}
    assert images == {
        "none": "gloo-cpu",
        "gloo": "gloo-cpu",
        "mpi": "mpi-cpu",
        "nccl": None,
    }
