"""Verifies the file of an image, and finds out and lists its contents."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from socket import gethostname
from typing import Any
from urllib.parse import quote

from rankbench.cell import PROGRAMS
from rankbench.launch.images import apptainer
from rankbench.launch.images.apptainer import last_words, run_inside
from rankbench.launch.images.store import Image
from rankbench.launch_spec import SOURCE
from rankbench.own_files import hash_file
from rankbench.record import read_json

# Mount point of files from outside; this folder exists in every image.
_INSIDE = "/mnt"

_MAKE = (
    "`rankbench images` makes it, in a folder that all hosts must see (image_dir in "
    "site.yaml)"
)


def read_image(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the expected file of an image and its SHA-256, from its sidecar.

    Args:
        planned: the result of `Image.describe`; a job reads it from the plan.

    Returns:
        name, file, sidecar, recipe and sha256 of the image.

    Raises:
        ValueError: the sidecar is missing, or belongs to another recipe.
    """
    name, sidecar = planned["name"], Path(planned["sidecar"])
    known = read_json(sidecar) if sidecar.exists() else {}
    if known.get("recipe") != planned["recipe"]:
        raise ValueError(
            f"image {name}: on the host {gethostname()} {sidecar} is missing or of "
            f"another definition: {_MAKE}"
        )
    wanted = {key: planned[key] for key in ("name", "file", "sidecar", "recipe")}
    return {**wanted, "sha256": known["sha256"]}


def check_file(image: Mapping[str, Any]) -> None:
    """Compare the SHA-256 of an image's file with its sidecar: some seconds per GiB.

    Args:
        image: from `read_image`.

    Raises:
        ValueError: the file is missing or has another SHA-256; says what to do.
    """
    name, file, sidecar = (image[key] for key in ("name", "file", "sidecar"))
    if not Path(file).exists():
        raise ValueError(
            f"image {name}: on the host {gethostname()} {file} is missing: {_MAKE}"
        )
    found = hash_file(Path(file))
    if found != image["sha256"]:
        raise ValueError(
            f"image {name}: {file} is not the file that was verified: its SHA-256 is "
            f"{found[:12]}..., {sidecar} says {image['sha256'][:12]}...: restore the "
            f"right file, or remove {sidecar} and make the image: `rankbench images`"
        )


def check_signed(image: Mapping[str, Any], signers: Sequence[Path]) -> None:
    """Check that one of these people has signed an image, as it is now.

    Args:
        image: from `read_image`.
        signers: files of public keys; none: nothing is checked.

    Raises:
        ValueError: no key fits, or the image was changed since; says what to do.
    """
    reasons = []
    for key in signers:
        said = apptainer.why_not("verify", "--key", str(key), image["file"])
        if not said:
            return
        reasons.append(f"{key}: {said}")
    if reasons:
        raise ValueError(
            f"image {image['name']}: on the host {gethostname()} {image['file']} has "
            f"no valid signature of the site key image_signers ({'; '.join(reasons)}): "
            "restore the signed file, or make the image again"
        )


def ask_facts(image: Image, sif: Path) -> dict[str, Any]:
    """Return the facts about an image that planning needs, found by a probe inside.

    Raises:
        ValueError: the probe does not run there.
    """
    programs = image.promise.get("programs", PROGRAMS)
    probe = ["python3", "-m", "rankbench.rank.facts.host", *programs]
    options = ["--env", f"PYTHONPATH={_INSIDE}"]
    binds = [f"{SOURCE}:{_INSIDE}:ro"]
    try:
        said = list(run_inside(sif, probe, binds=binds, options=options))
    except ValueError as error:
        raise ValueError(
            f"rankbench cannot look into {sif}: {error} (it must be an image for this "
            "machine's processors, in which python3 is Python 3.11 or newer and "
            "imports torch)"
        ) from None
    # Libraries may print, too.
    found = [line for line in said if line.startswith("{")]
    if not found:
        words = last_words("".join(said))
        raise ValueError(f"the probe in {sif} printed no facts: {words}")
    facts: dict[str, Any] = json.loads(found[-1])
    # These are facts of this machine, not of the image.
    for key in ("cores", "cuda_devices", "cuda_memory_gib", "cuda_capability"):
        facts.pop(key, None)
    return facts


def list_packages(sif: Path) -> dict[str, dict[str, str]]:
    """Return names and versions of Debian's packages and of the ranks' Python."""
    dpkg, pip = (
        "".join(run_inside(sif, command, stream="stdout"))
        for command in (["sh", "-c", _LIST_DPKG], ["python3", "-c", _LIST_PYTHON])
    )
    return {
        "dpkg": dict(line.split() for line in dpkg.splitlines()),
        "pip": json.loads(pip),
    }


def make_bill(sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """The bill of materials of an image, in CycloneDX 1.6, from its sidecar alone."""
    # That of a given image is not known.
    debian = "deb/debian" if sidecar["definition"] else "deb"
    components = [
        {"type": "library", "name": package, "version": version, "purl": purl}
        for kind, found in ((debian, "dpkg"), ("pypi", "pip"))
        for package, version in sorted(sidecar["packages"][found].items())
        for name in [quote(package.lower().replace("_", "-"))]
        for purl in [f"pkg:{kind}/{name}@{quote(version, safe='')}"]
    ]
    version = f"sha256:{sidecar['sha256']}"
    image = {"type": "container", "name": sidecar["name"], "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, version).urn,
        "version": 1,
        "metadata": {"timestamp": sidecar["built"], "component": image},
        "components": components,
    }


# A given image may use another distribution.
_LIST_DPKG = r"""
! command -v dpkg-query >/dev/null || dpkg-query -W -f '${Package} ${Version}\n'
"""

# Lists the same packages as `pip list`, but works without pip.
_LIST_PYTHON = """
import importlib.metadata, json
found = importlib.metadata.distributions()
print(json.dumps({package.metadata["Name"]: package.version for package in found}))
"""
