"""Values for the page: shared values occur once, and numbers are short."""

from __future__ import annotations

import json
import math
from typing import Any

from rankbench.results.numbers.statistics import Estimate


class Pool:
    """Distinct values and their places.

    Attributes:
        values: in order of their first appearance.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[str, int] = {}

    def add(self, value: Any) -> int:
        """The place of a value, which is added if it is new."""
        key = json.dumps(value, sort_keys=True)
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(value)
        return self._places[key]


def number(value: Any) -> float | None:
    """The value with 4 significant digits; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(f"{value:.4g}") if math.isfinite(value) else None


def value_and_ends(estimate: Estimate) -> list[float | str | None]:
    """Value, the ends of its interval, and its verdict, as far as there are any."""
    ends = (estimate.value, estimate.low, estimate.high)
    found: list[float | str | None] = [number(one) for one in ends if one is not None]
    return [*found, estimate.verdict] if estimate.verdict else found


def without_blanks(**members: Any) -> dict[str, Any]:
    """Members without blank ones, of which a page of 1,000 cells has many."""
    return {k: v for k, v in members.items() if v not in (None, "", [], {})}
