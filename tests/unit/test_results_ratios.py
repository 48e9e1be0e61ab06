"""Ratios of rows: paired by round, with an interval and a verdict."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from rankbench.results.numbers.ratios import find_ratio, judge_ratios
from rankbench.results.numbers.summary import summarise
from rankbench.results.read.rows import load
from unit.synthetic import make_cell, plan_cell, write_launch, write_plan, write_tables

pytestmark = pytest.mark.unit

Values = np.ndarray


def by_round(values: Values, first: int = 1) -> dict[int, float]:
    return {number: float(v) for number, v in enumerate(values, start=first)}


def test_a_drift_of_the_machine_is_no_part_of_a_paired_ratio() -> None:
    machine = np.linspace(1.0, 0.5, 12)
    found = find_ratio(by_round(2 * machine), by_round(machine), confidence=0.95)
    assert found.paired
    assert found.estimate.value == pytest.approx(2.0)
    assert found.estimate.low == pytest.approx(2.0)
    unpaired = find_ratio(
        by_round(2 * machine), by_round(machine, 100), confidence=0.95
    )
    assert not unpaired.paired
    assert unpaired.estimate.low is not None
    assert unpaired.estimate.low < 1.7


def test_launches_that_failed_drop_out_of_the_pairs() -> None:
    above, below = by_round(np.arange(2.0, 10.0)), by_round(np.ones(8))
    del above[2], below[5]
    found = find_ratio(above, below, confidence=0.95)
    assert found.paired
    assert found.estimate.value == pytest.approx(6.0)
    assert found.different == pytest.approx(2 / 2**6)


def test_too_few_common_rounds_are_no_pairs() -> None:
    above, below = by_round(np.ones(8)), by_round(np.ones(8), first=4)
    assert not find_ratio(above, below, confidence=0.95).paired
    below = by_round(np.ones(8), first=3)
    assert find_ratio(above, below, confidence=0.95).paired


def test_few_launches_are_paired_without_an_interval() -> None:
    found = find_ratio(by_round(np.full(3, 2.0)), by_round(np.ones(3)), confidence=0.95)
    assert found.paired
    assert found.estimate.value == pytest.approx(2.0)
    assert found.estimate.interval is None
    assert found.different is None


def test_a_factor_scales_the_ratio() -> None:
    rng = np.random.default_rng(1)
    above, below = by_round(rng.lognormal(size=9)), by_round(rng.lognormal(size=9))
    one = find_ratio(above, below, confidence=0.95).estimate
    half = find_ratio(above, below, factor=0.5, confidence=0.95).estimate
    assert half.value == pytest.approx(one.value / 2)
    assert half.low == pytest.approx(one.low / 2)


@pytest.mark.parametrize("count", [6, 7, 9, 14, 25])
def test_interval_and_test_are_those_of_the_signs(count: int) -> None:
    rng = np.random.default_rng(count)
    below = by_round(np.ones(count))
    for shift in np.linspace(0, 0.08, 12):
        ratios = np.exp(shift + 0.05 * rng.normal(size=count))
        found = find_ratio(by_round(ratios), below, confidence=0.95)
        theirs = stats.binomtest(int((ratios > 1).sum()), count).pvalue
        assert found.different == pytest.approx(theirs)
        assert found.estimate.may_be(1.0) == (theirs > 0.05)
        assert found.estimate.value == pytest.approx(np.median(ratios))


def test_ratios_of_exactly_one_speak_for_neither_side() -> None:
    found = find_ratio(by_round(np.ones(10)), by_round(np.ones(10)), confidence=0.95)
    assert found.different == 1.0
    assert found.equal == pytest.approx(1 / 2**10)


SHAPES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Values]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape) - np.log(2),
    "bimodal": lambda rng, shape: (
        0.3 * rng.normal(size=shape) + np.where(rng.random(shape) < 0.5, -1, 1)
    ),
    "heavy": lambda rng, shape: rng.standard_t(3, size=shape),
}


@pytest.mark.parametrize("count", [6, 10])
@pytest.mark.parametrize("other", ["normal", "bimodal"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_paired_interval_covers_the_ratio(
    shape: str, other: str, count: int
) -> None:
    rng = np.random.default_rng(7)
    size = (1500, count)
    above = np.exp(0.03 * SHAPES[shape](rng, size))
    below = np.exp(0.01 * SHAPES[other](rng, size))
    many = (400_000,)
    truth = np.median(
        np.exp(0.03 * SHAPES[shape](rng, many) - 0.01 * SHAPES[other](rng, many))
    )
    hits = 0
    for a, b in zip(above, below, strict=True):
        estimate = find_ratio(by_round(a), by_round(b), confidence=0.95).estimate
        hits += estimate.may_be(float(truth))
    assert hits / 1500 >= 0.94


def test_equal_and_untold_are_two_things() -> None:
    rng = np.random.default_rng(2)

    def ratio(center: float, scatter: float):
        above = by_round(center * np.exp(scatter * rng.normal(size=10)))
        return find_ratio(above, by_round(np.ones(10)), confidence=0.95)

    found = judge_ratios(
        {
            "equal": ratio(1.001, 0.002),
            "untold": ratio(1.0, 0.2),
            "different": ratio(1.5, 0.02),
            "different and small": ratio(1.01, 0.001),
        }
    )
    assert found == {
        "equal": "=",
        "untold": "n.s.",
        "different": "",
        "different and small": "=",
    }


def test_verdicts_are_corrected_for_the_number_of_rows() -> None:
    rng = np.random.default_rng(4)
    lone = find_ratio(
        by_round(np.exp(0.01 + 0.1 * np.abs(rng.normal(size=6)))),
        by_round(np.ones(6)),
        confidence=0.95,
    )
    assert lone.different == pytest.approx(2 / 64)
    assert judge_ratios({"lone": lone}) == {"lone": ""}
    nothing = {
        str(number): find_ratio(
            by_round(np.exp(0.2 * rng.normal(size=6))),
            by_round(np.ones(6)),
            confidence=0.95,
        )
        for number in range(8)
    }
    assert judge_ratios({"lone": lone, **nothing})["lone"] == "n.s."


# --- in a table -----------------------------------------------------------------------

SINGLE, DDP = plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))


def write_rounds(tmp_path, *, seeds=(1, 1), drift=0.0, count=8):
    layout = write_plan(tmp_path, [SINGLE, DDP], launches=count)
    for planned, seed, rate in zip((SINGLE, DDP), seeds, (800, 1500), strict=True):
        for number in range(1, count + 1):
            machine = 1 - drift * number / count
            place = {"seed": seed, "number": number, "position": 1}
            write_launch(
                layout, planned, number, rate=rate * machine, wanted=count, round=place
            )
    return layout


def test_a_table_pairs_by_round_and_says_so(tmp_path) -> None:
    layout = write_rounds(tmp_path, drift=0.2)
    _, ddp = summarise(load(layout))
    assert ddp.paired
    assert ddp.numbers["speedup"].low == pytest.approx(1500 / 800)
    write_tables(layout)
    text = layout.table("md").read_text()
    assert "the ratio within each round" in text
    assert "unpaired" not in text


def test_rows_of_other_rounds_are_unpaired_and_say_so(tmp_path) -> None:
    layout = write_rounds(tmp_path, seeds=(1, 2))
    _, ddp = summarise(load(layout))
    assert ddp.paired is False
    assert "unpaired" in ddp.marks


def test_a_drifting_row_is_marked_in_every_output(tmp_path) -> None:
    layout = write_rounds(tmp_path, drift=0.2)
    write_tables(layout)
    for suffix in ("csv", "md", "html", "tex"):
        assert "drifting" in layout.table(suffix).read_text()
    steady = write_rounds(tmp_path / "steady")
    write_tables(steady)
    assert "drifting" not in steady.table("csv").read_text()
