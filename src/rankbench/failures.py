"""Notes that an image or a data set was made, or why it could not be.

The job that makes it writes the note into the result directory, and succeeds in any
case, so that other cells are measured. The job of a cell, and the table, read there why
it cannot be measured. Standard library only, because the rank-side job that prepares
data imports this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankbench.record import Layout, first_line, read_versioned, write_json

# Variable with the path of the plan, set by the main process for all jobs.
PLAN_VARIABLE = "RANKBENCH_PLAN"

IMAGE, DATA = "image", "data"

_VERSION = 1
_NAME = re.compile(r"[\w.-]+")
_SAID = {IMAGE: "image {} could not be built", DATA: "data {} could not be prepared"}


@dataclass(frozen=True, slots=True)
class Need:
    """An image or a data set that cells wait for.

    Attributes:
        kind: `IMAGE` or `DATA`.
        name: name and flavour of the image, or name of the data set.
    """

    kind: str
    name: str

    def file(self, layout: Layout) -> Path:
        """The path of the note about it; there is none if it need not be made."""
        return layout.need(f"{self.kind}.{self.name}")


def find_needs(cells: Iterable[tuple[str | None, str]]) -> list[Need]:
    """The images and data sets that these cells need, each once.

    Args:
        cells: image (None for none) and data set of each cell.
    """
    found: dict[Need, None] = {}
    for image, data in cells:
        if image is not None:
            found[Need(IMAGE, image)] = None
        found[Need(DATA, data)] = None
    return list(found)


def note_attempt(
    wanted: Need,
    reason: str | None,
    log: str | os.PathLike[str],
    environ: Mapping[str, str] = os.environ,
) -> bool:
    """Note that an image or a data set was made, or why it could not be.

    Returns:
        Whether this process is a job of a run, so that the note was written.
    """
    if (plan := environ.get(PLAN_VARIABLE)) is None:
        return False
    value = {
        "schema": _VERSION,
        "kind": wanted.kind,
        "name": wanted.name,
        "reason": reason and first_line(" ".join(reason.split())),
        "log": os.fspath(log),
    }
    write_json(wanted.file(Layout(Path(plan).parent)), value)
    return True


def explain_failures(layout: Layout, wanted: Iterable[Need]) -> str | None:
    """The reasons why these images and data sets failed; None if none has failed.

    Raises:
        ValueError: a note is damaged; the message names it.
    """
    return "; ".join(said for _, said in _failed(layout, wanted)) or None


def find_failures(layout: Layout, plan: Mapping[str, Any]) -> list[Path]:
    """The notes about failed images and data sets of the plan, sorted."""
    cells = [(cell["image"], cell["cell"]["data"]) for cell in plan["cells"]]
    return sorted(path for path, _ in _failed(layout, find_needs(cells)))


def _failed(layout: Layout, wanted: Iterable[Need]) -> Iterator[tuple[Path, str]]:
    """The note about each failed one, and the failure in words."""
    for need in wanted:
        path = need.file(layout)
        # A foreign plan may have any name.
        if not _NAME.fullmatch(need.name) or not path.is_file():
            continue
        value = read_versioned(path, "failure", _VERSION)
        reason, log = value.get("reason"), value.get("log")
        if not isinstance(reason, str | None) or not isinstance(log, str):
            raise ValueError(f"{path} is damaged: expected the texts reason and log")
        if reason is not None:
            yield path, f"{_SAID[need.kind].format(need.name)}: {reason}; log: {log}"
