"""The image of a cell, and the software in it."""

from __future__ import annotations

import pytest

from factories import make_cell, read_experiment, read_plan_of, site_with_images
from rankbench.matrix.candidate import make_candidate
from rankbench.matrix.catalog import find_image, load_catalog
from rankbench.matrix.feasible import find_obstacle

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
def test_a_backend_has_its_image(cell, image):
    found = find_image(make_cell(**cell), load_catalog().images)
    assert found == (image, None)


def test_no_image():
    gpu = {"backend": "mpi", "device": "cuda"}
    for cell, reason in (
        (gpu, "no image serves mpi on cuda: name one that has it (image: ...)"),
        (gpu | {"image": "mpi"}, "the image mpi is made for cpu, not for cuda"),
    ):
        assert find_image(make_cell(**cell), load_catalog().images) == (None, reason)


def test_naming_the_image_of_the_backend_is_the_same_cell(tmp_path):
    text = "name: e\nstrategy: ddp\nimage: {}\n"
    said = read_experiment(tmp_path, text.format("gloo")).cells
    silent = read_experiment(tmp_path, text.format("auto")).cells
    other = read_experiment(tmp_path, text.format("mpi")).cells
    assert said == silent
    assert list(other) == ["ddp.gloo.1x1.convnet.digits.image=mpi"]


NAMED = """
name: e
images: {ngc: {file: ngc.sif}, ours: auto, mpi: {file: mpi.sif}}
strategy: ddp
backend: [gloo, mpi]
image: [ours, ngc]
"""


def test_named_images_are_swept_and_alternatives(tmp_path):
    site = site_with_images()
    site["images"]["mpi"] = site["images"]["mpi-cpu"]
    plan = read_plan_of(tmp_path, NAMED, site)
    gloo = "ddp.gloo.1x1.convnet.digits.image="
    mpi = "ddp.mpi.1x1.convnet.digits.image="
    assert {name: cell.image for name, cell in plan.cells.items()} == {
        f"{gloo}ours": "gloo-cpu",
        f"{gloo}ngc": None,
        # Its name is that of a built one, whose place it takes.
        f"{mpi}ours": "mpi",
        f"{mpi}ngc": None,
    }
    ours, ngc = plan.cells[f"{gloo}ours"], plan.cells[f"{gloo}ngc"]
    assert ngc.infeasible == "ngc was not probed yet: `rankbench images` does so"
    assert ours.hash != ngc.hash
    assert ours.cell.workload() == ngc.cell.workload()


@pytest.mark.parametrize("entry", ["{}", "{file: x, source: y}", "{digest: x}", "1"])
def test_a_named_image_that_is_none(tmp_path, entry):
    text = f"name: e\nimages: {{ngc: {entry}}}\nstrategy: ddp\nimage: ngc\n"
    with pytest.raises(ValueError, match=r"\.yaml:2: images\.ngc"):
        read_experiment(tmp_path, text)
    text = "name: e\nimages: {ngc: {file: x.sif}}\nstrategy: ddp\nimage: ncg\n"
    with pytest.raises(ValueError, match=r"image: 'ncg' is not one of .*'ngc'\?"):
        read_experiment(tmp_path, text)


def test_a_gpu_needs_an_image_with_cuda():
    site = site_with_images(device="cuda", cuda_devices=1)
    site["images"]["ngc"] = site["images"]["gloo-cpu"]
    catalog = load_catalog().with_images({"ngc": {"file": "ngc.sif"}})
    cell = make_cell(image="ngc", device="cuda")
    assert find_obstacle(make_candidate(cell, site, catalog)) == (
        "the torch of the image gloo-cpu (2.13.0) is built without CUDA"
    )


def test_a_plan_names_the_images_of_its_cells(tmp_path):
    text = "name: e\nstrategy: [single, ddp]\nbackend: [gloo, mpi, nccl]\n"
    plan = read_plan_of(tmp_path, text, site_with_images())
    images = {cell_id.split(".")[1]: cell.image for cell_id, cell in plan.cells.items()}
    assert images == {
        "none": "gloo-cpu",
        "gloo": "gloo-cpu",
        "mpi": "mpi-cpu",
        "nccl": None,
    }
