"""Brackets and means against closed forms and simulation, and the end of a warm-up."""

from __future__ import annotations

import ast
import math
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import signal, stats

import rankbench.results
from rankbench.results.numbers.launches import FEWEST_STEPS, find_warmups
from rankbench.results.numbers.result_set import read
from rankbench.results.numbers.statistics import (
    MARGIN,
    Estimate,
    Fit,
    LogRatio,
    confidence_of_each,
    find_drifting,
    geometric_mean,
    judge,
    mean,
    ratio_of_samples,
    spread,
)
from unit.synthetic import (
    PHASES,
    change_steps,
    edited,
    plan_cell,
    plan_one,
    read_rows,
    write_launch,
    write_launches,
    write_plan,
    write_rows,
    write_tables,
)

pytestmark = pytest.mark.unit

# Functions of scipy and numpy that assume a normal distribution.
NORMAL_THEORY = {
    *("ttest_ind", "ttest_rel", "ttest_1samp", "f_oneway", "sem", "tukey_hsd"),
    *("std", "var", "nanstd", "nanvar", "zscore", "pearsonr", "linregress"),
}


Values = np.ndarray


def in_rounds(values: Sequence[float], first: int = 1) -> list[tuple[int, float]]:
    return [(number, float(one)) for number, one in enumerate(values, start=first)]


def fit_of(*cells: Sequence[float]) -> Fit:
    """Cells "0", "1" and so on, in the same rounds."""
    return Fit({str(place): in_rounds(own) for place, own in enumerate(cells)})


def draw(
    rng: np.random.Generator, cells: int, rounds: int, scatter: float = 0.03
) -> Values:
    """Throughputs of equal cells on a machine whose speed walks from round to round."""
    machine = np.cumsum(0.03 * rng.normal(size=rounds))
    return 100 * np.exp(machine + scatter * rng.normal(size=(cells, rounds)))


def test_a_ratio_is_the_geometric_mean_of_the_ratios_within_rounds():
    above, below = np.random.default_rng(1).lognormal(0, 0.02, (2, 9))
    ratio = fit_of(above, below).ratio("0", "1").bracket(0.95)
    assert ratio.value == pytest.approx(stats.gmean(above / below))
    assert ratio.low is not None
    assert ratio.low < ratio.value


def test_rows_of_other_rounds_have_no_ratio():
    rates = draw(np.random.default_rng(1), 2, 12)
    for common, is_paired in ((0, False), (3, False), (4, True), (12, True)):
        first = 13 - common
        found = Fit({"0": in_rounds(rates[0]), "1": in_rounds(rates[1], first)})
        assert found.is_paired("0", "1") == is_paired
        assert (found.ratio("0", "1") is not None) == is_paired


def test_runs_are_compared_as_two_samples():
    """With many launches, the moderated scatter hardly differs from Welch's."""
    rng = np.random.default_rng(2)
    above, below = rng.lognormal(0, 0.02, 60), rng.lognormal(0, 0.05, 80)
    bracket = ratio_of_samples(above.tolist(), below.tolist()).bracket(0.95)
    welch = stats.ttest_ind(np.log(above), np.log(below), equal_var=False)
    ends = welch.confidence_interval(0.95)
    assert math.log(bracket.low or 0) == pytest.approx(ends.low, rel=0.05)
    assert math.log(bracket.high or 0) == pytest.approx(ends.high, rel=0.05)


def test_missing_launches_leave_the_others_where_they_are():
    rates = draw(np.random.default_rng(3), 4, 10, scatter=1e-4)
    rates *= np.array([[1.0], [1.1], [1.2], [1.3]])
    cells = {str(place): in_rounds(own) for place, own in enumerate(rates)}
    del cells["1"][2], cells["2"][5], cells["2"][7]
    for place, ratio in (("1", 1.1), ("2", 1.2), ("3", 1.3)):
        found = Fit(cells).ratio(place, "0").bracket(0.95)
        # A drift of the machine is no part of it.
        assert found.value == pytest.approx(ratio, rel=1e-3)
        assert found.low == pytest.approx(ratio, rel=1e-3)


def test_a_cell_may_be_launched_twice_in_a_round():
    rates = draw(np.random.default_rng(4), 3, 8)
    once = {str(place): in_rounds(own) for place, own in enumerate(rates[:2])}
    twice = {**once, "0": [*once["0"], *in_rounds(rates[2])]}
    narrow, wide = (Fit(own).ratio("1", "0") for own in (twice, once))
    assert narrow.error < wide.error


@pytest.mark.parametrize("count", [1, 3, 4, 80])
@pytest.mark.parametrize("scatter", [0.0, 1e-9, 0.08, 3.0])
def test_any_number_of_launches_and_any_scatter_has_a_ratio(count, scatter):
    rng = np.random.default_rng(count)
    sides = np.exp(scatter * rng.normal(size=(2, count)))
    fit = fit_of(2 * sides[0], sides[1])
    found = fit.ratio("0", "1").bracket(0.95)
    assert math.isfinite(found.value)
    assert (found.low is None) == (count < 4)
    assert found.low is None or found.low <= found.value
    assert found.low is not None or judge(found) == ""
    assert fit_of(*sides[:1]).disturbed == {"0": []}


@pytest.mark.parametrize("cells", [2, 8])
def test_one_disturbed_launch_is_left_out_and_hardly_widens_the_bracket(cells):
    wider = []
    for seed in range(30):
        rates = draw(np.random.default_rng(seed), cells, 8)
        before = fit_of(*rates).ratio("1", "0").error
        rates[1, 3] /= 3
        fit = fit_of(*rates)
        assert fit.disturbed["1"] == [3]
        assert sum(map(len, fit.disturbed.values())) == 1
        wider.append(fit.ratio("1", "0").error / before)
    assert np.mean(wider) < 1.5


def test_a_cell_that_is_often_slow_keeps_its_launches():
    rates = draw(np.random.default_rng(5), 4, 9)
    rates[2, [1, 3, 5, 8]] /= 3
    fit = fit_of(*rates)
    assert fit.disturbed["2"] == []
    bracket = fit.ratio("2", "0").bracket(0.95)
    assert bracket.high / bracket.low > 2


def test_a_cell_that_is_slow_more_often_than_others_keeps_its_launches():
    rates = draw(np.random.default_rng(5), 8, 20, scatter=0.01)
    rates[2, [1, 7, 13]] /= 1.6
    fit = fit_of(*rates)
    assert (fit.grouped, fit.disturbed["2"]) == ({"2"}, [])
    assert fit.ratio("2", "0").bracket(0.95).low < 0.95
    # As many slow launches are no more than its share if others have them as well.
    rates[[0, 1, 3, 4, 5, 6, 7], [2, 3, 4, 5, 6, 8, 9]] /= 1.6
    rates[[0, 1, 3, 4, 5, 6, 7], [12, 14, 15, 16, 17, 18, 19]] /= 1.6
    fit = fit_of(*rates)
    assert (fit.grouped, fit.disturbed["2"]) == (set(), [1, 7, 13])


def test_launches_in_two_groups_are_said_and_all_count():
    rates = draw(np.random.default_rng(5), 8, 8)
    assert fit_of(*rates).grouped == set()
    # A single launch may be slow by chance, and a slow round disturbs nobody.
    rates[:, 5] /= 3
    rates[2, 6] /= 1.3
    fit = fit_of(*rates)
    assert (fit.grouped, any(fit.disturbed.values())) == (set(), False)
    rates[2, [1, 4]] /= 1.3
    fit = fit_of(*rates)
    assert (fit.grouped, fit.disturbed["2"]) == ({"2"}, [])


def test_each_look_may_err_half_as_often():
    assert confidence_of_each(1, look=1) == pytest.approx(0.95)
    assert confidence_of_each(1, look=3) == pytest.approx(1 - 0.05 / 4)
    assert confidence_of_each(7, look=2) ** 7 == pytest.approx(0.975)


def test_many_rounds_cost_no_more_than_their_launches():
    rates = draw(np.random.default_rng(6), 4, 4000)
    tracemalloc.start()
    fit = fit_of(*rates)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fit.ratio("1", "0") is not None
    # The normal equations of all rounds would be 122 MiB.
    assert most < 30 * 2**20


@pytest.mark.parametrize("rounds", [8, 20])
@pytest.mark.parametrize("disturbed", [0.0, 0.05])
def test_all_brackets_of_a_table_hold_together(rounds, disturbed):
    rng, cells, tables = np.random.default_rng(7), 5, 400
    confidence = confidence_of_each(cells - 1)
    wrong = 0
    for _ in range(tables):
        rates = draw(rng, cells, rounds)
        rates /= np.where(rng.random(rates.shape) < disturbed, 3.0, 1.0)
        fit = fit_of(*rates)
        brackets = [
            fit.ratio(str(one), "0").bracket(confidence) for one in range(1, cells)
        ]
        wrong += not all(bracket.may_be(1.0) for bracket in brackets)
    # Five percent, and three standard errors of so many tables.
    assert wrong / tables <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / tables)


def test_three_scatters_are_found():
    rng, found = np.random.default_rng(8), 0
    for _ in range(100):
        rates = draw(rng, 8, 8)
        rates[1] *= math.exp(3 * 0.03)
        bracket = fit_of(*rates).ratio("1", "0").bracket(confidence_of_each(7))
        found += not bracket.may_be(1.0)
    assert found >= 95


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.99, 1.02, "="),
        (1.001, 1.02, ""),
        (1.0, 1.02, "="),
        (0.9, 1.2, "n.s."),
        (1.01, 1.2, ""),
        (0.8, 0.99, ""),
        (1 / (1 + MARGIN), 1 + MARGIN, "="),
    ],
)
def test_the_bracket_is_the_verdict(low, high, verdict):
    assert judge(Estimate((low + high) / 2, low, high)) == verdict


# --- in a table -----------------------------------------------------------------------

SINGLE, DDP = plan_cell("single"), plan_cell("ddp", "1x2")


def test_a_drift_is_told_from_chance():
    rng = np.random.default_rng(5)
    rows = {str(n): rng.lognormal(0, 0.03, 8) for n in range(20)}
    assert find_drifting(rows) == []
    rows["7"] = rows["7"] * np.linspace(1.0, 1.5, 8)
    assert find_drifting(rows) == ["7"]
    assert find_drifting({"few": [1.0, 1.1, 1.2], "same": [5.0] * 8}) == []
    steady = {str(n): rng.lognormal(0, 0.03, 8) for n in range(2000)}
    assert sum(bool(find_drifting({k: v})) for k, v in steady.items()) <= 0.06 * 2000


@pytest.mark.parametrize("alone", [None, 60])
def test_planned_launches_settle_it_mostly(alone):
    """Of both sides, or of one: those of the other side are what they are."""
    rng, settled, planned = np.random.default_rng(4), 0, 0
    for _ in range(60):
        old, new = rng.lognormal(0, 0.03, 200), rng.lognormal(-0.04, 0.03, 200)

        def ratio(count: int, new: Values = new, old: Values = old) -> LogRatio:
            sides = new[:count], old[: alone or count]
            return ratio_of_samples(*(side.tolist() for side in sides))

        count = ratio(6).launches_for(0.04, 0.95, alone=alone and 6)
        if count is not None:
            planned += 1
            settled += not ratio(count).bracket(0.95).may_be(1.0)
    assert planned >= 45
    assert settled >= 0.6 * planned


def write_rounds(root, *, drift=0.0, slow=None):
    layout = write_plan(root, [SINGLE, DDP], launches=8)
    for planned, rate in ((SINGLE, 800), (DDP, 1500)):
        for number in range(1, 9):
            machine = 1 - drift * number / 8
            machine /= 3 if planned is DDP and number == slow else 1
            place = {"round": {"seed": 1, "number": number, "position": 1}}
            own = {"rate": rate * machine, "wanted": 8, **place}
            write_launch(layout, planned, number, **own)
    return layout


def test_a_table_pairs_by_round_and_marks_a_row_that_drifts(tmp_path):
    layout = write_rounds(tmp_path, drift=0.2)
    _, ddp = read(layout).rows
    assert ddp.paired
    assert ddp.numbers["speedup"].low == pytest.approx(1500 / 800, rel=1e-3)
    write_tables(layout)
    text = layout.table("md").read_text()
    assert "ratios within rounds" in text
    assert "unpaired" not in text
    for suffix in ("csv", "md", "html", "tex"):
        assert "drifting" in layout.table(suffix).read_text()
    steady = write_rounds(tmp_path / "steady")
    write_tables(steady)
    assert "drifting" not in steady.table("csv").read_text()


def test_a_disturbed_launch_is_in_no_number_and_is_counted(tmp_path):
    layout = write_rounds(tmp_path, slow=3)
    _, ddp = read(layout).rows
    assert ddp.numbers["throughput"].value == pytest.approx(1500)
    assert len(ddp.launches) == 8
    found = write_rows(layout)
    assert "disturbed" in layout.table("md").read_text()
    assert [found[one["id"]]["disturbed"] for one in (DDP, SINGLE)] == ["1", "0"]
    assert found[DDP["id"]]["launches_ok"] == "8"


def test_nothing_but_brackets_and_steady_states_assumes_a_distribution():
    """Rule 6 of docs/method.md; brackets are simulated with other distributions."""
    allowed = {"comparison.py": {"std"}, "launches.py": {"std"}}
    allowed["statistics.py"] = {"std", "var"}
    paths = sorted(Path(rankbench.results.__file__).parent.rglob("*.py"))
    assert len(paths) > 30
    for path in paths:
        names = {
            node.attr if isinstance(node, ast.Attribute) else node.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute | ast.Name)
        }
        assert not names & NORMAL_THEORY - allowed.get(path.name, set()), path.name


# --- statistics against closed forms, known values and simulation ---------------------
def test_the_interval_of_a_mean_is_students():
    values = np.random.default_rng(1).normal(10, 1, 9)
    found = mean(values.tolist())
    theirs = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))


def test_the_mean_of_a_rate_is_one_over_that_of_its_time():
    rates = [10.0, 12.0, 9.0, 11.0, 30.0]
    rate = geometric_mean(rates)
    time = geometric_mean([1 / one for one in rates])
    assert (rate.value, rate.low, rate.high) == pytest.approx(
        (1 / time.value, 1 / time.high, 1 / time.low)
    )
    assert rate.value == pytest.approx(stats.gmean(rates))


@pytest.mark.parametrize("average", [mean, geometric_mean])
def test_four_launches_have_an_interval_and_fewer_have_none(average):
    for count in (1, 2, 3):
        assert average([1.0] * count) == Estimate(1.0)
    # Values that do not scatter are exact.
    assert average([1.0] * 4) == Estimate(1.0, 1.0, 1.0)


def test_spread_is_relative_and_robust():
    values = [98.0, 99.0, 100.0, 101.0, 102.0]
    for own in (values, [10 * value for value in values], [*values[:-1], 1e9]):
        assert spread(own) == pytest.approx(0.02)


def test_an_estimate_may_be_what_its_interval_holds():
    found = Estimate(1.0, 0.9, 1.1)
    assert [found.may_be(one) for one in (1.1, 1.2)] == [True, False]
    assert not Estimate(1.0).may_be(1.0)
    assert Estimate(2.0, 1.0, 4.0).scaled(0.5) == Estimate(1.0, 0.5, 2.0)
    assert Estimate(2.0).scaled(0.5) == Estimate(1.0)


# --- the end of the warm-up of a launch, and launches without a steady state ----------
FIXED = 10


def find_warmup(steps, fixed):
    """Of one launch."""
    (found,) = find_warmups(steps[None], fixed)
    return found


def make_steps(count=200, *, noise=0.03, correlation=0.0, seed=0, slow=()):
    """Seconds of steps: 10 ms each; `slow` has (begin, end, times as long)."""
    rng = np.random.default_rng(seed)
    independent = noise * np.sqrt(1 - correlation**2) * rng.normal(size=count)
    steps = 0.01 * np.exp(signal.lfilter([1], [1, -correlation], independent))
    for begin, end, times in slow:
        steps[begin:end] *= times
    return steps


@pytest.mark.parametrize(
    ("slow", "end"),
    [
        ([], FIXED),
        # Within the fixed one it changes nothing; a longer one is found.
        ([(0, 9, 3.0)], FIXED),
        ([(0, 30, 1.2)], 30),
        ([(0, 60, 1.2)], 60),
        ([(0, 100, 1.2)], 100),
        # With several levels it ends with the last.
        ([(0, 25, 2.0), (25, 70, 1.3)], 70),
        # A launch that slows down is steady from there.
        ([(60, 200, 1.2)], 60),
        # A level that comes late, or ends near the end, is no steady state.
        ([(0, 140, 1.2)], None),
        ([(150, 200, 1.5)], None),
    ],
)
def test_a_warmup_ends_with_its_last_level(slow, end):
    found = find_warmup(make_steps(slow=slow), FIXED)
    if end in (FIXED, None):
        assert found == end
    else:
        assert abs(found - end) <= 3


def test_single_slow_steps_and_small_changes_are_no_level():
    """Such as at the start of each epoch, or while others use the machine."""
    slow = [(begin, begin + 1, 4.0) for begin in range(0, 200, 22)]
    assert find_warmup(make_steps(slow=slow), FIXED) == FIXED
    assert find_warmup(make_steps(noise=0.01, slow=[(0, 100, 1.03)]), FIXED) == FIXED


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_noise_is_not_taken_for_a_warmup(correlation):
    """Noise may be correlated from step to step."""
    found = [
        find_warmup(make_steps(noise=0.1, correlation=correlation, seed=seed), FIXED)
        for seed in range(200)
    ]
    assert sum(one != FIXED for one in found) <= 200 * 0.05


def test_few_steps_keep_the_fixed_warmup_and_equal_ones_are_steady():
    steps = make_steps(FEWEST_STEPS - 1, slow=[(0, 20, 5.0)])
    for own in (steps, steps[:0]):
        assert find_warmup(own, FIXED) == FIXED
    for seconds in (0.01, 0.0):
        assert find_warmup(np.full(100, seconds), 0) == 0


def test_many_steps_are_judged_at_once():
    steps = make_steps(100_000, slow=[(0, 30_000, 1.2)])
    assert abs(find_warmup(steps, FIXED) - 30_000) <= 1000


def test_launches_are_judged_together_as_each_alone():
    slow = [[], [(0, 60, 1.2)], [(0, 140, 1.2)], [(0, 25, 2.0), (25, 70, 1.3)]]
    steps = np.stack([make_steps(slow=own, seed=n) for n, own in enumerate(slow)])
    assert find_warmups(steps, FIXED) == [find_warmup(own, FIXED) for own in steps]


# --- what the table says of cells that are alike, and of steps without a steady state -
@pytest.mark.parametrize(
    ("rate", "verdict"),
    [(800.0, "="), (812.0, "n.s."), (700.0, ""), (900.0, "")],
)
def test_what_is_equal_and_what_cannot_be_told_apart(tmp_path, rate, verdict):
    cells = plan_cell("single"), plan_cell("ddp")
    layout = write_plan(tmp_path, cells)
    for planned, own in zip(cells, (800, rate), strict=True):
        write_launches(layout, planned, rate=own, count=13)
    write_tables(layout)
    text = layout.table("md").read_text()
    # The names omit the model and data that both cells share.
    row = next(s for s in text.splitlines() if s.startswith("| ddp "))
    explained = {"=": "the bracket is within 3%", "n.s.": "the bracket includes 1"}
    for word, said in explained.items():
        assert (f"] {word} |" in row) == (said in text) == (word == verdict)


def write_unsteady(layout, planned, launch):
    """Steps that take twice as long in the last quarter."""
    steps = np.full((100, len(PHASES)), 0.01)
    steps[75:] *= 2
    changes = {"steps": 100, "warmup": 0, "samples": 6400}
    place = write_launch(layout, planned, launch, **changes)
    members = {"rank0_seconds": steps, "rank0_warmup": steps[:0]}
    change_steps(place, **members, rank0_loss=np.ones(100))
    with edited(place / "record.json") as record:
        record["ranks"][0]["window_s"] = float(steps.sum())


@pytest.mark.parametrize(("unsteady", "marked"), [(0, False), (1, True), (6, True)])
def test_no_steady_state_is_said(tmp_path, unsteady, marked):
    layout, planned = plan_one(tmp_path, "single")
    for launch in range(1, 7):
        write = write_unsteady if launch <= unsteady else write_launch
        write(layout, planned, launch)
    write_tables(layout)
    assert f"{6 - unsteady}/6" in layout.section("diagnostics").read_text()
    assert ("still changed their level" in layout.table("md").read_text()) == marked
    (row,) = read_rows(layout)
    assert ("no-steady-state" in row["marks"]) == marked
