"""The torch and the devices of a machine, and which CUDA they can run.

Importing torch takes longer than planning an experiment. So a child process looks once.
Its answer is kept in the environment that it describes, under a fingerprint of
everything that could change it.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rankbench.cell import PACKAGES
from rankbench.environ import physical_cores
from rankbench.launch.hosts.base import output_of, run_to_end
from rankbench.launch.process.gpu_usage import visible_gpus
from rankbench.launch_spec import SOURCE
from rankbench.record import write_json

# A file of each package that every new build of it replaces.
_LOOKED_AT = {"torch": "version.py", **dict.fromkeys(PACKAGES, "__init__.py")}

CACHE = Path(sys.prefix) / "var" / "rankbench" / "probe.json"


def probe_machine(
    programs: Sequence[str] = (), *, write: bool = True, cache: Path = CACHE
) -> dict[str, Any]:
    """Facts of the environment that ranks will run in.

    Args:
        programs: names of programs to look for.
        write: keep a new answer (a dry run must not).
        cache: where answers are kept.

    Returns:
        torch (version), cuda (version or None), cuda_devices (names), backends (names),
        cores (physical, within the affinity of this process), rpc (whether torch has
        it), horovod (its backends), packages (versions), programs (whether they are
        there).

    Raises:
        ValueError: torch cannot be imported; the message says what it said.
    """
    # Facts that may change with each start and take no time to find.
    now = {"cores": len(physical_cores()), "programs": find_programs(programs)}
    mark = _fingerprint()
    try:
        kept = json.loads(cache.read_text())
    except (OSError, ValueError):
        kept = {}
    if kept.get("fingerprint") == mark:
        return {**kept["facts"], **now}
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONNOUSERSITE": "1"}
    probe = [sys.executable, "-m", "rankbench.rank.facts.host"]
    done = run_to_end(probe, env=environment)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ValueError(
            f"torch does not work in {sys.executable}: {said} "
            "(install it with `pip install 'rankbench[rank]'`, in a checkout with "
            "`pip install -r requirements-torch.txt`)"
        )
    facts = json.loads(done.stdout)
    if write:
        try:
            write_json(cache, {"fingerprint": mark, "facts": facts})
        except OSError:
            pass  # The environment is read-only: probe again next time.
    return {**facts, **now}


def count_gpus() -> int:
    """NVIDIA GPUs that CUDA will show, without asking torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(visible_gpus(visible, len(glob.glob("/dev/nvidia[0-9]*"))))


def find_programs(names: Sequence[str]) -> dict[str, bool]:
    """Whether each program is there: beside this Python, or on PATH."""
    beside = Path(sys.executable).parent
    return {
        name: (beside / name).exists() or shutil.which(name) is not None
        for name in names
    }


def _fingerprint() -> str:
    parts: list[Any] = [
        sys.executable,
        PACKAGES,
        sorted(glob.glob("/dev/nvidia[0-9]*")),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
    ]
    for package, file in _LOOKED_AT.items():
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            path = Path(found.origin).with_name(file)
            parts += [str(path), path.stat().st_mtime_ns]
    parts.append((SOURCE / "rankbench/rank/facts/host.py").read_text())
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


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
    asked = ("--format=csv,noheader", f"--query-gpu={wanted}")
    return (output_of("nvidia-smi", *asked) or "").splitlines()


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


if __name__ == "__main__":
    print(json.dumps(probe_machine(), indent=1))
