"""How far predictions miss, learned from published scaling series.

A series whose larger half is hidden shows how far a prediction of it misses. Over many
series, the signed errors, divided by what each series itself promises (`Guess.risk`),
give the factors of an interval: split conformal prediction (Lei and others,
Distribution-Free Predictive Inference for Regression, JASA 113, 2018), weighted so that
each source counts once, however many series it has.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import TextIO

import numpy as np

from rankbench.results.prediction.totals import Guess, Point, guess

NEEDED = ("series", "devices", "value", "unit", "higher_is_better", "scaling", "source")


@dataclass(frozen=True, slots=True)
class Published:
    """A published series.

    Attributes:
        source: repository, without commit and lines.
        points: by ascending devices.
    """

    name: str
    source: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A point of a series, predicted from the points before it.

    Attributes:
        known: number of points that the prediction rests on.
        is_last: whether it is the last point, predicted from the smaller half.
        error: log of the true over the predicted throughput.
    """

    series: Published
    known: int
    is_last: bool
    guess: Guess
    error: float


@dataclass(frozen=True, slots=True)
class Factors:
    """Of the risk of all doublings: how far the truth may lie below and above."""

    below: float
    above: float

    def interval(self, one: Guess, noise: float = 0.0) -> tuple[float, float]:
        """95 % interval of a prediction.

        Args:
            noise: log error of the measured points themselves.
        """
        risk = one.doublings * one.risk
        low = math.hypot(self.below * risk, noise)
        high = math.hypot(self.above * risk, noise)
        return one.value * math.exp(-low), one.value * math.exp(high)


def read_series(file: TextIO, name: str) -> list[Published]:
    """Read a table of published points, one in each line.

    Of several points with equally many devices the median counts.

    Args:
        file: CSV with the columns `NEEDED`.
        name: of the file, for errors.

    Raises:
        ValueError: a column is missing, or a value is not positive; the message names
            file and line.
    """
    reader = csv.DictReader(file)
    missing = [key for key in NEEDED if key not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{name}: the columns {', '.join(missing)} are missing")
    found: dict[str, dict[float, list[float]]] = {}
    sources = {}
    for number, row in enumerate(reader, start=2):
        try:
            point = _read_point(row)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}, line {number}: {error}") from error
        scales = found.setdefault(row["series"], {})
        scales.setdefault(point.devices, []).append(point.throughput)
        sources[row["series"]] = row["source"].partition("@")[0]
    return [
        Published(
            one,
            sources[one],
            tuple(Point(count, median(scales[count])) for count in sorted(scales)),
        )
        for one, scales in found.items()
    ]


def _read_point(row: dict[str, str]) -> Point:
    devices, value = float(row["devices"]), float(row["value"])
    if not (0 < devices < math.inf and 0 < value < math.inf):
        raise ValueError("devices and value must be positive numbers")
    if row["higher_is_better"] == "1":
        return Point(devices, value)
    # With weak scaling, a step of the same time has as many more samples.
    weak_step = row["scaling"] == "weak" and row["unit"] == "s/step"
    return Point(devices, (devices if weak_step else 1.0) / value)


@cache
def load_published() -> tuple[Published, ...]:
    """The series that rankbench comes with."""
    path = Path(__file__).with_name("scaling-tables.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(read_series(file, path.name))


def make_cases(series: Iterable[Published]) -> list[Case]:
    """Each later point of each series, predicted from each beginning of the series."""
    return [
        _make_case(one, known, target)
        for one in series
        for known in range(2, len(one.points))
        for target in range(known, len(one.points))
    ]


def _make_case(one: Published, known: int, target: int) -> Case:
    points = one.points
    found = guess(points[:known], points[target].devices)
    error = math.log(points[target].throughput / found.value)
    last = len(points) - 1
    is_last = target == last and known == math.ceil(len(points) / 2)
    return Case(one, known, is_last, found, error)


@cache
def load_factors() -> Factors:
    """The factors that the published series teach."""
    return learn_factors(make_cases(load_published()))


def learn_factors(cases: Sequence[Case], confidence: float = 0.95) -> Factors:
    """The factors that would have held this share of the points, each source alike."""
    counts = Counter(case.series.source for case in cases)
    weights = np.array([1 / counts[case.series.source] for case in cases])
    missed = np.array(
        [case.error / (case.guess.doublings * case.guess.risk) for case in cases]
    )
    order = np.argsort(missed)
    shares = np.cumsum(weights[order]) / weights.sum()

    def quantile(share: float) -> float:
        place = min(int(np.searchsorted(shares, share)), len(cases) - 1)
        return float(missed[order[place]])

    outside = (1 - confidence) / 2
    return Factors(-quantile(outside), quantile(1 - outside))
