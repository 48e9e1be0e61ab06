"""about.json: a summary of the machines, software, code and images of a bundle."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Collection, Iterable
from typing import Any

from rankbench import __version__
from rankbench.record import Layout, Record, write_json
from rankbench.results.sections import METHOD

ABOUT = "about.json"
MADE_WITH = "made_with"

_LIBRARIES = (
    *("numpy", "scipy", "pandas", "jinja2", "tabulate", "matplotlib", "seaborn"),
)
# This value differs from launch to launch.
_LOAD = "load_1min"


def write_about(
    layout: Layout, plan: Record, records: Collection[Record], *, anonymised: bool
) -> None:
    """Write about.json into a bundle, with the versions that made the tables."""
    about = describe(plan, records) | {"anonymised": anonymised}
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    maker = {
        "rankbench": __version__,
        "method": METHOD,
        "python": platform.python_version(),
        **versions,
    }
    write_json(layout.root / ABOUT, about | {MADE_WITH: maker})


def describe(plan: Record, records: Collection[Record]) -> dict[str, Any]:
    """The facts in plan and records, each one once."""
    hosts = [host for record in records for host in record.get("hosts") or ()]
    return {
        "experiment": plan["experiment"]["name"],
        "site": plan.get("site"),
        "hosts": _distinct({k: v for k, v in h.items() if k != _LOAD} for h in hosts),
        "software": _distinct(record.get("software") for record in records),
        "code": _distinct(record.get("code") for record in records),
        "images": _distinct(record.get("image") for record in records),
    }


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in order of appearance, without None."""
    found = {json.dumps(v, sort_keys=True): v for v in values if v is not None}
    return list(found.values())
