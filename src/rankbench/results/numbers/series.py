"""Group cells for plots: panels of comparable cells, and series within them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rankbench.cell import ALTERNATIVE, Cell, find_varying, spell_value
from rankbench.record import OVERSUBSCRIBED
from rankbench.results.numbers.summary import Group, Summary


@dataclass(frozen=True, slots=True)
class Series:
    """Cells that differ in topology alone, in the order of the plan.

    Attributes:
        name: strategy and backend, and what else sets the series apart.
        points: the cells.
    """

    name: str
    points: tuple[Summary, ...]

    @property
    def words(self) -> list[str]:
        """What sets it apart from other series of its strategy and backend."""
        cell = self.points[0].row.cell
        return self.name.removeprefix(_name(cell)).split()

    @property
    def lines(self) -> list[list[Summary]]:
        """Points that a line may join, by ascending devices.

        Cells that share cores or GPUs follow another trend and are left out. If two
        topologies have equally many devices, each number of hosts has its own line.
        """
        points = [point for point in self.points if not is_shared(point)]
        ordered = sorted(points, key=lambda point: point.row.devices)
        devices = [point.row.devices for point in ordered]
        if len(set(devices)) == len(devices):
            return [ordered]
        hosts = dict.fromkeys(point.row.cell.size.nodes for point in ordered)
        return [
            [point for point in ordered if point.row.cell.size.nodes == count]
            for count in hosts
        ]


@dataclass(frozen=True, slots=True)
class Panel:
    """Cells that may be compared: they share model, data, batch size and so on."""

    title: str
    series: tuple[Series, ...]

    @property
    def unit(self) -> str:
        """What throughput counts: samples or tokens. It is a part of the workload."""
        return self.series[0].points[0].row.cell.unit

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
                series.append(Series(each.name, points))
        if series:
            kept.append(Panel(panel.title, tuple(series)))
    return kept


def make_panels(summaries: Sequence[Summary]) -> list[Panel]:
    """Group the rows that are ok; [] if there are none."""
    ok = [s for s in summaries if s.row.status == "ok"]
    names = _name_series([s.row.cell for s in ok])
    groups: dict[Group, list[Summary]] = {}
    for summary in ok:
        groups.setdefault(summary.group, []).append(summary)
    titles = _name_groups([group[0].row.cell for group in groups.values()])
    panels = []
    for title, ((_, apart), group) in zip(titles, groups.items(), strict=True):
        series: dict[str, list[Summary]] = {}
        for summary in group:
            series.setdefault(names[_key(summary.row.cell)], []).append(summary)
        found = (Series(name, tuple(points)) for name, points in series.items())
        panels.append(Panel(", ".join(filter(None, [apart, title])), tuple(found)))
    return panels


def find_controls(rows: Sequence[Summary]) -> set[str]:
    """Ids of strategies for several devices on one device, beside the base.

    They say what a strategy costs by itself; nobody would choose them.

    Args:
        rows: of one workload.
    """
    has_base = any(one.row.cell.is_base for one in rows)
    if not has_base or all(one.row.devices == 1 for one in rows):
        return set()
    return {
        one.row.id for one in rows if one.row.devices == 1 and not one.row.cell.is_base
    }


def is_shared(point: Summary) -> bool:
    """Whether ranks shared a core or a GPU."""
    return OVERSUBSCRIBED in point.marks


def _key(cell: Cell) -> str:
    return json.dumps([cell.strategy, cell.backend, _settings(cell)], sort_keys=True)


def _settings(cell: Cell) -> dict[str, Any]:
    """What sets series of a strategy and a backend apart."""
    names = ("launcher", "init_method", "gpudirect", "image")
    return {name: getattr(cell, name) for name in names} | {**cell.env, **cell.options}


def _name_series(cells: Sequence[Cell]) -> dict[str, str]:
    """Name of each series: strategy, backend, and whatever else distinguishes it."""
    alike: dict[str, list[Cell]] = {}
    for cell in cells:
        alike.setdefault(_name(cell), []).append(cell)
    names = {}
    for name, group in alike.items():
        settings = list(map(_settings, group))
        varying = find_varying(settings)
        for cell, own in zip(group, settings, strict=True):
            differing = [
                str(value) if field == "launcher" else f"{field}={value}"
                for field, value in own.items()
                if field in varying
            ]
            names[_key(cell)] = " ".join([name, *differing])
    return names


def _name(cell: Cell) -> str:
    return f"{cell.strategy} {cell.backend}".removesuffix(" none")


def _name_groups(cells: Sequence[Cell]) -> list[str]:
    """Title of each panel: what distinguishes it, then model, data and batch.

    Where there is little space, the end is cut.
    """
    fields = [cell.fields for cell in cells]
    varying, titles = find_varying(fields), []
    for cell, values in zip(cells, fields, strict=True):
        batch = f"batch {cell.batch_size} ({cell.scaling} scaling)"
        differing = [
            _TOLD.get(name, "{0} {1}").format(name, spell_value(value))
            for name, value in values.items()
            if name in varying and name not in {*_NOT_TOLD, *cell.options, *cell.env}
        ]
        own = [cell.model, cell.data, batch]
        if cell.script is not None:
            count = cell.script["samples_per_step"]
            own = [
                f"script {cell.script['args']}".strip(),
                f"{count} samples in a step",
            ]
        titles.append(", ".join([*differing, *own]))
    return titles


# Fields that every title shows, and those in which cells of a panel may differ.
_NOT_TOLD = {
    *("model", "data", "batch_size", "scaling", "args", "samples_per_step"),
    *("own strategy", *ALTERNATIVE),
}

_TOLD = {"per_sample": "learning_rate {1} per sample"}
