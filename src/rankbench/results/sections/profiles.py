"""Profiles: the longest operators of each rank, the traces, and a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rankbench.record import PROFILE, Record, explain_damage
from rankbench.results.elements import plotting
from rankbench.results.elements.section import (
    Content,
    Drawing,
    Section,
    make_grid,
)
from rankbench.results.elements.text import Note, Text, figures
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.read.records import read_launches

# Operators of a rank that documents show. The CSV has all that the record has.
TOP = 10


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a cell.

    Attributes:
        folder: of its traces, relative to the result directory.
        ranks: what each rank has recorded: its number, its steps, operators with their
            own time (the longest first), and spans of phases and of communication.
    """

    cell: str
    folder: str
    ranks: Sequence[Record]


def load_profiles(found: ResultSet) -> tuple[list[Profile], list[ValueError]]:
    """The profiles of rows that are ok, and what is wrong with damaged records.

    Raises:
        ValueError: a record is damaged, and `found` is strict; the message names it.
    """
    profiles, damaged = [], list[ValueError]()
    layout, faults = found.layout, None if found.strict else damaged
    for row in found.measured:
        place = layout.attempt(row.id, row.attempt or 0) / PROFILE
        for launch in read_launches(place, measured=False, damaged=faults):
            if launch.record["status"] == "ok" and launch.record["profile"]:
                folder = launch.directory.relative_to(layout.root).as_posix()
                profiles.append(Profile(row.id, folder, launch.record["profile"]))
                break
    return profiles, damaged


# With more ranks the picture would be unreadable; the traces have all ranks.
MOST_RANKS = 8

_PHASE, _COMMUNICATION, _EXPOSED = "phase", "communication", "exposed"
_HEIGHT = 0.62  # Height of a rank in inches.
_COLLECTIVE = "0.35"

# What operators have, per step.
_PER_STEP = ("calls", "cpu_ms", "device_ms")

# Start and height of the two rows of a rank, in units of the height of a rank.
_PHASES = (-0.38, 0.48)
_BENEATH = (0.13, 0.25)


def make(found: ResultSet) -> Content | None:
    """A few steps of each cell under torch.profiler, in a launch of its own. The
    profiler slows a step down: look at shares, not at times. Operators by their own
    time, without that of the operators that they call; share: of the time of a step, by
    the clock of the GPU if there is one. Threads and streams run at the same time, and
    the kernel of a GPU stands beside the operator that started it: shares may add up to
    more than 100 %.

    Raises:
        ValueError: a record is damaged, and `found` is strict; the message names it.
    """
    profiles, damaged = load_profiles(found)
    if not profiles and not damaged:
        return None
    rows, traces, grids = [], [], []
    notes = [
        Note("not shown", explain_damage(error, found.layout.root)) for error in damaged
    ]
    for profile in profiles:
        for rank in profile.ranks:
            operators = list(_list_operators(profile.cell, rank))
            rows += operators
            number, name = rank["rank"], f"{profile.cell}, rank {rank['rank']}"
            trace = f"trace{number}.json.gz"
            link = Text(trace, href=f"{profile.folder}/{trace}")
            traces.append({"cell": profile.cell, "rank": str(number), "trace": link})
            grids.append(make_grid(name, list(map(_show_operator, operators[:TOP]))))
            if _of(rank, _EXPOSED):
                notes.append(Note(name, _describe_exposed(rank)))
    return Content(
        rows=rows,
        grids=[make_grid("Traces", traces), *grids],
        notes=notes,
        drawings=[
            Drawing(
                name=f"profile-{profile.cell}",
                question="What does a rank do during a step?",
                caption=(
                    f"{profile.cell}: phases of the profiled steps, and below them the "
                    "collective operations; on each rank since the start of its own "
                    "first step."
                ),
                make=partial(draw_timeline, profile),
            )
            for profile in profiles
        ],
    )


def _list_operators(cell: str, rank: Record) -> Iterator[dict[str, Any]]:
    """A row for each operator of a rank, per step."""
    whole = sum(span["ms"] for span in _of(rank, _PHASE))
    on_device = any(one["device_ms"] for one in rank["operators"])
    clock = "device_ms" if on_device else "cpu_ms"
    for one in rank["operators"]:
        yield {
            "cell": cell,
            "rank": rank["rank"],
            "operator": one["name"],
            **{key: one[key] / rank["steps"] for key in _PER_STEP},
            "share": one[clock] / whole if whole else None,
        }


def _describe_exposed(rank: Record) -> str:
    sent, alone = (
        sum(span["ms"] for span in _of(rank, kind)) / rank["steps"]
        for kind in (_COMMUNICATION, _EXPOSED)
    )
    return (
        f"kernels of communication run for {figures(round(sent, 3))} ms of a step, "
        f"{figures(round(alone, 3))} ms of it while no other kernel runs (exposed)."
    )


def _show_operator(one: Mapping[str, Any]) -> dict[str, Any]:
    share = one["share"]
    return {
        "operator": one["operator"],
        "calls/step": one["calls"],
        "CPU ms/step": one["cpu_ms"],
        "GPU ms/step": one["device_ms"] or None,
        "share (%)": None if share is None else round(100 * share, 1),
    }


def draw_timeline(profile: Profile, width: float) -> plotting.Figure:
    """Two rows for each rank, over the milliseconds since its first profiled step."""
    from matplotlib.patches import Patch

    ranks = profile.ranks[:MOST_RANKS]
    height = _HEIGHT * len(ranks) + 0.7
    figure, ((axes,),) = plotting.make_figure([height], width=width)
    names = [span["name"] for rank in ranks for span in _of(rank, _PHASE)]
    colors = plotting.color_phases(names)
    for place, rank in enumerate(ranks):
        _draw_rank(axes, rank, place, colors)
    title = profile.cell
    if len(profile.ranks) > len(ranks):
        title += f" (the first {len(ranks)} of {len(profile.ranks)} ranks)"
    plotting.write_title(axes, title)
    places = [place + _PHASES[0] + _PHASES[1] / 2 for place in range(len(ranks))]
    axes.set_yticks(places, [f"rank {rank['rank']}" for rank in ranks])
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_xlabel("ms since the start of the first profiled step")
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    handles = [Patch(color=color, label=name) for name, color in colors.items()]
    if any(_of(rank, _COMMUNICATION) for rank in ranks):
        handles.append(Patch(color=_COLLECTIVE, label="collectives"))
    plotting.add_legend(figure, handles)
    return figure


def _draw_rank(
    axes: plotting.Axes, rank: Record, place: int, colors: dict[str, Any]
) -> None:
    phases = _of(rank, _PHASE)
    axes.broken_barh(
        [(span["start_ms"], span["ms"]) for span in phases],
        (place + _PHASES[0], _PHASES[1]),
        facecolors=[colors[span["name"]] for span in phases],
        lw=0,
    )
    lanes = split_lanes(_of(rank, _COMMUNICATION))
    height = _BENEATH[1] / max(1, len(lanes))
    for lane, spans in enumerate(lanes):
        axes.broken_barh(
            [(span["start_ms"], span["ms"]) for span in spans],
            (place + _BENEATH[0] + lane * height, height),
            facecolors=_COLLECTIVE,
            edgecolors="white",
            lw=0.4,
        )


def split_lanes(spans: Sequence[Record]) -> list[list[Record]]:
    """Rows of spans such that those of a row do not overlap."""
    lanes: list[list[Record]] = []
    for span in sorted(spans, key=lambda one: one["start_ms"]):
        for lane in lanes:
            if lane[-1]["start_ms"] + lane[-1]["ms"] <= span["start_ms"]:
                lane.append(span)
                break
        else:
            lanes.append([span])
    return lanes


def _of(rank: Record, kind: str) -> list[Record]:
    return [span for span in rank["spans"] if span["kind"] == kind]


SECTION = Section(
    title="Profiles",
    order=95,
    make=make,
    columns={
        "cell": str,
        "rank": int,
        "operator": str,
        **dict.fromkeys(("calls", "cpu_ms", "device_ms", "share"), float),
    },
)
