"""Whether the hosts of a cell are equally fast, and which one is not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rankbench.results.elements import plotting
from rankbench.results.elements.section import Content, Drawing, Row, Section
from rankbench.results.elements.text import show_estimate
from rankbench.results.numbers.hosts import AT_LEAST, HostSpeed, compare_hosts
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate

_READING = (
    "Launches on one host each. Ratio: the speed of a host over the median of the "
    f"others; a host is slow if the bracket lies below {AT_LEAST:g}."
)


def make_rows(groups: Sequence[Sequence[HostSpeed]]) -> list[Row]:
    """The rows of the hosts of some cells."""
    names = SECTION.columns
    speeds = (one for speeds in groups for one in speeds)
    return [{name: getattr(one, name) for name in names} for one in speeds]


def make(found: ResultSet) -> Content | None:
    groups = compare_hosts(found.measured)
    content = Content(
        rows=make_rows(groups),
        drawings=[
            Drawing(
                name="hosts",
                question="Which host is slow?",
                caption=_READING,
                make=partial(_draw, groups),
            )
        ],
    )
    return content if groups else None


def _draw(groups: Sequence[Sequence[HostSpeed]], width: float) -> plotting.Figure:
    heights = [0.25 * len(speeds) + 0.7 for speeds in groups]
    figure, grid = plotting.make_figure(heights, width=width)
    for (axes,), speeds in zip(grid, groups, strict=True):
        ends = [one.ratio.high or one.ratio.value for one in speeds]
        for place, one in enumerate(speeds):
            style = plotting.Style("C3" if one.slow else "0.35", "o")
            line = {"color": style.color, "horizontal": True}
            plotting.draw_interval(axes, place, one.ratio, **line)
            usual = one.throughput / one.ratio.value
            each = [rate / usual for rate in one.rates]
            plotting.draw_launches(axes, each, [place] * len(each), style)
            axes.plot([one.ratio.value], [place], "o", ms=5.5, color=style.color)
        axes.axvline(1, color="0.6", lw=0.8, zorder=0)
        plotting.write_title(axes, speeds[0].cell.partition(".hosts=")[0])
        hosts = [one.host for one in speeds]
        ratios = [f"x {show_estimate(one.ratio)}" for one in speeds]
        plotting.finish_rows(axes, hosts, ratios, end=1.05 * max(1.0, *ends))
        axes.set_xlabel("speed over the median of the other hosts")
    return figure


SECTION = Section(
    title="Hosts",
    reading=_READING,
    order=15,
    make=make,
    columns={
        "cell": (str, "cell"),
        "host": (str, "host"),
        "launches": (int, "launches"),
        "throughput": (float, "throughput"),
        "ratio": (Estimate, "ratio"),
        "slow": (str, "slow"),
    },
)
