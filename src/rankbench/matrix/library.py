"""Models of libraries, called LIBRARY/NAME: planning knows no more than the library."""

from __future__ import annotations

import re
from typing import Any

from rankbench.matrix.catalog import MODEL_DEFAULTS

# Library -> what holds for all of its models. Many models of images normalise over the
# batch, and only building one would tell.
LIBRARIES: dict[str, dict[str, Any]] = {
    "torchvision": {"channels": [3], "batch_statistics": True},
    "timm": {"batch_statistics": True},
    "transformers": {"inputs": "tokens"},
}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


def is_of_library(entry: Any) -> bool:
    """Whether an entry of an experiment names a model of a library."""
    return isinstance(entry, str) and entry.partition("/")[0] in LIBRARIES


def describe_library_model(entry: str) -> dict[str, Any]:
    """What the catalog says of a model of a library.

    Raises:
        ValueError: the name cannot be one.
    """
    library, _, name = entry.partition("/")
    if not _NAME.fullmatch(name):
        raise ValueError(f"model: {entry!r}: expected {library}/NAME")
    return {
        **MODEL_DEFAULTS,
        **LIBRARIES[library],
        "sequential": False,
        "packages": [library],
        "options": {},
        "open": True,
    }
