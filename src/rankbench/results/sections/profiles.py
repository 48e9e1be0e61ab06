"""What the profiler saw: the operators that took longest, and where the traces are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from rankbench.record import PROFILE, Layout, Record
from rankbench.results.elements.content import Section
from rankbench.results.elements.text import Grid, Text, figures, round_figures
from rankbench.results.read.launches import Launch, read_launches
from rankbench.results.read.rows import Row

TITLE = "Profiles"

ABOUT = (
    "A few steps of each cell under torch.profiler, in a launch of its own: the "
    "profiler slows a step down, so look at shares, not at times. Operators by their "
    "own time, without that of the operators they call; share: of the time of a step, "
    "by the clock of the GPU where there is one. What several threads or streams do "
    "runs at the same time, and a GPU's kernel stands beside the operator that started "
    "it, so that shares may add up to more than 100 %."
)

CAPTION = (
    "{cell}: phases of the profiled steps, and below them the collective operations; "
    "on each rank since the start of its own first step."
)

COLUMNS = ("cell", "rank", "operator", "calls", "cpu_ms", "device_ms", "share")

# In the documents; profiles.csv has all that the record has.
TOP, TOP_OF_PAGE = 10, 3

Number = float | None


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator by its own time; all numbers are of one step."""

    name: str
    calls: float
    cpu_ms: float
    device_ms: float
    share: Number


@dataclass(frozen=True, slots=True)
class RankProfile:
    """What the profiler saw of one rank.

    Attributes:
        trace: its file, relative to the result directory.
        operators: the longest first.
        spans: phases and communication: kind, name, start_ms, ms.
    """

    rank: int
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


def make_frame(profiles: Sequence[Profile]) -> pd.DataFrame:
    """The columns of profiles.csv; calls and times are of one step."""
    rows = [
        {
            "cell": profile.cell,
            "rank": rank.rank,
            "operator": one.name,
            "calls": round_figures(one.calls),
            "cpu_ms": round_figures(one.cpu_ms),
            "device_ms": round_figures(one.device_ms),
            "share": None if one.share is None else round_figures(one.share),
        }
        for profile in profiles
        for rank in profile.ranks
        for one in rank.operators
    ]
    types = dict.fromkeys(COLUMNS[3:], "float64")
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(types)


def show(profiles: Sequence[Profile]) -> Section | None:
    """Pictures, traces, and the first few operators of each rank."""
    if not profiles:
        return None
    columns = dict.fromkeys(("cell", "rank", "trace", "longest operators"), False)
    rows = [
        [
            Text(profile.cell),
            Text(str(rank.rank)),
            Text(Path(rank.trace).name, href=rank.trace),
            Text(", ".join(map(_name, rank.operators[:TOP_OF_PAGE]))),
        ]
        for profile in profiles
        for rank in profile.ranks
    ]
    return Section(
        title=TITLE,
        about=ABOUT,
        files=("profiles.csv", "profiles.md"),
        plots=[(p.plot, CAPTION.format(cell=p.cell)) for p in profiles],
        grids=[Grid(TITLE, columns, rows)],
    )


def show_operators(profiles: Sequence[Profile]) -> Section | None:
    """The tables of profiles.md."""
    if not profiles:
        return None
    grids = [
        _show_rank(f"{profile.cell}, rank {rank.rank}", rank.operators)
        for profile in profiles
        for rank in profile.ranks
    ]
    return Section(title=TITLE, about=ABOUT, files=("profiles.csv",), grids=grids)


def _show_rank(title: str, operators: Sequence[Operator]) -> Grid:
    numbers = {"calls/step": "calls", "CPU ms/step": "cpu_ms"}
    if any(one.device_ms for one in operators):
        numbers["GPU ms/step"] = "device_ms"
    rows = [
        [
            Text(one.name),
            *(Text(figures(getattr(one, field))) for field in numbers.values()),
            Text(_percent(one.share)),
        ]
        for one in operators[:TOP]
    ]
    columns = {"operator": False} | dict.fromkeys((*numbers, "share"), True)
    return Grid(title, columns, rows)


def _read(cell: str, launch: Launch, root: Path) -> Profile:
    place = launch.directory.relative_to(root)
    ranks = [
        RankProfile(
            rank=rank["rank"],
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


def _name(operator: Operator) -> str:
    return f"{operator.name} {_percent(operator.share)}".strip()


def _percent(share: Number) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
