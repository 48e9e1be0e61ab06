"""Images: what each is made from, which file it is, and what is known of it.

    containers/images.yaml            what each image promises
    IMAGE_DIR/NAME.sif                the image, if it is built or pulled here
    IMAGE_DIR/NAME.json               its sidecar: digest, recipe, packages, facts
    IMAGE_DIR/.recipes/NAME.json      what is wanted; a newer one rebuilds the image

NAME is that of the entry and its flavour: ``mpi-cpu``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from rankbench.launch.images.given import Given, parse_given
from rankbench.record import read_json, write_json

SIDECAR_VERSION = 1

# Proves inside an image what it promises, one that is given as well.
TEST = "check_image.py"

# Of the requirements the file that every image takes, with what has no wheels.
SOURCES = "sources.txt"

Sidecar = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Image:
    """One image of this site.

    Attributes:
        name: of the entry in images.yaml, and the flavour: ``mpi-cpu``.
        flavour: ``cpu`` or ``cuda``.
        promise: its entry in images.yaml, with name and flavour.
        containers: folder of the definitions.
        inputs: what it is made from: file below `containers` -> SHA-256.
        recipe: SHA-256 over all that should make a new image if it changes. Not where
            packages are fetched from: mirrors hold the same.
        file: the SIF file.
        sidecar: what is known of that file.
        request: the file whose change rebuilds it.
        given: set if it is taken instead of built.
    """

    name: str
    flavour: str
    promise: dict[str, Any]
    containers: Path
    inputs: dict[str, str]
    recipe: str
    file: Path
    sidecar: Path
    request: Path
    given: Given | None

    @property
    def definition(self) -> Path | None:
        """What it is built from; None if it is given."""
        return None if self.given else self.containers / self.promise["definition"]

    def describe(self) -> dict[str, Any]:
        """For the plan; sha256 is None while it is not there as it is wanted."""
        known = read_sidecar(self)
        return {
            "name": self.name,
            "file": str(self.file),
            "sidecar": str(self.sidecar),
            "request": str(self.request),
            "recipe": self.recipe,
            "sha256": None if known is None else known["sha256"],
        }

    def facts(self) -> dict[str, Any]:
        """What was found in it, or what it promises while it is not there."""
        known = read_sidecar(self)
        if known is not None:
            return dict(known["facts"])
        promised = {
            key: self.promise[key] for key in ("torch", "backends", "rpc", "horovod")
        }
        return {
            **promised,
            "cuda": self.flavour == "cuda",
            "packages": dict.fromkeys(self.promise["packages"], True),
            "programs": dict.fromkeys(self.promise["programs"], True),
        }


def load_images(
    containers: Path, image_dir: Path, given: Mapping[str, Any]
) -> dict[str, Image]:
    """Every image that can be had here.

    Args:
        containers: folder with `images.yaml`.
        image_dir: where images are kept.
        given: `images` of the site file: name -> ``{file, sha256}`` or
            ``{source, sha256}``, either with what it promises otherwise (`promise`).

    Raises:
        ValueError: a definition, an input or what is given is not as it must be.
    """
    entries: dict[str, Any] = yaml.safe_load((containers / "images.yaml").read_text())
    wanted = {
        f"{name}-{flavour}": (name, flavour)
        for name, entry in entries.items()
        for flavour in entry["flavours"]
    }
    for name in given:
        kind, _, flavour = name.rpartition("-")
        if kind not in entries or flavour not in ("cpu", "cuda"):
            known = ", ".join(f"{kind}-cpu, {kind}-cuda" for kind in entries)
            raise ValueError(f"site key images: {name}: no such image (known: {known})")
        wanted[name] = (kind, flavour)
    return {
        name: _load_image(
            name, flavour, entries[kind], containers, image_dir, given.get(name)
        )
        for name, (kind, flavour) in sorted(wanted.items())
    }


def read_sidecar(image: Image) -> Sidecar | None:
    """What is known of an image; None if it is not there, or is of another recipe.

    Raises:
        ValueError: the sidecar is damaged.
    """
    if not image.sidecar.exists():
        return None
    known: Sidecar = read_json(image.sidecar)
    return known if known.get("recipe") == image.recipe else None


def reason_to_make(image: Image) -> str | None:
    """Why an image has to be built or pulled; None if it is there as it is wanted."""
    if not image.sidecar.exists():
        return "there is none yet"
    known: Sidecar = read_json(image.sidecar)
    if known.get("recipe") != image.recipe:
        before = known.get("inputs", {})
        changed = sorted(
            name
            for name in before.keys() | image.inputs.keys()
            if before.get(name) != image.inputs.get(name)
        )
        return f"changed: {', '.join(changed) or 'what it promises, or where from'}"
    if not image.file.exists():
        return f"{image.file} is gone"
    return None


def request_image(image: Image) -> bool:
    """Say which image is wanted, if it is to be made; returns whether that was said.

    A request is new exactly if there is something to make: times of files that a
    checkout touches rebuild nothing, and a folder of images that others keep need not
    be one to write in.
    """
    if reason_to_make(image) is None:
        return False
    wanted = {
        "name": image.name,
        "recipe": image.recipe,
        "inputs": image.inputs,
        "given": None if image.given is None else asdict(image.given),
    }
    # Also if it stands there already, and with another content: after a build that
    # failed Snakemake puts the sidecar back as if it were new, and takes a request that
    # reads as before for done.
    write_json(image.request, {**wanted, "asked": datetime.now(UTC).isoformat()})
    return True


def read_given(image_dir: Path) -> dict[str, Any]:
    """What the site gives, as the requests have it: a job reads no site file."""
    requests = sorted((image_dir / ".recipes").glob("*.json"))
    found = {path.stem: read_json(path)["given"] for path in requests}
    return {name: given for name, given in found.items() if given is not None}


def requirements_of(promise: Mapping[str, Any]) -> list[str]:
    """Files below the definitions that name what is fetched for an image."""
    own = promise["requirements"][promise["flavour"]]
    return [f"requirements/{file}" for file in (*own, SOURCES)]


def hash_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load_image(
    name: str,
    flavour: str,
    entry: Mapping[str, Any],
    containers: Path,
    image_dir: Path,
    raw: Mapping[str, Any] | None,
) -> Image:
    given = None if raw is None else parse_given(name, raw)
    changes = {} if given is None else given.promise
    promise = {**entry, **changes, "name": name, "flavour": flavour}
    promise.pop("serves", None)
    files = [TEST]
    if given is None:
        files = [entry["definition"], *entry["inputs"]]
        files += requirements_of(promise)
    inputs = {file: _hash_input(containers / file, name) for file in sorted(files)}
    origin = None if given is None else [given.source, given.sha256]
    # Which cells run in it says nothing of what it is.
    made_of = json.dumps([promise, inputs, origin], sort_keys=True)
    own = image_dir / f"{name}.sif"
    return Image(
        name=name,
        flavour=flavour,
        promise=promise,
        containers=containers,
        inputs=inputs,
        recipe=hashlib.sha256(made_of.encode()).hexdigest(),
        file=Path(given.file) if given and given.file else own,
        sidecar=own.with_suffix(".json"),
        request=image_dir / ".recipes" / f"{name}.json",
        given=given,
    )


def _hash_input(path: Path, name: str) -> str:
    try:
        return hash_file(path)
    except OSError as error:
        raise ValueError(
            f"{path.parent / 'images.yaml'}: {name} names {path.name}, which cannot be "
            f"read: {error.strerror}"
        ) from error
