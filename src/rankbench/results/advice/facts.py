"""Numbers of an answer as JSON values."""

from __future__ import annotations

from typing import Any

from rankbench.results.numbers.statistics import Estimate

Facts = dict[str, Any]


def to_json(number: Estimate) -> Facts:
    """An estimate with 4 significant digits, as all files show it."""
    ends = {"value": number.value, "low": number.low, "high": number.high}
    return {name: None if v is None else round_off(v) for name, v in ends.items()}


def from_json(facts: Facts) -> Estimate:
    """What `to_json` was made of, with 4 significant digits."""
    return Estimate(facts["value"], facts["low"], facts["high"])


def round_off(value: float) -> float:
    return float(f"{value:.4g}")
