"""Which CUDA the driver and the GPUs of a host can run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from rankbench.launch.hosts.base import run_well

_SECONDS = 30.0

Release = tuple[int, int]

# CUDA from this release on -> the least major version of the driver, and the least
# compute capability that torch's builds have kernels for. Drivers: NVIDIA, CUDA
# Compatibility, "Minor version compatibility"; kernels: the support matrix in torch's
# RELEASE.md. Builds of torch from 2.11 on for CUDA 12.8 need 7.5.
NEEDS = {(12, 0): (525, 5.0), (12, 8): (525, 7.0), (13, 0): (580, 7.5)}

# Value of the site key `cuda_flavour` -> CUDA of its images, the preferred one first.
FLAVOURS = {"cuda": (13, 0), "cuda12": (12, 8)}
# Image of rankbench -> its flavour. The torch of one that is not built has no label.
IMAGES = {"gloo-cuda": "cuda", "nccl-cuda": "cuda", "nccl12-cuda": "cuda12"}


def list_gpus(wanted: str) -> list[str]:
    """A fact about each GPU of this host, by its name in `nvidia-smi --help-query-gpu`;
    none if nvidia-smi is missing or fails."""
    command = ["nvidia-smi", "--format=csv,noheader", f"--query-gpu={wanted}"]
    done = run_well(command, _SECONDS)
    return done.stdout.strip().splitlines() if done else []


def choose_flavour(
    asked: str, driver: str | None, capabilities: Sequence[float]
) -> str:
    """Return the flavour of the images for GPUs.

    Args:
        asked: site key `cuda_flavour`: one of `FLAVOURS`, or ``auto`` for the first of
            them that these GPUs can run.
        driver: version of the driver; None: not known.
        capabilities: compute capability of each GPU.
    """
    if asked != "auto":
        return asked
    fitting = [f for f in FLAVOURS if not _misfits(FLAVOURS[f], driver, capabilities)]
    # If none fits, the last one needs least.
    return next(iter(fitting), list(FLAVOURS)[-1])


def find_misfits(
    torch: str, image: str | None, driver: str | None, capabilities: Sequence[float]
) -> Iterator[str]:
    """Why GPUs cannot run a torch, with the remedy; the subject is their host.

    Args:
        torch: its version; one without CUDA runs everywhere.
        image: name of its image; None: it is installed on the host.
        driver, capabilities: as for `choose_flavour`.
    """
    flavour = IMAGES.get(image or "")
    if built := re.search(r"\+cu(\d+)(\d)$", torch):
        cuda = (int(built[1]), int(built[2]))
    elif flavour:
        cuda = FLAVOURS[flavour]
    else:
        return
    other = choose_flavour("auto", driver, capabilities)
    if image is None:
        remedy = "install a torch for another CUDA"
    elif flavour and not _misfits(FLAVOURS[other], driver, capabilities):
        remedy = f"set cuda_flavour: {other} in site.yaml"
    else:
        remedy = "name an image with another CUDA (images in site.yaml)"
    where = f"the image {image}" if image else "torch here"
    where += f" has CUDA {cuda[0]}.{cuda[1]}"
    for said in _misfits(cuda, driver, capabilities):
        yield said.format(where=where, remedy=remedy)


def _misfits(
    cuda: Release, driver: str | None, capabilities: Sequence[float]
) -> list[str]:
    """Templates of messages; none if GPUs can run this CUDA, as far as is known."""
    least_driver, least = NEEDS.get(
        max((r for r in NEEDS if r <= cuda), default=cuda), (0, 0.0)
    )
    capability = min(capabilities, default=math.inf)
    said = []
    if driver and int(driver.partition(".")[0]) < least_driver:
        said.append(
            f"has the NVIDIA driver {driver}, and {{where}}, which needs "
            f"{least_driver} or newer: have the driver updated, or {{remedy}}"
        )
    if capability < least:
        said.append(
            f"has a GPU of compute capability {capability}, and {{where}}, whose torch "
            f"has kernels from {least:g} on: {{remedy}}"
        )
    return said
