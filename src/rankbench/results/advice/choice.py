"""The best of several rows, which others cannot be told apart, and what would tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from rankbench.results.numbers import fit as fits
from rankbench.results.numbers.fit import Fit, LogRatio, confidence_of_each
from rankbench.results.numbers.statistics import round_off
from rankbench.results.numbers.summary import Summary

# Values of an answer, as JSON has them.
Facts = dict[str, Any]

# What a row is, beside the best: certainly less; equal within the margin; or neither
# can be told; or it has too few launches to be judged.
LESS, EQUAL, UNTOLD, FEW = "less", "equal", "untold", "few"


def choose(
    fit: Fit, factors: Mapping[str, float], margin: float
) -> tuple[str, dict[str, Facts]]:
    """Find the best of several rows, and compare all others with it.

    The brackets of all rivals hold together, so the best row is called less than
    another with a probability of 5 % at most, although the same launches choose the
    row that the others are compared with (Hsu, Annals of Statistics 12, 1984).

    Args:
        fit: of the launches of these rows, and perhaps of others.
        factors: of the throughput of each row, by name: 1, or one over its devices.
        margin: rows that differ by less are equally good: 0.03 for 3 %.

    Returns:
        The name of the best, and the others by name in descending order: `ratio` to the
        best one; `verdict`: `LESS`, `EQUAL`, `UNTOLD` or `FEW`; `launches` of both that
        would settle it, all in all, or None if it is settled or they are too many.
    """

    def find(name: str, base: str) -> LogRatio:
        ratio = fit.ratio(name, base)
        off = math.log(factors[name] / factors[base])
        return replace(ratio, value=ratio.value + off)

    first, *rest = factors
    heights = {first: 0.0, **{name: find(name, first).value for name in rest}}
    best = max(heights, key=lambda name: heights[name])
    others = sorted(heights.keys() - {best}, key=lambda name: -heights[name])
    confidence = confidence_of_each(len(others))
    return best, {name: _judge(find(name, best), margin, confidence) for name in others}


def _judge(ratio: LogRatio, margin: float, confidence: float) -> Facts:
    bracket = ratio.bracket(confidence)
    told = fits.judge(bracket, margin)
    if bracket.interval and told != fits.UNTOLD:
        verdict = EQUAL if told == fits.EQUAL else LESS
        return {"ratio": bracket.to_json(), "verdict": verdict, "launches": None}
    # The ratio may turn out to differ from 1, or to be within the margin.
    off = abs(ratio.value)
    distance = max(off, math.log1p(margin) - off)
    launches = ratio.launches_for(distance, confidence)
    verdict = UNTOLD if bracket.interval else FEW
    return {"ratio": bracket.to_json(), "verdict": verdict, "launches": launches}


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
    asked: dict[str, dict[str, int]] = {}

    def ask(question: str, launches: int | None, *names: str) -> None:
        """Ask for so many launches that count, beside the disturbed ones."""
        if launches is None:
            return  # Too many.
        own = asked.setdefault(question, {})
        for name in names:
            needed = launches + len(rows[name].disturbed)
            if needed > len(rows[name].measures):
                own[name] = max(needed, own.get(name, 0))

    for question, choice in choices.items():
        for rival in choice["rivals"]:
            if rival["verdict"] in (UNTOLD, FEW):
                ask(question, rival["launches"], choice["cell"], rival["cell"])
    for point in [point for series in scaling for point in series["untold"]]:
        summary = rows.get(point["cell"])
        base = summary and summary.efficiency_base
        if summary and base and base.id in rows:
            assert summary.fit is not None
            ratio = summary.fit.ratio(summary.row.id, base.id)
            distance = abs(math.log(wanted / summary.numbers["efficiency"].value))
            launches = ratio.launches_for(distance, summary.confidence)
            ask("scaling", launches, summary.row.id, base.id)
    return [_describe(question, rows, own) for question, own in asked.items() if own]


def _describe(
    question: str, rows: Mapping[str, Summary], asked: Mapping[str, int]
) -> Facts:
    """What settles a question: the cells, their launches, and device-hours."""
    cells, seconds = [], 0.0
    for name, launches in asked.items():
        summary = rows[name]
        more = launches - len(summary.measures)
        records = [launch.record for launch in summary.row.launches]
        each = fmean((r.get("seconds") or {}).get("launch") or 0.0 for r in records)
        seconds += more * each * summary.row.devices
        cells.append({"cell": name, "launches": launches, "more": more})
    hours = round_off(seconds / 3600)
    return {"settles": question, "cells": cells, "device_hours": hours}
