"""How well published scaling series can be predicted, and whether intervals hold.

The largest point of each series is predicted from the smaller half of its points. The
misses that make the interval are learned from the other sources (split conformal
prediction: Lei and others, JASA 113, 2018), each source alike; those of all sources are
the constants in `results/prediction/predict.py`.

    python benchmarks/foresight.py [TABLE.csv]

The table has the columns series, devices, value, unit, higher_is_better, scaling and
source; by default it is `scaling-tables.csv` beside this file.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from rankbench.results.prediction.predict import predict_by_law

Array = NDArray[np.float64]
# Devices and throughput of each point, devices of the target -> throughput.
Model = Callable[[Array, Array, float], float]
Interval = Callable[["Case"], tuple[float, float] | None]
OUTSIDE = 0.05


@dataclass(frozen=True)
class Series:
    """A published series: throughput by ascending devices.

    Attributes:
        source: repository, without commit and lines.
    """

    source: str
    devices: Array
    rates: Array


@dataclass(frozen=True)
class Case:
    """A point of a series, and the points before it that are known.

    Attributes:
        target, rate: devices and throughput of the point.
        is_last: whether it is the last point, predicted from the smaller half.
    """

    source: str
    devices: Array
    rates: Array
    target: float
    rate: float
    is_last: bool

    @property
    def doublings(self) -> float:
        return math.log2(self.target / self.devices[-1])

    @property
    def error(self) -> float:
        """Log of the true over the predicted throughput."""
        return math.log(self.rate / power_law(self.devices, self.rates, self.target))


def read_series(path: Path) -> list[Series]:
    """Of several values with as many devices, the median counts."""
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            devices, value = float(row["devices"]), float(row["value"])
            if row["higher_is_better"] != "1":
                # With weak scaling, a step of the same time has as many more samples.
                is_weak = row["scaling"] == "weak" and row["unit"] == "s/step"
                value = (devices if is_weak else 1.0) / value
            key = row["series"], row["source"].partition("@")[0]
            found.setdefault(key, {}).setdefault(devices, []).append(value)
    return [
        Series(
            source,
            np.array(sorted(rates)),
            np.array([np.median(rates[count]) for count in sorted(rates)]),
        )
        for (_, source), rates in found.items()
    ]


def make_cases(series: Sequence[Series]) -> list[Case]:
    """Each later point of each series, predicted from each beginning of the series."""
    return [
        Case(
            source=one.source,
            devices=one.devices[:known],
            rates=one.rates[:known],
            target=float(one.devices[target]),
            rate=float(one.rates[target]),
            is_last=target == count - 1 and known == math.ceil(count / 2),
        )
        for one in series
        for count in [len(one.devices)]
        for known in range(2, count)
        for target in range(known, count)
    ]


def power_law(p: Array, y: Array, target: float) -> float:
    """The one that rankbench uses."""
    return predict_by_law(list(zip(p, y, strict=True)), target, 0.0).value


def straight_line(p: Array, y: Array, target: float) -> float:
    """Through the logarithms; it need not meet the last point."""
    slope, start = np.polyfit(np.log(p), np.log(y), 1)
    return math.exp(start + slope * math.log(target))


def lasting(p: Array, y: Array, target: float) -> float:
    """The efficiency of the last point lasts."""
    return float(y[-1] * target / p[-1])


def growing(p: Array, y: Array, target: float) -> float:
    """Time per sample and device grows by the same amount with each doubling."""
    doublings, times = np.log2(p), p / y
    slope = max(0.0, float(np.polyfit(doublings, times, 1)[0]))
    return target / (float(times[-1]) + slope * math.log2(target / p[-1]))


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
    return target / time if time > 0 else lasting(p, y, target)


def linear_efficiency(p: Array, y: Array, target: float) -> float:
    """Efficiency falls by the same amount with each doubling."""
    efficiency = y / p
    slope, start = np.polyfit(np.log2(p), efficiency, 1)
    low = 0.05 * efficiency[-1]
    return target * max(low, float(start + slope * math.log2(target)))


def mean_of_three(p: Array, y: Array, target: float) -> float:
    models = (lasting, power_law, growing)
    return math.exp(np.mean([math.log(model(p, y, target)) for model in models]))


MODELS: Mapping[str, Model] = {
    "power law through the last point": power_law,
    "power law": straight_line,
    "lasting efficiency": lasting,
    "time linear in log P, through the last point": growing,
    "geometric mean of the first, third and fourth": mean_of_three,
    "efficiency linear in log P": linear_efficiency,
    "Amdahl": amdahl,
    "universal scalability law": universal,
}


def show_models(cases: Sequence[Case]) -> None:
    """Print the error of each model."""
    print("| error of the largest point | median source | mean source | pooled |")
    print("| --- | --: | --: | --: |")
    for name, model in MODELS.items():
        errors = defaultdict(list)
        for case in cases:
            if case.is_last:
                found = model(case.devices, case.rates, case.target)
                errors[case.source].append(100 * abs(found / case.rate - 1))
        sources = [np.median(own) for own in errors.values()]
        pooled = [error for own in errors.values() for error in own]
        print(
            f"| {name} | {np.median(sources):.1f} % | {np.mean(sources):.1f} % "
            f"| {np.median(pooled):.1f} % |"
        )


def learn_misses(cases: Sequence[Case]) -> tuple[float, float]:
    """How far 95 % of the points lie below and above, per doubling; logarithms."""
    counts = Counter(case.source for case in cases)
    weights = np.array([1 / counts[case.source] for case in cases])
    missed = np.array([case.error / case.doublings for case in cases])
    order = np.argsort(missed)
    shares = np.cumsum(weights[order]) / weights.sum()
    ends = np.searchsorted(shares, [OUTSIDE / 2, 1 - OUTSIDE / 2])
    low, high = missed[order[np.minimum(ends, len(cases) - 1)]]
    return -float(low), float(high)


def by_other_sources(cases: Sequence[Case]) -> Interval:
    """The interval of `answer --at`, learned without the source of the case."""
    misses = {
        source: learn_misses([case for case in cases if case.source != source])
        for source in {case.source for case in cases}
    }

    def find(case: Case) -> tuple[float, float]:
        known = list(zip(case.devices, case.rates, strict=True))
        found = predict_by_law(known, case.target, 0.0, misses[case.source])
        low, high = found.interval or (0.0, math.inf)
        return math.log(low), math.log(high)

    return find


def by_residuals(case: Case) -> tuple[float, float] | None:
    """The textbook's interval of a power law, by its residuals."""
    p, y = case.devices, case.rates
    if len(p) < 3:
        return None
    x, z, at = np.log(p), np.log(y), math.log(case.target)
    fit = stats.linregress(x, z)
    rest = z - fit.intercept - fit.slope * x
    spread = math.sqrt(rest @ rest / (len(p) - 2))
    far = (at - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
    half = float(stats.t.ppf(1 - OUTSIDE / 2, len(p) - 2)) * spread
    half *= math.sqrt(1 + 1 / len(p) + far)
    center = fit.intercept + fit.slope * at
    return center - half, center + half


def show_intervals(cases: Sequence[Case]) -> None:
    """Print coverage, width and score of the intervals; sources count alike."""
    kinds: dict[str, Interval] = {
        "grows with log P": by_other_sources(cases),
        "by its residuals (3 points or more)": by_residuals,
    }
    print("| 95 % interval of the power law | holds | width (log) | score | points |")
    print("| --- | --: | --: | --: | --: |")
    for name, find in kinds.items():
        rows = defaultdict(list)
        for case in cases:
            if case.is_last and (ends := find(case)) is not None:
                rows[case.source].append(judge(math.log(case.rate), *ends))
        means = np.mean([np.mean(own, axis=0) for own in rows.values()], axis=0)
        count = sum(map(len, rows.values()))
        print(
            f"| {name} | {100 * means[0]:.1f} % | {means[1]:.2f} "
            f"| {means[2]:.2f} | {count} |"
        )


def judge(true: float, low: float, high: float) -> tuple[float, float, float]:
    """Whether it holds, width, and the score of Gneiting and Raftery (JASA 2007)."""
    missed = max(0.0, low - true) + max(0.0, true - high)
    return low <= true <= high, high - low, high - low + 2 / OUTSIDE * missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    beside = Path(__file__).with_name("scaling-tables.csv")
    parser.add_argument("table", nargs="?", type=Path, default=beside)
    series = read_series(parser.parse_args().table)
    sources = {one.source for one in series}
    points = sum(len(one.devices) for one in series)
    print(f"{len(series)} series, {points} points, {len(sources)} sources\n")
    cases = make_cases(series)
    show_models(cases)
    print()
    show_intervals(cases)
    below, above = learn_misses(cases)
    print(
        f"\nmisses per doubling, of all sources: {below:.3f} below, {above:.3f} above"
    )


if __name__ == "__main__":
    main()
