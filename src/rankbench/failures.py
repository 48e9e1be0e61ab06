"""Notes that an image or a data set was made, or why not; why a job was refused.

The job that makes it writes the note into the result directory, and succeeds in any
case, so that other cells are measured. The job of a cell, and the table, read there why
it cannot be measured. Standard library only, because the rank-side job that prepares
data imports this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankbench.record import Layout, first_line, read_versioned, write_json

# Variable with the path of the plan, set by the main process for all jobs.
PLAN_VARIABLE = "RANKBENCH_PLAN"

IMAGE, DATA, JOB = "image", "data", "job"

_VERSION = 1
_NAME = re.compile(r"[^/\0]+")
_SAID = {
    IMAGE: "image {} could not be built: ",
    DATA: "data {} could not be prepared: ",
    JOB: "",
}


@dataclass(frozen=True, slots=True)
class Need:
    """An image or a data set that cells wait for, or a cell's job.

    Attributes:
        kind: `IMAGE`, `DATA` or `JOB`.
        name: name and flavour of the image, name of the data set, or id of the cell.
    """

    kind: str
    name: str

    def file(self, layout: Layout) -> Path:
        """The path of the note about it; there is none if it need not be made."""
        return layout.need(f"{self.kind}.{self.name}")


def find_needs(cells: Iterable[Sequence[str | None]]) -> list[Need]:
    """The images and data sets that these cells need, each once.

    Args:
        cells: image (None for none) and data set of each cell; its id, if its job must
            be submitted.
    """
    names = [zip((IMAGE, DATA, JOB), cell, strict=False) for cell in cells]
    found = {Need(kind, name): None for cell in names for kind, name in cell if name}
    return list(found)


def note_attempt(wanted: Need, reason: str | None, log: str | Path) -> bool:
    """Note that an image or a data set was made, or why it could not be.

    Returns:
        Whether this process is a job of a run, so that the note was written.
    """
    if (plan := os.environ.get(PLAN_VARIABLE)) is None:
        return False
    value = {
        "schema": _VERSION,
        "kind": wanted.kind,
        "name": wanted.name,
        "reason": reason and first_line(" ".join(reason.split())),
        "log": str(log),
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
    cells = [(c["image"], c["cell"]["data"], c["id"]) for c in plan["cells"]]
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
            said = f"{_SAID[need.kind].format(need.name)}{reason}"
            yield path, f"{said}; log: {log}" if log else said
