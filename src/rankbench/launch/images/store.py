"""Images: the inputs, the file and the sidecar of each.

    containers/images.yaml            promises of each image
    IMAGE_DIR/NAME.sif                the image, if it is built or pulled here
    IMAGE_DIR/NAME.json               its sidecar: SHA-256, recipe, packages, facts
    IMAGE_DIR/NAME.given.json, .sif   likewise, of an image that a file names
    IMAGE_DIR/.locks/NAME.lock        held by the process that makes the image

NAME is the name of the entry and the flavour: ``mpi-cpu``; or that of a
given image.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rankbench.own_files import hash_file
from rankbench.record import read_json
from rankbench.schema import load_yaml

SIDECAR_VERSION = 1

# Runs inside an image that was built, and tests its promises.
TEST = "check_image.py"

# Requirements file of all images: packages without wheels.
SOURCES = "sources.txt"

# What flock answers on file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

# Keys of a site file that say how and where images are made.
SETTINGS = (
    *("image_dir", "debian_mirror", "debian_archive"),
    *("torch_index", "image_key"),
)

Sidecar = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Image:
    """One image of this site.

    Attributes:
        name: name of the entry in images.yaml, and the flavour: ``mpi-cpu``; or the
            name of a given image.
        flavour: ``cpu`` or ``cuda``; empty if it is given.
        promise: its entry in images.yaml, with name and flavour; empty if it is given.
        containers: folder of the definitions.
        inputs: file below `containers` that it is made from -> SHA-256.
        recipe: SHA-256 over everything whose change requires a new image. Mirrors are
            not part of it: all hold the same packages.
        file: the SIF file.
        sidecar: JSON file with facts about the SIF file.
        snapshot: date of Debian's packages, as its archive of snapshots writes it.
        given: where an image comes from that the site or the experiment names: its
            ``file``, used in place, or a ``source``, a URI with a digest to pull it
            from; and the ``sha256`` that the file must have, if any. None: it is built.
    """

    name: str
    containers: Path
    recipe: str
    file: Path
    sidecar: Path
    flavour: str = ""
    promise: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    snapshot: str | None = None
    given: Mapping[str, str] | None = None

    @property
    def lock(self) -> Path:
        """The file that the process holds that makes the image."""
        return self.sidecar.parent / ".locks" / f"{self.name}.lock"

    @property
    def definition(self) -> Path | None:
        """The definition to build it from; None if the image is given."""
        return None if self.given else self.containers / self.promise["definition"]

    @property
    def state(self) -> list[Any] | None:
        """What differs for another file in the place of a given one; else None."""
        if "file" not in (self.given or {}) or not self.file.exists():
            return None
        found = self.file.stat()
        return [str(self.file), found.st_size, found.st_mtime_ns]

    def describe(self) -> dict[str, Any]:
        """Return facts for the plan; sha256 is None if the image must be made."""
        known = read_sidecar(self)
        return {
            "name": self.name,
            "file": str(self.file),
            "sidecar": str(self.sidecar),
            "recipe": self.recipe,
            "sha256": None if known is None else known["sha256"],
        }

    def facts(self) -> dict[str, Any] | None:
        """Return facts found in the image, or its promises if it must be built.

        None: it is given, and nobody has looked into it yet.
        """
        known = read_sidecar(self)
        if known is not None:
            return dict(known["facts"])
        if self.given:
            return None
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
    containers: Path, image_dir: Path, given: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Image]:
    """Return all images of this site by name: those that can be built, and given ones.

    Args:
        containers: folder with `images.yaml`.
        image_dir: folder of the images.
        given: name -> `Image.given`.

    Raises:
        ValueError: a definition or an input is missing.
    """
    entries = load_yaml(containers / "images.yaml")
    wanted = {
        f"{name}-{flavour}": (entry, flavour)
        for name, entry in entries.items()
        for flavour in entry["flavours"]
    }
    images = {}
    for name, (entry, flavour) in sorted(wanted.items()):
        promise = {**entry, "name": name, "flavour": flavour}
        # Neither the cells that run in the image nor where Debian's packages come from
        # are a part of its recipe.
        apart = {key: promise.pop(key, None) for key in ("serves", "snapshot")}
        files = [TEST, entry["definition"], *entry["inputs"], *requirements_of(promise)]
        try:
            inputs = {file: hash_file(containers / file) for file in sorted(files)}
        except OSError as error:
            raise ValueError(
                f"{containers / 'images.yaml'}: {name} names "
                f"{Path(error.filename).name}, which cannot be read: {error.strerror}"
            ) from error
        images[name] = Image(
            name=name,
            flavour=flavour,
            promise=promise,
            containers=containers,
            inputs=inputs,
            recipe=_hash([promise, inputs, None]),
            snapshot=apart["snapshot"],
            file=image_dir / f"{name}.sif",
            sidecar=image_dir / f"{name}.json",
        )
    for name, entry in given.items():
        file = image_dir / f"{name}.given.sif"
        images[name] = Image(
            name=name,
            containers=containers,
            recipe=_hash([SIDECAR_VERSION, entry.get("source"), entry.get("sha256")]),
            file=Path(entry.get("file", file)),
            sidecar=file.with_suffix(".json"),
            given=entry,
        )
    return images


def _hash(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


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
    if known.get("state") != image.state:
        return f"{image.file} is another file"
    return None


def explain_folder(error: OSError, file: Path, key: str = "image_dir") -> str:
    """Return why a file of a folder cannot be written, with a remedy.

    Args:
        key: of the site file, which names the folder.
    """
    if error.errno in _NO_LOCKS:
        why, remedy = "its file system has no locks (flock)", "mount it with locks, or "
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why = "you may not write there"
        remedy = "let its owner do it, or "
    else:
        why, remedy = error.strerror or str(error), ""
    return (
        f"{error.filename or file}: {why}: {remedy}name a folder of your own "
        f"({key} in site.yaml)"
    )


def check_folder(image: Image) -> None:
    """Refuse an image that must be made in a folder that cannot be written.

    A shared folder of finished images may be read-only.

    Raises:
        ValueError: says which image and file, why, and what to do.
    """
    if (reason := reason_to_make(image)) is None:
        return
    try:
        image.lock.parent.mkdir(parents=True, exist_ok=True)
        image.lock.touch()
    except OSError as error:
        why = explain_folder(error, image.lock)
        raise ValueError(f"image {image.name} ({reason}): {why}") from error


def requirements_of(promise: Mapping[str, Any]) -> list[str]:
    """Return the requirements files of an image, relative to `containers`."""
    own = promise["requirements"][promise["flavour"]]
    return [f"requirements/{file}" for file in (*own, SOURCES)]
