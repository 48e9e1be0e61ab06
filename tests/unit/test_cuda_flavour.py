"""The driver and the GPUs of a machine choose the images for GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankbench.environ import read_driver
from rankbench.launch.site.machine import choose_flavour, find_misfits
from rankbench.project import run as run_module
from rankbench.project.run import open_run

pytestmark = pytest.mark.unit

V100, A100 = 7.0, 8.0


@pytest.mark.parametrize(
    ("asked", "driver", "capabilities", "flavour"),
    [
        ("auto", "580.65.06", [A100], "cuda"),
        ("auto", "570.86.15", [A100], "cuda12"),
        ("auto", "525.60.13", [A100], "cuda12"),
        ("auto", "470.82.01", [A100], "cuda12"),
        # Its driver is new enough, but CUDA 13 has no kernels for it.
        ("auto", "580.65.06", [A100, V100], "cuda12"),
        # Hosts of a cluster, or a machine without GPUs.
        ("auto", None, [], "cuda"),
        ("cuda", "570.86.15", [A100], "cuda"),
        ("cuda12", "580.65.06", [A100], "cuda12"),
    ],
)
def test_flavour(asked, driver, capabilities, flavour):
    assert choose_flavour(asked, driver, capabilities) == flavour


OLD_DRIVER = "has the NVIDIA driver {}, and the image {} has CUDA {}, which needs {} or"
OLD_GPU = "capability {}, and the image {} has CUDA {}, .* kernels from {} on"
TORCH12 = "2.10.0+cu128"
OTHER, FLAVOUR = "name an image with another CUDA", "set cuda_flavour: cuda12 in site"


@pytest.mark.parametrize(
    ("torch", "image", "driver", "capability", "said", "numbers", "remedy"),
    [
        ("2.13.0", "nccl-cuda", "570.86.15", A100, OLD_DRIVER, (13.0, 580), FLAVOUR),
        ("2.13.0", "nccl-cuda", "580.65.06", V100, OLD_GPU, (13.0, 7.5), FLAVOUR),
        (TORCH12, "nccl12-cuda", "470.82.01", A100, OLD_DRIVER, (12.8, 525), OTHER),
        (TORCH12, "nccl12-cuda", "580.65.06", 6.0, OLD_GPU, (12.8, 7), OTHER),
    ],
)
def test_what_does_not_fit_an_image(
    torch, image, driver, capability, said, numbers, remedy
):
    what = driver if said == OLD_DRIVER else capability
    (found,) = find_misfits(torch, image, driver, [capability])
    assert re.search(f"{said.format(what, image, *numbers)}.*{remedy}", found)


@pytest.mark.parametrize(
    ("torch", "image"),
    # A vendor's build says no CUDA.
    [("2.6.0+cu118", "old"), ("2.13.0+cpu", None), ("2.9.0a0+145a3a7", "ngc")],
)
def test_what_fits_an_old_driver(torch, image):
    assert not [*find_misfits(torch, image, "470.82.01", [V100])]


def test_the_version_of_a_driver(tmp_path):
    file = tmp_path / "version"
    assert read_driver(file) is None
    file.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
    assert read_driver(file) == "570.86.15"


SITE = """
software: container
device: cuda
scheduler: {}
devices_per_node: 2
cores: 8
cuda_flavour: {}
"""


@pytest.mark.parametrize(
    ("scheduler", "asked", "driver", "images", "fault"),
    [
        ("none", "auto", "580.65.06", {"gloo-cuda", "nccl-cuda"}, None),
        ("none", "auto", "570.86.15", {"nccl12-cuda"}, None),
        ("none", "auto", "470.82.01", {"nccl12-cuda"}, "this machine .*needs 525"),
        (
            "none",
            "cuda",
            "570.86.15",
            {"gloo-cuda", "nccl-cuda"},
            "cuda_flavour: cuda12",
        ),
        # The driver of a login node says nothing about the hosts.
        ("slurm", "auto", "570.86.15", {"gloo-cuda", "nccl-cuda"}, None),
        ("slurm", "cuda12", None, {"nccl12-cuda"}, None),
    ],
)
def test_planning_chooses_images_and_says_what_does_not_fit(
    tmp_path: Path, monkeypatch, scheduler, asked, driver, images, fault
):
    monkeypatch.setattr(run_module, "read_driver", lambda: driver)
    monkeypatch.setattr(run_module, "list_gpus", lambda _: ["8.0", "8.0"])
    monkeypatch.setattr(run_module, "count_gpus", lambda: 2)
    monkeypatch.chdir(tmp_path)
    Path("site.yaml").write_text(SITE.format(scheduler, asked))
    Path("e.yaml").write_text(
        "name: e\nstrategy: ddp\nbackend: [gloo, nccl]\ntopology: 1x2\n"
    )
    plan = open_run({"experiment": "e.yaml"}, profile=Path(), write=False).plan
    cells = plan.cells.values()
    assert {cell.image for cell in cells} == images
    if fault is None:
        assert [cell.infeasible for cell in cells] == [None, None]
    else:
        for cell in cells:
            assert cell.infeasible is not None
            assert re.search(fault, cell.infeasible)
