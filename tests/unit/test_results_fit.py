"""Ratios of cells: the bracket, what it leaves out, and that it is the verdict."""

from __future__ import annotations

import ast
import math
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import rankbench.results
from rankbench.results.numbers.result_set import read
from rankbench.results.numbers.statistics import (
    MARGIN,
    Estimate,
    Fit,
    LogRatio,
    confidence_of_each,
    find_drifting,
    judge,
    ratio_of_samples,
)
from unit.synthetic import (
    make_cell,
    plan_cell,
    write_launch,
    write_plan,
    write_rows,
    write_tables,
)

# Functions of scipy and numpy that assume a normal distribution.
NORMAL_THEORY = {
    *("ttest_ind", "ttest_rel", "ttest_1samp", "f_oneway", "sem", "tukey_hsd"),
    *("std", "var", "nanstd", "nanvar", "zscore", "pearsonr", "linregress"),
}

pytestmark = pytest.mark.unit

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


def test_a_drift_of_the_machine_is_no_part_of_a_ratio():
    machine = np.linspace(1.0, 0.5, 12)
    paired = fit_of(2 * machine, machine)
    assert paired.is_paired("0", "1")
    assert paired.ratio("0", "1").bracket(0.95).low == pytest.approx(2.0, rel=1e-3)


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
        assert found.value == pytest.approx(ratio, rel=1e-3)


def test_a_cell_may_be_launched_twice_in_a_round():
    rates = draw(np.random.default_rng(4), 3, 8)
    once = {str(place): in_rounds(own) for place, own in enumerate(rates[:2])}
    twice = {**once, "0": [*once["0"], *in_rounds(rates[2])]}
    narrow, wide = (Fit(own).ratio("1", "0") for own in (twice, once))
    assert narrow.error < wide.error


@pytest.mark.parametrize("count", [1, 4, 80])
@pytest.mark.parametrize("scatter", [0.0, 1e-9, 0.08, 3.0])
def test_any_number_of_launches_and_any_scatter_has_a_ratio(count, scatter):
    rng = np.random.default_rng(count)
    sides = np.exp(scatter * rng.normal(size=(2, count)))
    found = fit_of(2 * sides[0], sides[1]).ratio("0", "1").bracket(0.95)
    assert math.isfinite(found.value)
    assert (found.low is None) == (count < 4)
    assert found.low is None or found.low <= found.value


def test_three_launches_have_no_bracket():
    found = fit_of([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]).ratio("0", "1").bracket(0.95)
    assert found == Estimate(pytest.approx(2.0))
    assert judge(found) == ""


def test_a_single_cell_has_a_fit():
    assert fit_of([1.0]).disturbed == {"0": []}


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
    assert bracket.low is not None
    assert bracket.high is not None
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
    rates[2, [1, 4, 6]] /= 1.3
    fit = fit_of(*rates)
    assert (fit.grouped, fit.disturbed["2"]) == ({"2"}, [])
    # A single launch may be slow by chance.
    rates[2, [1, 4]] *= 1.3
    assert fit_of(*rates).grouped == set()


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


def test_a_slow_round_disturbs_nobody():
    rates = draw(np.random.default_rng(6), 6, 8)
    rates[:, 4] /= 3
    assert not any(fit_of(*rates).disturbed.values())


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
    for _ in range(200):
        rates = draw(rng, 8, 8)
        rates[1] *= math.exp(3 * 0.03)
        bracket = fit_of(*rates).ratio("1", "0").bracket(confidence_of_each(7))
        found += not bracket.may_be(1.0)
    assert found >= 190


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

SINGLE, DDP = plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))


def test_a_drift_is_told_from_chance():
    rng = np.random.default_rng(5)
    rows = {str(n): rng.lognormal(0, 0.03, 8) for n in range(20)}
    assert find_drifting(rows) == []
    rows["7"] = rows["7"] * np.linspace(1.0, 1.5, 8)
    assert find_drifting(rows) == ["7"]
    assert find_drifting({"few": [1.0, 1.1, 1.2], "same": [5.0] * 8}) == []
    steady = {str(n): rng.lognormal(0, 0.03, 8) for n in range(2000)}
    assert sum(bool(find_drifting({k: v})) for k, v in steady.items()) <= 0.06 * 2000


def test_planned_launches_of_one_side_settle_it_mostly():
    """As `accept` plans them: those of the other side are what they are."""
    rng, settled, planned = np.random.default_rng(4), 0, 0
    for _ in range(60):
        old, new = rng.lognormal(0, 0.03, 60), rng.lognormal(-0.04, 0.03, 200)

        def ratio(count: int, new: Values = new, old: Values = old) -> LogRatio:
            return ratio_of_samples(new[:count].tolist(), old.tolist())

        count = ratio(6).launches_for(0.04, 0.95, alone=6)
        if count is not None:
            planned += 1
            settled += not ratio(count).bracket(0.95).may_be(1.0)
    assert planned >= 50
    assert settled >= 0.6 * planned


def write_rounds(tmp_path, *, seeds=(1, 1), drift=0.0, count=8, slow=()):
    layout = write_plan(tmp_path, [SINGLE, DDP], launches=count)
    for planned, seed, rate in zip((SINGLE, DDP), seeds, (800, 1500), strict=True):
        for number in range(1, count + 1):
            machine = 1 - drift * number / count
            if (planned, number) in [(DDP, n) for n in slow]:
                machine /= 3
            place = {"seed": seed, "number": number, "position": 1}
            write_launch(
                layout, planned, number, rate=rate * machine, wanted=count, round=place
            )
    return layout


def test_a_table_pairs_by_round_and_says_so(tmp_path):
    layout = write_rounds(tmp_path, drift=0.2)
    _, ddp = read(layout).rows
    assert ddp.paired
    assert ddp.numbers["speedup"].low == pytest.approx(1500 / 800, rel=1e-3)
    write_tables(layout)
    text = layout.table("md").read_text()
    assert "ratios within rounds" in text
    assert "unpaired" not in text


def test_a_drifting_row_is_marked_in_every_output(tmp_path):
    layout = write_rounds(tmp_path, drift=0.2)
    write_tables(layout)
    for suffix in ("csv", "md", "html", "tex"):
        assert "drifting" in layout.table(suffix).read_text()
    steady = write_rounds(tmp_path / "steady")
    write_tables(steady)
    assert "drifting" not in steady.table("csv").read_text()


def test_a_disturbed_launch_is_in_no_number_and_is_counted(tmp_path):
    layout = write_rounds(tmp_path, slow=[3])
    _, ddp = read(layout).rows
    assert ddp.numbers["throughput"].value == pytest.approx(1500)
    assert len(ddp.launches) == 8
    found = write_rows(layout)
    assert "disturbed" in layout.table("md").read_text()
    assert [found[one["id"]]["disturbed"] for one in (DDP, SINGLE)] == ["1", "0"]
    assert found[DDP["id"]]["launches_ok"] == "8"


def test_nothing_but_brackets_and_steady_states_assumes_a_distribution():
    """Rule 6 of docs/method.md; brackets are simulated with other distributions."""
    allowed = {
        "comparison.py": {"std"},
        "statistics.py": {"std", "var"},
        "launches.py": {"std"},
    }
    paths = sorted(Path(rankbench.results.__file__).parent.rglob("*.py"))
    assert len(paths) > 30
    for path in paths:
        names = {
            node.attr if isinstance(node, ast.Attribute) else node.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute | ast.Name)
        }
        assert not names & NORMAL_THEORY - allowed.get(path.name, set()), path.name
