"""Records why an image could not be built or a data set could not be prepared.

The failing job writes a file into the result directory; the next success and the next
run remove it. So the table, which is made from the result directory, can say why a cell
was not measured. Standard library only, because the rank-side job that prepares data
imports this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankbench.record import Layout, first_line, read_json, write_json

# Variable with the path of the plan, set by the main process for all jobs.
PLAN_VARIABLE = "RANKBENCH_PLAN"

IMAGE, DATA = "image", "data"

_VERSION = 1
_NAME = re.compile(r"[\w.-]+")
_SAID = {IMAGE: "image {} could not be built", DATA: "data {} could not be prepared"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """An image or a data set that cells wait for.

    Attributes:
        kind: `IMAGE` or `DATA`.
        name: name and flavour of the image, or name of the data set.
    """

    kind: str
    name: str

    def file(self, layout: Layout) -> Path:
        """The path of the file about its failure; it exists only after a failure."""
        return layout.root / "failures" / f"{self.kind}.{self.name}.json"


def find_wanted(cells: Iterable[tuple[str | None, str]]) -> list[Wanted]:
    """The images and data sets that these cells need, each once.

    Args:
        cells: image (None for none) and data set of each cell.
    """
    found: dict[Wanted, None] = {}
    for image, data in cells:
        if image is not None:
            found[Wanted(IMAGE, image)] = None
        found[Wanted(DATA, data)] = None
    return list(found)


def note_failure(
    wanted: Wanted,
    reason: str,
    log: str | os.PathLike[str],
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Write the file about a failure, if this process is a job of a run."""
    layout = _find_run(environ)
    if layout is not None:
        value = {
            "schema": _VERSION,
            "kind": wanted.kind,
            "name": wanted.name,
            "reason": first_line(" ".join(reason.split())),
            "log": os.fspath(log),
        }
        write_json(wanted.file(layout), value)


def clear_failure(wanted: Wanted, environ: Mapping[str, str] = os.environ) -> None:
    """Remove the file about a failure, if this process is a job of a run."""
    layout = _find_run(environ)
    if layout is not None:
        wanted.file(layout).unlink(missing_ok=True)


def explain_failures(layout: Layout, wanted: Iterable[Wanted]) -> str | None:
    """The reasons why these images and data sets failed; None if none has failed.

    Raises:
        ValueError: a file about a failure is damaged; the message names it.
    """
    return "; ".join(_read(layout, one) for one in _failed(layout, wanted)) or None


def find_failures(layout: Layout, plan: Mapping[str, Any]) -> list[Path]:
    """The files about failed images and data sets of the plan, sorted."""
    cells = [(cell["image"], cell["cell"]["data"]) for cell in plan["cells"]]
    failed = _failed(layout, find_wanted(cells))
    return sorted(one.file(layout) for one in failed)


def _failed(layout: Layout, wanted: Iterable[Wanted]) -> Iterator[Wanted]:
    """The failed ones; names are checked, because a foreign plan may have any name."""
    for one in wanted:
        if _NAME.fullmatch(one.name) and one.file(layout).is_file():
            yield one


def _find_run(environ: Mapping[str, str]) -> Layout | None:
    plan = environ.get(PLAN_VARIABLE)
    return None if plan is None else Layout(Path(plan).parent)


def _read(layout: Layout, wanted: Wanted) -> str:
    path = wanted.file(layout)
    value = read_json(path)
    version = value.get("schema") if isinstance(value, dict) else None
    if version != _VERSION:
        raise ValueError(
            f"{path} has failure schema {version!r:.20}, this rankbench reads "
            f"{_VERSION}"
        )
    reason, log = value.get("reason"), value.get("log")
    if not isinstance(reason, str) or not isinstance(log, str):
        raise ValueError(f"{path} is damaged: expected the texts reason and log")
    return f"{_SAID[wanted.kind].format(wanted.name)}: {reason}; log: {log}"
