"""The picture of a profile: phases of each rank, and communication beneath."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rankbench.record import Record
from rankbench.results.sections.phases import color_phases
from rankbench.results.sections.profiles import Profile, RankProfile

# Of more ranks the picture would be a carpet; the traces have them all.
MOST_RANKS = 8

COLUMNS = ("rank", "kind", "name", "start_ms", "ms")

_PHASE, _COMMUNICATION = "phase", "communication"
_HEIGHT = 0.62  # of a rank, in inches
_COLUMNS = 8  # of the legend
_TITLE_WIDTH = 90  # characters
_COLLECTIVE = "0.35"

# Where the two rows of a rank begin, and how high they are, in heights of a rank.
_PHASES = (-0.38, 0.48)
_BENEATH = (0.13, 0.25)


def make_frame(profile: Profile) -> pd.DataFrame:
    """The data of the picture, of all ranks: a row for each span."""
    rows = [
        (rank.rank, span["kind"], span["name"], span["start_ms"], span["ms"])
        for rank in profile.ranks
        for span in rank.spans
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"start_ms": "float64", "ms": "float64"})


def draw_timeline(profile: Profile, *, width: float) -> Figure:
    """Two rows for each rank, over the milliseconds since its first profiled step.

    Args:
        profile: of at least one rank.
        width: of the figure, in inches.
    """
    ranks = profile.ranks[:MOST_RANKS]
    figure = Figure(figsize=(width, _HEIGHT * len(ranks) + 1.3), layout="constrained")
    axes = figure.subplots()
    names = [span["name"] for rank in ranks for span in _of(rank, _PHASE)]
    colors = color_phases(names)
    for place, rank in enumerate(ranks):
        _draw_rank(axes, rank, place, colors)
    title = profile.cell
    if len(profile.ranks) > len(ranks):
        title += f" (the first {len(ranks)} of {len(profile.ranks)} ranks)"
    axes.set_title(textwrap.fill(title, _TITLE_WIDTH), parse_math=False)
    places = [place + _PHASES[0] + _PHASES[1] / 2 for place in range(len(ranks))]
    axes.set_yticks(places, [f"rank {rank.rank}" for rank in ranks])
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_xlabel("ms since the start of the first profiled step")
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    sns.despine(ax=axes, left=True)
    handles = [Patch(color=color, label=name) for name, color in colors.items()]
    if any(_of(rank, _COMMUNICATION) for rank in ranks):
        handles.append(Patch(color=_COLLECTIVE, label="collectives"))
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=max(1, min(_COLUMNS, len(handles))),
        handlelength=1.2,
        columnspacing=1.4,
    )
    return figure


def _draw_rank(
    axes: Axes, rank: RankProfile, place: int, colors: dict[str, Any]
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


def _of(rank: RankProfile, kind: str) -> list[Record]:
    return [span for span in rank.spans if span["kind"] == kind]
