"""Versions of every section: how its numbers are computed, and how they are shown.

A bundle lists the versions that it was made with, so that a later rankbench knows which
of its tables and plots it can derive again (`rankbench.results.bundle.verify`).

Raise `numbers` when a CSV of the same records would change: another method, another
column, another wording. Raise `presentation` when only Markdown, HTML, LaTeX or a
picture would. A new section begins with 1 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Versions of one section.

    Attributes:
        numbers: of the method that gives its CSV.
        presentation: of its other files.
        still: earlier methods that this code can still follow.
        kept: earlier method -> columns that mean the same today and have the same rows
            in the same order; they are compared although the method has changed.
    """

    numbers: int = 1
    presentation: int = 1
    still: Sequence[int] = ()
    kept: Mapping[int, Sequence[str]] = field(default_factory=dict)


# By the name of their files, without the suffix. `utilisation` stands in table.md and
# table.html, and has no file of its own. `plots/profile` is plots/profile-CELL for each
# cell with a profile.
SECTIONS: Mapping[str, Versions] = {
    # 2: other words for what is not measured.
    "table": Versions(numbers=2, still=(1,)),
    "bounds": Versions(),
    "collectives": Versions(),
    "ddp-timers": Versions(),
    "environment": Versions(),
    "epochs": Versions(),
    "loading": Versions(),
    "models": Versions(),
    "pipeline": Versions(),
    "profiles": Versions(),
    "published": Versions(numbers=2, still=(1,)),
    "reports": Versions(),
    "utilisation": Versions(),
    "variance": Versions(),
    "plots/bandwidth": Versions(),
    "plots/curves": Versions(),
    "plots/efficiency": Versions(),
    "plots/memory": Versions(),
    "plots/microbatches": Versions(),
    "plots/models": Versions(),
    "plots/phases": Versions(),
    "plots/profile": Versions(),
    "plots/scaling": Versions(),
    "plots/steps": Versions(),
    "plots/time": Versions(),
}

# Sections of a bundle that lists none: rankbench 0.1 of 2026-11. All are version 1.
# This list never changes, whatever becomes of the sections.
UNLISTED = (
    "table",
    "bounds",
    "collectives",
    "ddp-timers",
    "environment",
    "epochs",
    "loading",
    "models",
    "pipeline",
    "profiles",
    "published",
    "reports",
    "utilisation",
    "variance",
    "plots/bandwidth",
    "plots/curves",
    "plots/efficiency",
    "plots/memory",
    "plots/microbatches",
    "plots/models",
    "plots/phases",
    "plots/profile",
    "plots/scaling",
    "plots/steps",
    "plots/time",
)
