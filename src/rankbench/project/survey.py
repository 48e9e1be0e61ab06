"""A site as the plan sees it: its file, the machine, and the images that it has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankbench.assets import find_asset
from rankbench.cores import physical_cores
from rankbench.launch.images.store import Image, load_images
from rankbench.launch.site.machine import count_gpus, probe_machine
from rankbench.matrix.site import (
    NATIVE,
    Site,
    cuda_devices_of,
    make_site,
    read_site,
)
from rankbench.matrix.software import (
    PROGRAMS,
    image_software,
    native_software,
    why_no_cuda,
)

CONTAINERS = find_asset("containers")


def survey_site(path: Path, *, write: bool) -> tuple[Site, dict[str, Image]]:
    """Read the site file, and look at the machine or at its images.

    Args:
        path: `site.yaml` of a profile.
        write: whether what a look at the machine found may be kept.

    Returns:
        The site, and its images by their names with flavour (none if native).

    Raises:
        ValueError: the file is not as its schema wants it, or contradicts the machine.
    """
    facts = read_site(path)
    if facts["software"] == NATIVE:
        return native_site(facts, probe_machine(PROGRAMS, write=write), source=path), {}
    gpus = cuda_devices_of(facts, found=count_gpus())
    images = load_images(CONTAINERS, Path(facts["image_dir"]), facts["images"])
    software = {
        name: image_software(name, image.facts(), gpus)
        for name, image in images.items()
    }
    site = make_site(
        facts,
        source=path,
        cores=len(physical_cores()),
        cuda_devices=gpus,
        no_cuda="this machine shows no NVIDIA GPU",
        images=software,
    )
    return site, images


def native_site(
    facts: Mapping[str, Any], probe: Mapping[str, Any], *, source: Path
) -> Site:
    """The site whose ranks run in the environment that was looked at."""
    gpus = cuda_devices_of(facts, found=len(probe["cuda_devices"]))
    return make_site(
        facts,
        source=source,
        cores=probe["cores"],
        cuda_devices=gpus,
        no_cuda=why_no_cuda(probe, f"this torch ({probe['torch']})"),
        native=native_software(probe, gpus),
    )
