"""Whether a file is the image that it should be, and what is in it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from socket import gethostname
from typing import Any

from rankbench.launch.images import apptainer
from rankbench.launch.images.store import TEST, Image, Sidecar, hash_file
from rankbench.launch.images.work import Work
from rankbench.launch.process.environment import SOURCE
from rankbench.record import read_json, write_json

# Every image has one.
_INSIDE = "/mnt"


def check_sif(image: Image) -> Sidecar:
    """Read the whole file and compare it with its sidecar.

    Returns:
        The sidecar.

    Raises:
        ValueError: as `read_image` and `check_file`.
    """
    check_file(read_image(image.describe()))
    known: Sidecar = read_json(image.sidecar)
    return known


def read_image(planned: Mapping[str, Any]) -> dict[str, Any]:
    """What the sidecar says that the file of an image is.

    Args:
        planned: what `Image.describe` says; a job has it from the plan.

    Returns:
        name, file, sidecar, recipe and sha256 of the image.

    Raises:
        ValueError: the sidecar is missing, or of another definition; says what to do.
    """
    name, sidecar = planned["name"], Path(planned["sidecar"])
    known = read_json(sidecar) if sidecar.exists() else {}
    if known.get("recipe") != planned["recipe"]:
        raise ValueError(
            f"image {name}: on the host {gethostname()} {sidecar} is missing or of "
            "another definition, so nothing says what the file should be: "
            "`rankbench images` makes it, in a folder that all hosts must see "
            "(image_dir in site.yaml)"
        )
    wanted = {key: planned[key] for key in ("name", "file", "sidecar", "recipe")}
    return {**wanted, "sha256": known["sha256"]}


def check_file(image: Mapping[str, Any]) -> None:
    """Read the whole file of an image: some seconds for each GiB.

    Args:
        image: from `read_image`.

    Raises:
        ValueError: it is missing, or not what its sidecar says; says what to do.
    """
    name, file, sidecar = (image[key] for key in ("name", "file", "sidecar"))
    if not Path(file).exists():
        raise ValueError(
            f"image {name}: on the host {gethostname()} {file} is missing: "
            "`rankbench images` makes it, in a folder that all hosts must see "
            "(image_dir in site.yaml)"
        )
    found = hash_file(Path(file))
    if found != image["sha256"]:
        raise ValueError(
            f"image {name}: {file} is not the file that was verified: its SHA-256 is "
            f"{found[:12]}..., {sidecar} says {image['sha256'][:12]}...: put the right "
            f"file back, or remove {sidecar} and `rankbench images` makes it anew"
        )


def prove(image: Image, sif: Path, work: Work) -> dict[str, Any]:
    """Hold an image to what it promises; returns what was found in it.

    Raises:
        ValueError: a promise is not kept.
    """
    gpu = ("--nv",) if _has_gpu(image) else ()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, TEST).write_bytes((image.containers / TEST).read_bytes())
        write_json(Path(folder, "image.json"), image.promise)
        test = ["python3", f"{_INSIDE}/{TEST}", "--image-json", f"{_INSIDE}/image.json"]
        binds = [f"{folder}:{_INSIDE}:ro"]
        options = [*apptainer.APART, *gpu]
        work.follow(apptainer.execute(sif, test, binds=binds, options=options))
    return ask_facts(image, sif)


def ask_facts(image: Image, sif: Path) -> dict[str, Any]:
    """What planning must know of an image, found by the project's own code in it.

    Raises:
        ValueError: it differs from what the image promises.
    """
    probe = ["python3", "-m", "rankbench.rank.facts.probe", *image.promise["programs"]]
    options = [*apptainer.APART, "--env", f"PYTHONPATH={_INSIDE}"]
    said = _ask(sif, probe, binds=[f"{SOURCE}:{_INSIDE}:ro"], options=options)
    facts: dict[str, Any] = json.loads(said.splitlines()[-1])
    # Of this machine, not of the image.
    for key in ("cores", "cuda_devices"):
        facts.pop(key, None)
    broken = [
        f"{key}: promised {image.promise[key]}, found {facts[key]}"
        for key, kept in _kept(image.promise, facts).items()
        if not kept
    ]
    if broken:
        raise ValueError(f"it is not as images.yaml promises: {'; '.join(broken)}")
    return facts


def list_packages(sif: Path) -> dict[str, dict[str, str]]:
    """Packages and their versions: of Debian, and of the Python of the ranks."""
    dpkg = _ask(sif, ["sh", "-c", _LIST_DPKG])
    return {
        "dpkg": dict(line.split() for line in dpkg.splitlines()),
        "pip": json.loads(_ask(sif, ["python3", "-c", _LIST_PYTHON])),
    }


# An image that is given may be of another distribution.
_LIST_DPKG = r"""
! command -v dpkg-query >/dev/null || dpkg-query -W -f '${Package} ${Version}\n'
"""

# What `pip list` lists, also where there is no pip.
_LIST_PYTHON = """
import importlib.metadata, json
found = importlib.metadata.distributions()
print(json.dumps({one.metadata["Name"]: one.version for one in found}))
"""


def _ask(sif: Path, command: list[str], **settings: Any) -> str:
    """What a command in the image prints."""
    said: list[str] = []
    try:
        said.extend(apptainer.execute(sif, command, stream="stdout", **settings))
    except subprocess.CalledProcessError:
        shown = " ".join(command)
        raise ValueError(f"`{shown}` fails in the image: see above") from None
    return "".join(said)


def _kept(promise: dict[str, Any], facts: dict[str, Any]) -> dict[str, bool]:
    """For each promise that the facts speak of, whether it is kept."""
    return {
        "torch": facts["torch"].partition("+")[0] == promise["torch"],
        "backends": set(promise["backends"]) <= set(facts["backends"]),
        "rpc": facts["rpc"] or not promise["rpc"],
        "horovod": set(promise["horovod"]) <= set(facts["horovod"]),
        "programs": all(facts["programs"].values()),
    }


def _has_gpu(image: Image) -> bool:
    return image.flavour == "cuda" and os.path.exists("/dev/nvidiactl")
