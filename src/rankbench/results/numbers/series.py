"""Group cells for plots: panels of comparable cells, and series within them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rankbench.cell import WORKLOAD, Cell, find_varying, spell_setting
from rankbench.record import OVERSUBSCRIBED

if TYPE_CHECKING:
    from rankbench.results.numbers.result_set import Group, Summary


@dataclass(frozen=True, slots=True)
class Series:
    """Cells that differ in topology alone, in the order of the plan.

    Attributes:
        name: strategy and backend, and what else sets the series apart.
        points: the cells.
        words: what sets it apart from other series of its strategy and backend.
    """

    name: str
    points: tuple[Summary, ...]
    words: tuple[str, ...] = ()

    @property
    def lines(self) -> list[list[Summary]]:
        """Points that a line may join, by ascending devices.

        Cells that share cores or GPUs follow another trend and are left out. If two
        topologies have equally many devices, each number of hosts has its own line.
        """
        points = [point for point in self.points if not is_shared(point)]
        ordered = sorted(points, key=lambda point: point.devices)
        devices = [point.devices for point in ordered]
        if len(set(devices)) == len(devices):
            return [ordered]
        hosts = dict.fromkeys(point.cell.size.nodes for point in ordered)
        return [
            [point for point in ordered if point.cell.size.nodes == count]
            for count in hosts
        ]


@dataclass(frozen=True, slots=True)
class Panel:
    """Cells that compete: they train the same model on the same data."""

    title: str
    series: tuple[Series, ...]

    @property
    def unit(self) -> str:
        """What throughput counts: samples or tokens. It is a part of the workload."""
        return self.series[0].points[0].cell.unit

    @property
    def points(self) -> list[Summary]:
        return [point for series in self.series for point in series.points]


def cut(panels: Sequence[Panel], *, panels_at_most: int, cells: int) -> list[Panel]:
    """The first panels and cells, as many as a reader can still look at."""
    kept = []
    for panel in panels[:panels_at_most]:
        series = []
        for each in panel.series:
            points = each.points[: max(0, cells)]
            cells -= len(points)
            if points:
                series.append(replace(each, points=points))
        if series:
            kept.append(Panel(panel.title, tuple(series)))
    return kept


def make_panels(summaries: Sequence[Summary]) -> list[Panel]:
    """Group the rows that are ok; [] if there are none."""
    ok = [s for s in summaries if s.status == "ok"]
    words = _tell_apart([s.cell for s in ok])
    groups: dict[Group, list[Summary]] = {}
    for summary in ok:
        groups.setdefault(summary.group, []).append(summary)
    titles = _name_groups([[one.cell for one in own] for own in groups.values()])
    panels = []
    for title, ((_, apart), group) in zip(titles, groups.items(), strict=True):
        series: dict[str, list[Summary]] = {}
        for summary in group:
            series.setdefault(_key(summary.cell), []).append(summary)
        found = (
            Series(
                " ".join([_name(points[0].cell), ", ".join(words[key])]).strip(),
                tuple(points),
                words[key],
            )
            for key, points in series.items()
        )
        panels.append(Panel(", ".join(filter(None, [apart, title])), tuple(found)))
    return panels


def find_controls(rows: Sequence[Summary]) -> set[str]:
    """Ids of strategies for several devices on one device, beside the base.

    They say what a strategy costs by itself; nobody would choose them.

    Args:
        rows: of one workload.
    """
    has_base = any(one.cell.is_base for one in rows)
    if not has_base or all(one.devices == 1 for one in rows):
        return set()
    return {one.id for one in rows if one.devices == 1 and not one.cell.is_base}


def is_shared(point: Summary) -> bool:
    """Whether ranks shared a core or a GPU."""
    return OVERSUBSCRIBED in point.marks


def _key(cell: Cell) -> str:
    settings = [cell.strategy, cell.backend, cell.settings]
    return json.dumps(settings, sort_keys=True, default=str)


def _tell_apart(cells: Sequence[Cell]) -> dict[str, tuple[str, ...]]:
    """Series -> the settings in which it differs from its strategy's others."""
    alike: dict[str, list[Cell]] = {}
    for cell in cells:
        alike.setdefault(_name(cell), []).append(cell)
    found = {}
    for group in alike.values():
        settings = [cell.settings for cell in group]
        varying = find_varying(settings)
        for cell, own in zip(group, settings, strict=True):
            words = (spell_setting(k, v) for k, v in own.items() if k in varying)
            found[_key(cell)] = tuple(filter(None, words))
    return found


def _name(cell: Cell) -> str:
    return f"{cell.strategy} {cell.backend}".removesuffix(" none")


def _name_groups(groups: Sequence[Sequence[Cell]]) -> list[str]:
    """Title of each panel: what is trained, and the batch if all rows have one."""
    varying = find_varying([group[0].fields for group in groups])
    titles = []
    for group in groups:
        first = group[0]
        if first.script is None:
            what = [first.model, first.data]
        else:
            what = [" and ".join(dict.fromkeys(cell.file_of_script for cell in group))]
        differing = [
            spell_setting(name, value)
            for name, value in first.fields.items()
            if name in varying & {*WORKLOAD, *first.model_options}
            and name not in ("model", "data", "own_files")
        ]
        batches = dict.fromkeys(cell.batch_words for cell in group)
        batch = [*batches] if len(batches) == 1 else []
        titles.append(", ".join([*what, *differing, *batch]))
    return titles
