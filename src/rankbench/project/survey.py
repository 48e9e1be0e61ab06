"""The site of a plan, read from its file, the machine and its images."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankbench.assets import find_asset
from rankbench.cores import physical_cores
from rankbench.launch.images.store import Image, load_images
from rankbench.launch.site.machine import count_gpus, probe_machine
from rankbench.matrix.site import (
    NATIVE,
    PROGRAMS,
    Site,
    cuda_devices_of,
    describe_software,
    make_site,
    read_site,
    why_no_cuda,
)
from rankbench.schedulers import scheduler_of

CONTAINERS = find_asset("containers")


def survey_site(path: Path, *, write: bool) -> tuple[Site, dict[str, Image]]:
    """Read the site file, and inspect the machine or its images.

    Args:
        path: `site.yaml` of a profile.
        write: whether the facts about this machine may be cached.

    Returns:
        The site, and its images by name and flavour ({} if native).

    Raises:
        ValueError: the file does not match its schema, or contradicts the machine.
    """
    facts = read_site(path)
    if facts["software"] == NATIVE:
        return native_site(facts, probe_machine(PROGRAMS, write=write), source=path), {}
    gpus = cuda_devices_of(facts, found=count_gpus())
    images = load_images(CONTAINERS, Path(facts["image_dir"]), facts["images"])
    software = {
        name: describe_software(image.facts(), gpus, name)
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
    """Return a site whose ranks run in the environment that the probe describes."""
    gpus = cuda_devices_of(facts, found=len(probe["cuda_devices"]))
    return make_site(
        facts,
        source=source,
        cores=probe["cores"],
        cuda_devices=gpus,
        no_cuda=why_no_cuda(probe, f"this torch ({probe['torch']})"),
        native=describe_software(probe, gpus),
        memory_gib=None if scheduler_of(facts).has_hosts else _find_memory(probe),
    )


def _find_memory(probe: Mapping[str, Any]) -> float | None:
    """GiB of the smallest GPU of this machine; without GPUs, of the machine."""
    if probe["cuda_devices"]:
        return min(probe.get("cuda_memory_gib") or (), default=None)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
