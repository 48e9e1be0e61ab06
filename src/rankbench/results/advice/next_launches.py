"""Which rows to launch how often, so that open questions are settled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from rankbench.record import Record
from rankbench.results.advice.choice import FEW, UNTOLD, count_launches
from rankbench.results.advice.facts import Facts, round_off
from rankbench.results.numbers.statistics import CONFIDENCE, MIN_LAUNCHES
from rankbench.results.numbers.summary import Summary


def plan_next(
    rows: Mapping[str, Summary],
    choices: Mapping[str, Facts],
    scaling: Sequence[Facts],
    wanted: float,
) -> list[Facts]:
    """For each open question, the launches that would settle it, and their cost.

    Args:
        rows: of the workload, by id.
        choices: question -> the best row with its rivals.
        scaling: how far each series scales.
        wanted: the efficiency that a topology should have.
    """
    found = []
    for question, choice in choices.items():
        asked: dict[str, int] = {}
        for rival in choice["rivals"]:
            if rival["verdict"] in (UNTOLD, FEW):
                for name in (choice["cell"], rival["cell"]):
                    _ask(asked, rows[name], rival["launches"])
        found.append(_describe(question, rows, asked))
    asked = {}
    for point in [point for one in scaling for point in one["untold"]]:
        summary = rows.get(point["cell"])
        base = summary and summary.efficiency_base
        if summary and base and base.id in rows:
            launches = _launches_for(summary, rows[base.id], wanted)
            _ask(asked, summary, launches)
            _ask(asked, rows[base.id], launches)
    found.append(_describe("scaling", rows, asked))
    return [one for one in found if one["cells"]]


def _ask(asked: dict[str, int], summary: Summary, launches: int | None) -> None:
    if launches is not None and launches > len(summary.measures):
        asked[summary.row.id] = max(launches, asked.get(summary.row.id, 0))


def _launches_for(summary: Summary, base: Summary, wanted: float) -> int | None:
    """Launches of both that tell whether the efficiency is above the wanted one."""
    assert summary.fit is not None
    ratio = summary.fit.ratio(summary.row.id, base.row.id)
    if ratio.launches < MIN_LAUNCHES:
        return MIN_LAUNCHES
    distance = abs(math.log(wanted / summary.numbers["efficiency"].value))
    return count_launches(ratio, distance, CONFIDENCE)


def _describe(
    question: str, rows: Mapping[str, Summary], asked: Mapping[str, int]
) -> Facts:
    cells, seconds = [], 0.0
    for name, launches in asked.items():
        summary = rows[name]
        more = launches - len(summary.measures)
        each = fmean(_seconds(one.record) for one in summary.row.launches)
        seconds += more * each * summary.row.devices
        cells.append({"cell": name, "launches": launches, "more": more})
    hours = round_off(seconds / 3600)
    return {"settles": question, "cells": cells, "device_hours": hours}


def _seconds(record: Record) -> float:
    """Of the whole launch."""
    return float((record.get("seconds") or {}).get("launch") or 0.0)
