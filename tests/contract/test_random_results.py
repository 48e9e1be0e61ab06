"""Random tables and answers: nothing that is said contradicts what is printed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rankbench.cell import Cell
from rankbench.record import Layout
from rankbench.results.advice.answer import (
    Answer,
    Scaling,
    Workload,
    choose_unit,
    device_hours,
    find_answer,
)
from rankbench.results.advice.choice import APART, EQUAL, FEW, UNTOLD, Choice
from rankbench.results.elements.text import show_estimate
from rankbench.results.numbers.launches import make_frame
from rankbench.results.numbers.result_set import (
    ResultSet,
    Summary,
    compare_rows,
    read,
)
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.render.formats import to_csv
from rankbench.results.sections import load_sections
from rankbench.results.sections.answer import COLUMNS, LINES, in_brief, to_lines
from unit.synthetic import make_cell, plan_cell, write_launch, write_plan

pytestmark = pytest.mark.contract

PRINTED = re.compile(r"(\S+) \[(\S+), (\S+)\](?: (=|n\.s\.))?")
SAME, OPEN = "=", "n.s."
TERMS = ["WHAT", "BEST", "BUT", "UNTESTED", "LOST", "SCALES", "COST", "TRUST", "NEXT"]
TOPOLOGIES = ("1x1", "1x2", "1x4", "2x4", "4x4", "8x4")
TIMES = ("step_ms", "epoch_s", "total_s", "steps_s")
TIMES += ("input", "computation", "waiting", "exchange", "host")
MODEL = {"model": "gpt", "data": "tokens", "context": 128}

Rows = Mapping[str, Mapping[str, str]]


class Writer:
    """Makes results in memory, of launches that were written and measured once."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self._known: dict[str, pd.Series] = {}
        for topology in TOPOLOGIES:
            planned = plan_cell("single", topology)
            layout = write_plan(root / topology, [planned], launches=1)
            write_launch(layout, planned, 1, wanted=1, rate=800.0)
            (row,) = read(layout).rows
            self._known[topology] = row.launches.iloc[0]

    def make_row(self, cell: Cell, name: str, rates: Sequence[float | None]) -> Summary:
        """A row with launches of these samples/s, in rounds; None: it has failed."""
        known = self._known[cell.topology]
        failed = None in rates
        launches = []
        for number, rate in enumerate([] if failed else rates, start=1):
            share = known["throughput"] / rate
            times = {column: share * known[column] for column in TIMES}
            rate *= cell.units_per_sample
            turn = (1, number)
            launches.append({**known, **times, "throughput": rate, "turn": turn})
        return Summary(
            id=name,
            cell=cell,
            status="crashed" if failed else "ok",
            reason="rank 1 ended by SIGSEGV" if failed else None,
            ok=len(rates) - rates.count(None),
            wanted=len(rates),
            attempt=1,
            launches=make_frame(launches),
        )

    def read(self, rows: Sequence[Summary]) -> ResultSet:
        rows = compare_rows(rows)
        return ResultSet(experiment="random", rows=rows, layout=self.layout)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def scatter(
    rng: np.random.Generator, center: float, width: float, count: int
) -> list[float | None]:
    """Rates of launches, of which one in twenty was disturbed."""
    slow = np.where(rng.random(count) < 0.05, 4.0, 1.0)
    rates = center * np.exp(width * rng.normal(size=count)) / slow
    return [float(one) for one in rates]


def test_verdict_and_printed_bracket_of_1000_tables_never_contradict(writer):
    rng, judged = np.random.default_rng(32), {"": 0, SAME: 0, OPEN: 0}
    keys = [("single", "1x1"), *(("ddp", f"1x{n}") for n in (1, 2, 4))]
    cells = [make_cell(*key) for key in keys]
    for _ in range(1000):
        rows = []
        for cell in cells[: rng.integers(2, 5)]:
            share = rng.choice([0.7, 0.97, 1, 1.01, 1.03])
            width = float(rng.choice([0.0005, 0.003, 0.02, 0.1]))
            center, count = 800 * cell.size.devices * share, int(rng.integers(1, 9))
            name = f"{cell.strategy}.{cell.topology}"
            row = writer.make_row(cell, name, scatter(rng, center, width, count))
            rows.append(row)
        for one in writer.read(rows).rows:
            # Without a round in common there is no ratio.
            for name in {"speedup", "efficiency"} & one.numbers.keys():
                text = str(show_estimate(one.numbers[name]))
                found = PRINTED.fullmatch(text)
                if found is None:
                    assert one.numbers[name].low is None, text
                    continue
                value, low, high = map(float, found.groups()[:3])
                verdict = found[4] or ""
                judged[verdict] += 1
                within = 1 / 1.03 <= low <= 1 <= high <= 1.03
                assert (verdict == SAME) == within, text
                if not within:
                    assert (verdict == OPEN) == (low <= 1 <= high), text
                assert low <= value <= high, text
    assert min(judged.values()) > 50, judged


def make_random(writer: Writer, seed: int) -> ResultSet:
    """Rows of any number, speed and scatter, some of them disturbed, few or failed."""
    rng = np.random.default_rng(seed)
    keys = [("single", "1x1")] if rng.random() < 0.9 else []
    for strategy in rng.permutation(["ddp", "fsdp", "zero1", "mp"])[: rng.integers(5)]:
        count = rng.integers(1, len(TOPOLOGIES) + 1)
        keys += [(str(strategy), one) for one in TOPOLOGIES[-count:]]
    settings = MODEL if rng.random() < 0.2 else {}
    settings = {**settings, "scaling": str(rng.choice(["weak", "strong"]))}
    count = int(rng.choice([1, 3, 8]))
    rows = []
    for number in range(int(rng.choice([1, 1, 1, 2, 9]))):
        for strategy, topology in keys:
            cell = make_cell(strategy, topology, image_size=number + 8, **settings)
            speed = 800 * cell.size.devices ** rng.uniform(0.3, 1.05)
            center = speed * rng.choice([0.99, 1.0, 1.3])
            width = float(rng.choice([0.002, 0.03, 0.3]))
            rates = scatter(rng, center, width, count)
            if rng.random() < 0.05:
                rates[-1] = None
            name = f"{strategy}.x.{topology}.{number}"
            rows.append(writer.make_row(cell, name, rates))
    return writer.read(rows)


def read_section(found: ResultSet, name: str) -> Rows:
    """The CSV file of a section, by cell; `scaling` has what plots of the cost show."""
    section = load_sections()[name]
    text = to_csv(section.frame(section.make(found)))
    return {row["cell"]: row for row in csv.DictReader(io.StringIO(text))}


def number_of(row: Mapping[str, str], name: str, factor: float = 1.0) -> Estimate:
    value, low, high = (row.get(f"{name}{end}", "") for end in ("", "_lo", "_hi"))
    ends = [float(one) if one else None for one in (low, high)]
    return Estimate(float(value), *ends).scaled(factor)


def shown(row: Mapping[str, str], name: str) -> str:
    return str(show_estimate(number_of(row, name)))


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(seed, marks=pytest.mark.further) if seed >= 60 else seed
        for seed in range(0, 200, 20)
    ],
)
def test_no_statement_of_200_random_answers_contradicts_its_table(writer, first):
    for seed in range(first, first + 20):
        found = make_random(writer, seed)
        answer = find_answer(found)
        notes = in_brief(answer)
        lines = to_lines(notes)
        assert len(lines) <= LINES, lines
        assert max(map(len, lines), default=0) <= COLUMNS, lines
        assert not any("..." in line for line in lines)
        table, drawn = read_section(found, "table"), read_section(found, "scaling")
        for facts in answer.workloads:
            check_values(facts, table, drawn, answer)
        if len(answer.workloads) == 1:
            said = {one.term: one.text.split("\n") for one in notes}
            assert list(said) == [term for term in TERMS if term in said]
            check_words(answer.workloads[0], said, table)


def check_values(facts: Workload, table: Rows, drawn: Rows, answer: Answer) -> None:
    """Each number is that of the table or the plot."""
    ok = {name: row for name, row in table.items() if row["status"] == "ok"}
    if facts.fastest is None:
        assert len(facts.rows) < 2
        return
    check_rivals(facts.fastest, answer.margin)
    for cell, summary in facts.rows.items():
        hours = float(drawn[cell]["device_hours"])
        assert device_hours(summary).value == pytest.approx(hours, rel=1e-3)
    for series in facts.scaling:
        check_scaling(series, ok, answer.efficiency)
    if lost := facts.lost:
        assert lost.step == pytest.approx(float(ok[lost.cell]["step_ms"]), rel=1e-3)
        parts = sum(part.value for part in lost.parts.values())
        near = {"rel": 0.02, "abs": 0.002 * lost.step}
        assert parts == pytest.approx(lost.lost.value, **near)
    for row in (row for one in facts.next for row in one.cells):
        assert row["launches"] - row["more"] == int(ok[row["cell"]]["launches_ok"])
        assert row["more"] > 0


def same(one: Estimate, other: Estimate) -> bool:
    """Whether two estimates have the same ends, with as many digits as a table."""
    pairs = zip(one.to_json().values(), other.to_json().values(), strict=True)
    return all(
        (a is None) == (b is None) and (a is None or a == pytest.approx(b, rel=2e-3))
        for a, b in pairs
    )


def check_rivals(fastest: Choice, margin: float) -> None:
    """No rival is faster for certain; who may be much faster forbids a verdict."""
    verdicts = {one.cell: one.verdict for one in fastest.rivals}
    for one in fastest.rivals:
        if one.verdict in (FEW, APART):
            assert one.ratio is None or one.ratio.low is None
            continue
        low, high = printed(one.ratio)
        equal = 1 / (1 + margin) <= low <= 1 <= high <= 1 + margin
        assert (one.verdict == EQUAL) == equal, one
        assert equal or (one.verdict == UNTOLD) == (low <= 1 <= high), one
        assert low <= 1
    if fastest.recommended != fastest.cell:
        assert verdicts[fastest.recommended] == EQUAL


def printed(ratio: Estimate) -> list[float]:
    """The ends of a bracket as they are printed."""
    found = PRINTED.fullmatch(str(show_estimate(ratio)))
    assert found
    return [float(end) for end in found.groups()[1:3]]


def check_scaling(series: Scaling, ok: Rows, wanted: float) -> None:
    for row in series.cells:
        assert same(row.numbers["efficiency"], number_of(ok[row.id], "efficiency"))
    several = [row for row in series.cells if row.devices > 1]
    end = several.index(series.end) if series.end else len(several)
    assert series.largest is (several[end - 1] if end else None)
    for row in several[:end]:
        assert printed(row.numbers["efficiency"])[0] > wanted
    if series.end and series.is_below:
        assert printed(series.end.numbers["efficiency"])[1] < wanted


def check_words(facts: Workload, said: Mapping[str, Sequence[str]], ok: Rows) -> None:
    """The lines say what the values are, as the table prints them."""
    text = {term: " ".join(lines) for term, lines in said.items()}
    for lines in said.values():
        for line in lines:
            assert len(PRINTED.findall(line)) <= 2, line
    if facts.undecided:
        assert text["BEST"].startswith("cannot be told: ")
        assert not {"BUT", "LOST", "SCALES", "COST"} & text.keys()
        return
    assert facts.best
    best = facts.best.id
    rate = f"{shown(ok[best], 'throughput')} {facts.unit}"
    assert text["BEST"].startswith(f"{facts.names[best]}: {rate}")
    if facts.base and facts.base is not facts.best:
        speedup = str(show_estimate(number_of(ok[best], "speedup")))
        assert f", {speedup} times {facts.names[facts.base.id]}" in text["BEST"]
    if "LOST" in text:
        assert facts.lost
        assert f"of {facts.lost.step:.3g} ms a step" in text["LOST"]
    if "BUT" in text and (found := re.search(r"(\d+) samples a step", text["BUT"])):
        assert int(found[1]) == int(ok[best]["global_batch"])
    if "COST" in text:
        assert facts.cheapest
        factor, unit = choose_unit(device_hours(facts.rows[facts.cheapest.cell]))
        cost = show_estimate(device_hours(facts.best).scaled(factor))
        assert text["COST"].startswith(f"{cost} device-{unit} per million ")
