"""Predictions as JSON values and as sentences."""

from __future__ import annotations

from collections.abc import Sequence

from rankbench.results.advice.facts import Facts, round_off, to_json
from rankbench.results.elements.text import Note
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.prediction.predict import Prediction

NUMBERS = ("throughput", "step_ms", "efficiency", "memory_mib", "hours", "cost")

_MILLION = 1e6


def in_numbers(one: Prediction, price: tuple[float, str] | None) -> dict[str, Estimate]:
    """The predicted numbers by name; none if the prediction is refused.

    Args:
        price: of a device-hour, and its currency.

    Returns:
        Those of `Prediction`; `hours` are device-hours of a million samples or tokens,
        `cost` is their price, in the currency.
    """
    if one.throughput is None:
        return {}
    devices = one.target.topology.devices

    def hours(rate: float) -> float:
        return devices * _MILLION / rate / 3600

    low, high = one.throughput.interval or (one.throughput.value,) * 2
    found = {
        "throughput": one.throughput,
        "step_ms": one.step_ms,
        "efficiency": one.efficiency,
        "memory_mib": one.memory_mib,
        "hours": Estimate(hours(one.throughput.value), hours(high), hours(low)),
    }
    if price is not None:
        found["cost"] = found["hours"].scaled(price[0]) if found["hours"] else None
    return {name: number for name, number in found.items() if number is not None}


def describe(
    predictions: Sequence[Prediction], price: tuple[float, str] | None
) -> list[Facts]:
    """Each prediction as JSON values; `refused` is null where there are numbers."""
    return [
        {
            "cell": one.target.id,
            "topology": one.target.cell.topology,
            "devices": one.target.topology.devices,
            **_unit(one),
            "refused": one.refused,
            "method": one.method or None,
            "why_totals": one.why,
            "fitted": [summary.row.id for summary in one.fitted],
            "doublings": round_off(one.doublings),
            **{
                name: to_json(number) for name, number in in_numbers(one, price).items()
            },
            "currency": price[1] if price else None,
        }
        for one in predictions
    ]


def _unit(one: Prediction) -> Facts:
    """What its throughput counts, unless it is samples."""
    unit = one.target.cell.unit
    return {} if unit == "samples" else {"unit": f"{unit}/s"}


def in_sentences(predictions: Sequence[Prediction]) -> list[Note]:
    """What predictions rest on; then for each reason what is not predicted."""
    alike: dict[tuple[str, str], list[Prediction]] = {}
    for one in predictions:
        term = "not predicted" if one.refused else "predicted"
        alike.setdefault((term, one.refused or _rests_on(one)), []).append(one)
    found = sorted(alike.items(), key=lambda item: item[0][0], reverse=True)
    return [
        Note(term, f"{', '.join(_name(one) for one in own)}: {text}.")
        for (term, text), own in found
    ]


def _name(one: Prediction) -> str:
    if one.refused:
        return one.target.id
    return f"{one.target.id} ({2**one.doublings:.3g} times the devices)"


def _rests_on(one: Prediction) -> str:
    rows = ", ".join(summary.row.id for summary in one.fitted)
    if one.why is None:
        return f"from what the steps of {rows} are made of"
    return f"from the throughput of {rows} alone, because {one.why}"
