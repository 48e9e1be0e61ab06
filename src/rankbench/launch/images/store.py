"""Images: the inputs, the file and the sidecar of each.

    containers/images.yaml            promises of each image
    IMAGE_DIR/NAME.sif                the image, if it is built or pulled here
    IMAGE_DIR/NAME.json               its sidecar: SHA-256, recipe, packages, facts
    IMAGE_DIR/NAME.given.json, .sif   likewise, of an image that the site provides
    IMAGE_DIR/.recipes/NAME.json      request; a newer one rebuilds the image

NAME is the name of the entry and the flavour: ``mpi-cpu``.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from rankbench.own_files import hash_file
from rankbench.record import read_json, write_json

SIDECAR_VERSION = 1

# Runs inside an image, also a given one, and tests its promises.
TEST = "check_image.py"

# Requirements file of all images: packages without wheels.
SOURCES = "sources.txt"

# What flock answers on file systems without locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

Sidecar = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GivenImage:
    """An image that the site provides instead of building it.

    Attributes:
        file: path of a SIF file, which is used in place; None if `source` is set.
        source: URI with a digest, to pull the image from; None if `file` is set.
        sha256: SHA-256 of the SIF file; None if only the source's digest is known.
        promise: keys that differ from the image's entry in images.yaml.
    """

    file: str | None = None
    source: str | None = None
    sha256: str | None = None
    promise: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Image:
    """One image of this site.

    Attributes:
        name: name of the entry in images.yaml, and the flavour: ``mpi-cpu``.
        flavour: ``cpu`` or ``cuda``.
        promise: its entry in images.yaml, with name and flavour.
        containers: folder of the definitions.
        inputs: file below `containers` that it is made from -> SHA-256.
        recipe: SHA-256 over everything whose change requires a new image. Mirrors are
            not part of it: all hold the same packages.
        file: the SIF file.
        sidecar: JSON file with facts about the SIF file.
        request: JSON file whose change rebuilds the image.
        given: the image that the site provides; None if it is built.
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
    given: GivenImage | None

    @property
    def definition(self) -> Path | None:
        """The definition to build it from; None if the site provides the image."""
        return None if self.given else self.containers / self.promise["definition"]

    def describe(self) -> dict[str, Any]:
        """Return facts for the plan; sha256 is None if the image must be made."""
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
        """Return facts found in the image, or its promises if it must be made."""
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
    """Return all images that this site can have, by name and flavour.

    Args:
        containers: folder with `images.yaml`.
        image_dir: folder of the images.
        given: `images` of the site file: name -> ``{file, sha256}`` or
            ``{source, sha256}``, either with changed promises (`promise`).

    Raises:
        ValueError: a definition, an input or a given image is invalid.
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
    images = {}
    for name, (kind, flavour) in sorted(wanted.items()):
        # The schema of the site file has checked the entry, except for this.
        entry, own = entries[kind], GivenImage(**given[name]) if name in given else None
        if own and own.file and own.sha256 is None:
            raise ValueError(
                f"site key images: {name}: sha256 is missing: `sha256sum {own.file}` "
                "prints it"
            )
        changes = own.promise if own else {}
        promise = {**entry, **changes, "name": name, "flavour": flavour}
        # The cells that run in the image are no part of its recipe.
        promise.pop("serves", None)
        files = [TEST]
        if own is None:
            files = [entry["definition"], *entry["inputs"], *requirements_of(promise)]
        try:
            inputs = {file: hash_file(containers / file) for file in sorted(files)}
        except OSError as error:
            raise ValueError(
                f"{containers / 'images.yaml'}: {name} names "
                f"{Path(error.filename).name}, which cannot be read: {error.strerror}"
            ) from error
        origin = [own.source, own.sha256] if own else None
        made_of = json.dumps([promise, inputs, origin], sort_keys=True)
        # Beside the built one, which is used again when the site's is taken away.
        file = image_dir / f"{name}{'.given' if own else ''}.sif"
        images[name] = Image(
            name=name,
            flavour=flavour,
            promise=promise,
            containers=containers,
            inputs=inputs,
            recipe=hashlib.sha256(made_of.encode()).hexdigest(),
            file=Path(own.file) if own and own.file else file,
            sidecar=file.with_suffix(".json"),
            request=image_dir / ".recipes" / f"{name}.json",
            given=own,
        )
    return images


def choose_images(
    images: Mapping[str, Image], names: Sequence[str]
) -> dict[str, Image]:
    """Return the images with these names.

    Raises:
        ValueError: there is no such image.
    """
    for name in names:
        if name not in images:
            raise ValueError(f"{name}: no such image (known: {', '.join(images)})")
    return {name: images[name] for name in names}


def read_sidecar(image: Image) -> Sidecar | None:
    """Return the sidecar of an image; None if it is missing or of another recipe.

    Raises:
        ValueError: the sidecar is damaged.
    """
    if not image.sidecar.exists():
        return None
    known: Sidecar = read_json(image.sidecar)
    return known if known.get("recipe") == image.recipe else None


def reason_to_make(image: Image) -> str | None:
    """Return why an image must be built or pulled; None if it is up to date."""
    if not image.sidecar.exists():
        return "not made yet"
    known: Sidecar = read_json(image.sidecar)
    if known.get("recipe") != image.recipe:
        before = known.get("inputs", {})
        changed = sorted(
            name
            for name in before.keys() | image.inputs.keys()
            if before.get(name) != image.inputs.get(name)
        )
        return f"changed: {', '.join(changed) or 'its promises, or its source'}"
    if not image.file.exists():
        return f"{image.file} is gone"
    return None


def explain_folder(error: OSError, file: Path) -> str:
    """Return why a file of the folder of images cannot be written, with a remedy."""
    if error.errno in NO_LOCKS:
        why, remedy = "its file system has no locks (flock)", "mount it with locks, or "
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why = "you may not write there"
        remedy = "let its owner run `rankbench images`, or "
    else:
        why, remedy = error.strerror or str(error), ""
    return (
        f"{error.filename or file}: {why}: {remedy}name a folder of your own "
        "(image_dir in site.yaml)"
    )


def request_image(image: Image) -> bool:
    """Write the request for an image if it must be made; return whether it was written.

    Only a new request rebuilds an image. So new file times after a checkout rebuild
    nothing, and a shared folder of finished images can be read-only.

    Raises:
        ValueError: the request cannot be written; says which file, and what to do.
    """
    given = None if image.given is None else asdict(image.given)
    reason = reason_to_make(image)
    # Jobs read from the request which image is given.
    known = read_json(image.request) if image.request.exists() else {"given": given}
    if reason is None and known["given"] == given:
        return False
    wanted = {
        "name": image.name,
        "recipe": image.recipe,
        "inputs": image.inputs,
        "given": given,
    }
    # Written even if a request exists, and with a new time in it: after a failed build,
    # Snakemake restores the old sidecar with a new time, and would take a request with
    # the same content as fulfilled.
    asked = {**wanted, "asked": datetime.now(UTC).isoformat()}
    try:
        write_json(image.request, asked)
    except OSError as error:
        why = f"image {image.name} ({reason or 'now another one is given'})"
        raise ValueError(f"{why}: {explain_folder(error, image.request)}") from error
    return True


def read_given(image_dir: Path) -> dict[str, Any]:
    """Return the given images, read from the requests: jobs read no site file."""
    requests = sorted((image_dir / ".recipes").glob("*.json"))
    found = {path.stem: read_json(path)["given"] for path in requests}
    return {name: given for name, given in found.items() if given is not None}


def requirements_of(promise: Mapping[str, Any]) -> list[str]:
    """Return the requirements files of an image, relative to `containers`."""
    own = promise["requirements"][promise["flavour"]]
    return [f"requirements/{file}" for file in (*own, SOURCES)]
