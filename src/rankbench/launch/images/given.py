"""Images that a site provides, by path or digest, instead of building them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A tag can be moved to another image, a digest cannot.
_PINNED = re.compile(r"(docker|oras)://\S+@sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Given:
    """An image that the site provides instead of building it.

    Attributes:
        file: path of a SIF file, which is used in place; None if `source` is set.
        source: URI with a digest, to pull the image from; None if `file` is set.
        sha256: SHA-256 of the SIF file; None if only the source's digest is known.
        promise: keys that differ from the image's entry in images.yaml.
    """

    file: str | None
    source: str | None
    sha256: str | None
    promise: dict[str, Any]


def parse_given(name: str, raw: Mapping[str, Any]) -> Given:
    """Return the image that an entry in the site file describes.

    Raises:
        ValueError: the entry does not identify one file by its hash.
    """
    key = f"site key images: {name}"
    promise = dict(raw.get("promise") or {})
    file, source, sha256 = (raw.get(part) for part in ("file", "source", "sha256"))
    if (file is None) == (source is None):
        raise ValueError(f"{key}: give either `file` (a path) or `source` (a URI)")
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise ValueError(f"{key}: sha256: expected 64 digits of 0-9a-f, got {sha256!r}")
    if file is not None:
        if sha256 is None:
            raise ValueError(f"{key}: sha256 is missing: `sha256sum {file}` prints it")
        return Given(file, None, sha256, promise)
    if not _PINNED.fullmatch(str(source)):
        raise ValueError(
            f"{key}: source: {source!r} has no digest, and a tag may change: "
            "give docker://NAME@sha256:DIGEST or oras://NAME@sha256:DIGEST"
        )
    return Given(None, source, sha256, promise)
