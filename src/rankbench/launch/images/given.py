"""An image that a site gives, by path or digest, instead of one that is built."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A tag can be moved to other bytes: a digest cannot.
_PINNED = re.compile(r"(docker|oras)://\S+@sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Given:
    """An image that the site has instead of one that is built.

    Attributes:
        file: a SIF file that is used where it lies; None for a `source`.
        source: a URI with a digest that it is pulled from; None for a `file`.
        sha256: of the SIF file; None where only the digest of the source is known.
        promise: what it promises otherwise than the entry in images.yaml.
    """

    file: str | None
    source: str | None
    sha256: str | None
    promise: dict[str, Any]


def parse_given(name: str, raw: Mapping[str, Any]) -> Given:
    """What the site file says of one image.

    Raises:
        ValueError: it does not say which bytes it means.
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
            f"{key}: source: {source!r} names no digest, and what a tag means changes: "
            "give docker://NAME@sha256:DIGEST or oras://NAME@sha256:DIGEST"
        )
    return Given(None, source, sha256, promise)
