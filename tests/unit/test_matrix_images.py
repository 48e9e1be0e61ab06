"""The image of a cell, and the software in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from factories import make_cell, make_site, read_experiment, read_plan_of
from rankbench.matrix.candidate import make_candidate
from rankbench.matrix.catalog import find_image, load_catalog
from rankbench.matrix.feasible import find_obstacle
from rankbench.matrix.site import Site, describe_software

pytestmark = pytest.mark.unit

GLOO = {
    "torch": "2.13.0",
    "cuda": False,
    "backends": ["gloo"],
    "rpc": True,
    "horovod": ["gloo"],
    "packages": {"horovod": True, "deepspeed": True},
    "programs": {"torchrun": True, "horovodrun": True, "deepspeed": True},
}
MPI = {
    **GLOO,
    "torch": "2.6.0",
    "backends": ["gloo", "mpi"],
    "horovod": ["gloo", "mpi"],
    "programs": {"mpirun": True, "horovodrun": True, "deepspeed": True},
}


def site_with_images(**changes: Any) -> Site:
    """Two cores, no GPU, the images of gloo and mpi."""
    images = {
        "gloo-cpu": describe_software(GLOO, 0, "gloo-cpu"),
        "mpi-cpu": describe_software(MPI, 0, "mpi-cpu"),
    }
    return make_site(software="container", native=None, images=images, **changes)


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


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ({}, None),
        ({"backend": "mpi", "launcher": "mpirun"}, None),
        (
            {"backend": "mpi", "launcher": "mpirun", "image": "gloo"},
            "the image gloo-cpu has no MPI: name one that has (image: ...)",
        ),
        ({"launcher": "mpirun"}, "the image gloo-cpu has no mpirun"),
        ({"compile": True}, "the image gloo-cpu has no c++"),
        ({"image": "mpi"}, "the image mpi-cpu has no torchrun"),
        ({"image": "mpi", "launcher": "spawn"}, None),
        (
            {"strategy": "horovod", "backend": "mpi", "launcher": "mpirun"},
            None,
        ),
        (
            {
                "strategy": "horovod",
                "backend": "mpi",
                "launcher": "mpirun",
                "image": "gloo",
            },
            "the Horovod of the image gloo-cpu is built without MPI",
        ),
        (
            {"strategy": "gpipe", "topology": "1x2", "options": {"schedule": "1f1b"}},
            None,
        ),
        (
            {
                "strategy": "gpipe",
                "topology": "1x2",
                "options": {"schedule": "1f1b"},
                "image": "mpi",
            },
            "schedule 1f1b hangs over gloo before torch 2.8; this is 2.6.0",
        ),
    ],
)
def test_what_an_image_lacks_is_a_reason(
    cell: dict[str, Any], reason: str | None
) -> None:
    question = make_candidate(make_cell(**cell), site_with_images(), load_catalog())
    assert find_obstacle(question) == reason


def test_an_image_on_a_native_site_is_a_reason() -> None:
    question = make_candidate(make_cell(image="mpi"), make_site(), load_catalog())
    assert find_obstacle(question) == (
        "the cell names the image mpi; here ranks run in none "
        "(software: container in the site file)"
    )


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
