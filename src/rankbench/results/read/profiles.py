"""Profiles of cells: the operators that took longest, and where the traces are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankbench.record import PROFILE, Layout, Record
from rankbench.results.read.launches import Launch, read_launches
from rankbench.results.read.rows import Row

# Operators of a rank that documents show. The CSV has all that the record has.
TOP = 10

Number = float | None


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator with its own time, per step."""

    name: str
    calls: float
    cpu_ms: float
    device_ms: float
    share: Number


@dataclass(frozen=True, slots=True)
class RankProfile:
    """The profile of one rank.

    Attributes:
        trace: its file, relative to the result directory.
        operators: the longest first.
        spans: phases and communication: kind, name, start_ms, ms.
    """

    rank: int
    steps: int
    trace: str
    operators: Sequence[Operator]
    spans: Sequence[Record]


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a cell, by rank."""

    cell: str
    ranks: Sequence[RankProfile]

    @property
    def plot(self) -> str:
        return f"profile-{self.cell}"


def load_profiles(layout: Layout, rows: Sequence[Row]) -> list[Profile]:
    """The profiles of rows that are ok.

    Raises:
        ValueError: a record is damaged; the message names it.
    """
    found = []
    for row in rows:
        if row.status != "ok" or row.attempt is None:
            continue
        place = layout.attempt(row.id, row.attempt) / PROFILE
        for launch in read_launches(place, measured=False):
            if launch.record["status"] == "ok" and launch.record.get("profile"):
                found.append(_read(row.id, launch, layout.root))
                break
    return found


def _read(cell: str, launch: Launch, root: Path) -> Profile:
    place = launch.directory.relative_to(root)
    ranks = [
        RankProfile(
            rank=rank["rank"],
            steps=rank["steps"],
            trace=f"{place}/trace{rank['rank']}.json.gz",
            operators=_per_step(rank),
            spans=rank["spans"],
        )
        for rank in launch.record["profile"]
    ]
    return Profile(cell, ranks)


def _per_step(rank: Record) -> list[Operator]:
    steps, operators = rank["steps"], rank["operators"]
    phases = [span["ms"] for span in rank["spans"] if span["kind"] == "phase"]
    on_device = any(one["device_ms"] for one in operators)
    found = []
    for one in operators:
        spent = one["device_ms"] if on_device else one["cpu_ms"]
        found.append(
            Operator(
                name=one["name"],
                calls=one["calls"] / steps,
                cpu_ms=one["cpu_ms"] / steps,
                device_ms=one["device_ms"] / steps,
                share=spent / sum(phases) if sum(phases) else None,
            )
        )
    return found
