"""How well published scaling series can be predicted, and whether intervals hold.

The largest point of each series is predicted from the smaller half of its points. The
factors of the intervals are learned without the source that is predicted.

    python benchmarks/foresight.py [TABLE.csv]

The table has the columns series, devices, value, unit, higher_is_better, scaling and
source; by default it is the one that rankbench comes with.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from rankbench.results.prediction import totals
from rankbench.results.prediction.published import (
    Case,
    Published,
    learn_factors,
    load_published,
    make_cases,
    read_series,
)

Array = NDArray[np.float64]
OUTSIDE = 0.05


def amdahl(p: Array, y: Array, target: float) -> float:
    """Time = serial + parallel / P: Amdahl, AFIPS 1967."""
    return _from_times(p, y, target, [np.ones_like, lambda q: q])


def universal(p: Array, y: Array, target: float) -> float:
    """Gunther's universal scalability law, with two points Amdahl's."""
    terms: list[Callable[[Array], Array]] = [np.ones_like, lambda q: q - 1]
    if len(p) > 2:
        terms.append(lambda q: q * (q - 1))
    return _from_times(p, y, target, terms)


def _from_times(
    p: Array, y: Array, target: float, terms: Sequence[Callable[[Array], Array]]
) -> float:
    """Time of a sample and device as a sum of terms that are not negative."""
    times = p / y
    known = np.stack([term(p) for term in terms], axis=1) / times[:, None]
    weights, _ = optimize.nnls(known, np.ones_like(p))
    time = sum(
        w * float(term(np.array([target]))[0])
        for w, term in zip(weights, terms, strict=True)
    )
    return target / time if time > 0 else totals.lasting(p, y, target)


def linear_efficiency(p: Array, y: Array, target: float) -> float:
    """Efficiency falls by the same amount with each doubling."""
    efficiency = y / p
    slope, start = np.polyfit(np.log2(p), efficiency, 1)
    low = 0.05 * efficiency[-1]
    return target * max(low, float(start + slope * math.log2(target)))


def plain_power_law(p: Array, y: Array, target: float) -> float:
    """A straight line through the logarithms, which need not meet the last point."""
    slope, start = np.polyfit(np.log(p), np.log(y), 1)
    return math.exp(start + slope * math.log(target))


def through_last(model: totals.Model) -> totals.Model:
    return lambda p, y, target: model(p, y, target) * y[-1] / model(p, y, float(p[-1]))


def mean_of(*models: totals.Model) -> totals.Model:
    """Geometric mean."""

    def predict(p: Array, y: Array, target: float) -> float:
        return math.exp(np.mean([math.log(model(p, y, target)) for model in models]))

    return predict


def weighted_by_past(*models: totals.Model) -> totals.Model:
    """By how well each predicted the next scale of the same series so far."""

    def predict(p: Array, y: Array, target: float) -> float:
        logs = np.array([math.log(model(p, y, target)) for model in models])
        past = [
            [
                abs(math.log(model(p[:n], y[:n], float(p[n])) / y[n]))
                / math.log2(p[n] / p[n - 1])
                for model in models
            ]
            for n in range(2, len(p))
        ]
        missed = np.mean(past, axis=0) if past else np.ones(len(models))
        weights = (missed + 0.01) ** -2
        return math.exp(weights @ logs / weights.sum())

    return predict


_ALL = (totals.power_law, amdahl, universal, linear_efficiency)
VARIANTS: Mapping[str, totals.Model] = {
    "power law": plain_power_law,
    "power law through the last point": totals.power_law,
    "lasting efficiency": totals.lasting,
    "Amdahl": amdahl,
    "universal scalability law": universal,
    "efficiency linear in log P": linear_efficiency,
    "time linear in log P, through the last point": totals.growing,
    "mean of power law, Amdahl, USL, linear efficiency": mean_of(*_ALL),
    "the same, weighted by their past": weighted_by_past(*_ALL),
    "the same, each through the last point": weighted_by_past(
        *(through_last(model) for model in _ALL)
    ),
    "the ensemble's three, weighted by their past": weighted_by_past(
        *totals.MEMBERS.values()
    ),
    "power law with half its loss": mean_of(totals.power_law, totals.lasting),
    "the ensemble": mean_of(*totals.MEMBERS.values()),
}


def show_variants(series: Sequence[Published]) -> None:
    """Print the error of each variant."""
    print("| error of the largest point | median source | mean source | pooled |")
    print("| --- | --: | --: | --: |")
    for name, model in VARIANTS.items():
        errors = defaultdict(list)
        for one in series:
            p, y = totals.as_arrays(one.points)
            half = math.ceil(len(p) / 2)
            if half >= 2 and len(p) > half:
                found = model(p[:half], y[:half], float(p[-1]))
                errors[one.source].append(100 * abs(found / y[-1] - 1))
        sources = [np.median(own) for own in errors.values()]
        pooled = [error for own in errors.values() for error in own]
        print(
            f"| {name} | {np.median(sources):.1f} % | {np.mean(sources):.1f} % "
            f"| {np.median(pooled):.1f} % |"
        )


def student(case: Case) -> tuple[float, float] | None:
    """The textbook's interval of a power law: 95 %, by its residuals; logarithms."""
    p, y = totals.as_arrays(case.series.points[: case.known])
    if len(p) < 3:
        return None
    x, z = np.log(p), np.log(y)
    target = math.log2(p[-1]) + case.guess.doublings
    fit = stats.linregress(x, z)
    rest = z - fit.intercept - fit.slope * x
    spread = math.sqrt(rest @ rest / (len(p) - 2))
    at = target * math.log(2)
    far = (at - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
    half = float(stats.t.ppf(1 - OUTSIDE / 2, len(p) - 2)) * spread
    half *= math.sqrt(1 + 1 / len(p) + far)
    center = fit.intercept + fit.slope * at
    return center - half, center + half


def show_intervals(cases: Sequence[Case]) -> None:
    """Print coverage, width and score of the intervals, by source."""
    kinds: dict[str, Callable[[Case], tuple[float, float] | None]] = {
        "the ensemble": _conformal(cases, lambda case: case.guess),
        "a power law, interval as for the ensemble": _conformal(
            cases, lambda case: _power_guess(case, risky=True)
        ),
        "a power law, interval grows with log P alone": _conformal(
            cases, lambda case: _power_guess(case, risky=False)
        ),
        "a power law, by its residuals (3 points or more)": student,
    }
    print("| 95 % interval | holds the truth | width (log) | score | points |")
    print("| --- | --: | --: | --: | --: |")
    for name, find in kinds.items():
        rows = defaultdict(list)
        for case in cases:
            found = find(case) if case.is_last else None
            if found is not None:
                rows[case.series.source].append(_judge(case, *found))
        means = np.mean([np.mean(own, axis=0) for own in rows.values()], axis=0)
        count = sum(map(len, rows.values()))
        print(
            f"| {name} | {100 * means[0]:.1f} % | {means[1]:.2f} "
            f"| {means[2]:.2f} | {count} |"
        )


def _true(case: Case) -> float:
    return math.log(case.guess.value) + case.error


def _judge(case: Case, low: float, high: float) -> tuple[float, float, float]:
    """Whether it holds, width, and the score of Gneiting and Raftery (JASA 2007)."""
    true = _true(case)
    missed = max(0.0, low - true) + max(0.0, true - high)
    return low <= true <= high, high - low, high - low + 2 / OUTSIDE * missed


def _power_guess(case: Case, *, risky: bool) -> totals.Guess:
    points = case.series.points[: case.known]
    p, y = totals.as_arrays(points)
    value = totals.power_law(p, y, float(p[-1] * 2**case.guess.doublings))
    risk = case.guess.risk if risky else 1.0
    return totals.Guess(value, case.guess.doublings, risk)


def _conformal(
    cases: Sequence[Case], guess: Callable[[Case], totals.Guess]
) -> Callable[[Case], tuple[float, float]]:
    """Intervals with factors that were learned from all other sources."""
    again = {
        id(case): Case(
            case.series,
            case.known,
            case.is_last,
            guess(case),
            _true(case) - math.log(guess(case).value),
        )
        for case in cases
    }
    factors = {
        source: learn_factors(
            [one for one in again.values() if one.series.source != source]
        )
        for source in {case.series.source for case in cases}
    }

    def find(case: Case) -> tuple[float, float]:
        own = factors[case.series.source].interval(again[id(case)].guess)
        return math.log(own[0]), math.log(own[1])

    return find


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="?", type=Path)
    given = parser.parse_args().table
    if given is None:
        series: Sequence[Published] = load_published()
    else:
        with given.open(encoding="utf-8", newline="") as file:
            series = read_series(file, str(given))
    sources = {one.source for one in series}
    points = sum(len(one.points) for one in series)
    print(f"{len(series)} series, {points} points, {len(sources)} sources\n")
    show_variants(series)
    print()
    show_intervals(make_cases(series))


if __name__ == "__main__":
    main()
