"""Random tables and answers: nothing that is said contradicts what is printed."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankbench.cell import Cell
from rankbench.record import Layout
from rankbench.results.advice.answer import find_answer
from rankbench.results.advice.choice import EQUAL, FEW, UNTOLD
from rankbench.results.advice.words import COLUMNS, LINES, in_brief, to_lines
from rankbench.results.elements.text import show_estimate
from rankbench.results.numbers import fit, summary
from rankbench.results.numbers.measures import Measures, measure
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.read.launches import Launch
from rankbench.results.read.rows import Results, Row, load
from rankbench.results.render.files import to_csv
from rankbench.results.sections import load_sections
from unit.synthetic import make_cell, plan_cell, write_launch, write_plan

pytestmark = pytest.mark.contract

# What a table prints: a value, its bracket and its verdict.
PRINTED = re.compile(r"(\S+) \[(\S+), (\S+)\](?: (=|n\.s\.))?")
TERMS = ["WHAT", "USE", "SCALES", "LIMIT", "COST", "LEARNS", "TRUST", "NEXT"]
TOPOLOGIES = ("1x1", "1x2", "1x4", "2x4", "4x4", "8x4")
MODEL = {"model": "gpt", "data": "tokens", "context": 128}

Rows = Mapping[str, Mapping[str, str]]


class Writer:
    """Makes results in memory, of launches that were written and measured once."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layout = Layout(root)
        self._known: dict[str, tuple[Launch, Measures]] = {}
        for topology in TOPOLOGIES:
            planned = plan_cell(make_cell("single", topology))
            layout = write_plan(root / topology, [planned], launches=1)
            write_launch(layout, planned, 1, wanted=1, rate=800.0)
            (row,) = load(layout).rows
            self._known[topology] = row.launches[0], measure(row.launches[0])
        # test_results_measures.py tests how a launch is measured.
        monkeypatch.setattr(summary, "measure", self._measure)

    def make_row(self, cell: Cell, name: str, rates: Sequence[float | None]) -> Row:
        """A row with launches of these samples/s, in rounds; None: it has failed."""
        known, _ = self._known[cell.topology]
        launches = [
            Launch(
                Path(str(number)),
                known.record
                | {"rate": rate, "round": {"seed": 1, "number": number, "position": 1}},
            )
            for number, rate in enumerate(rates, start=1)
            if rate is not None
        ]
        failed = len(launches) < len(rates)
        return Row(
            id=name,
            cell=cell,
            status="crashed" if failed else "ok",
            reason="rank 1 ended by SIGSEGV" if failed else None,
            marks=(),
            ok=len(launches),
            wanted=len(rates),
            attempt=1,
            launches=() if failed else tuple(launches),
        )

    def read(self, rows: Sequence[Row]) -> ResultSet:
        results = Results("random", tuple(rows))
        rows = summary.summarise(results)
        return ResultSet("random", rows=rows, layout=self.layout)

    def _measure(self, launch: Launch, units: int = 1) -> Measures:
        ranks = len(launch.record["ranks"])
        known = {len(one.record["ranks"]): own for one, own in self._known.values()}
        template = known[ranks]
        share = template.throughput / launch.record["rate"]
        parts = {
            one.name: share * getattr(template.parts, one.name)
            for one in fields(template.parts)
            if one.type == "float"
        }
        return replace(
            template,
            launch=launch,
            throughput=units * launch.record["rate"],
            step_ms=share * template.step_ms,
            epoch_s=share * template.epoch_s,
            total_s=share * template.total_s,
            steps_s=share * template.steps_s,
            parts=replace(template.parts, **parts),
        )


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    return Writer(tmp_path, monkeypatch)


def scatter(
    rng: np.random.Generator, center: float, width: float, count: int
) -> list[float | None]:
    """Rates of launches, of which one in twenty was disturbed."""
    slow = np.where(rng.random(count) < 0.05, 4.0, 1.0)
    rates = center * np.exp(width * rng.normal(size=count)) / slow
    return [float(one) for one in rates]


def test_verdict_and_printed_bracket_of_1000_tables_never_contradict(writer):
    rng, judged = np.random.default_rng(32), {"": 0, fit.EQUAL: 0, fit.UNTOLD: 0}
    keys = [("single", "1x1"), *(("ddp", f"1x{n}") for n in (1, 2, 4))]
    cells = [make_cell(*key) for key in keys]
    for _ in range(1000):
        rows = [
            writer.make_row(
                cell,
                f"{cell.strategy}.{cell.topology}",
                scatter(
                    rng,
                    800 * cell.size.devices * rng.choice([0.7, 0.97, 1, 1.01, 1.03]),
                    float(rng.choice([0.0005, 0.003, 0.02, 0.1])),
                    int(rng.integers(1, 9)),
                ),
            )
            for cell in cells[: rng.integers(2, 5)]
        ]
        for one in writer.read(rows).summaries:
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
                assert (verdict == fit.EQUAL) == within, text
                if not within:
                    assert (verdict == fit.UNTOLD) == (low <= 1 <= high), text
                assert low <= value <= high, text
    assert min(judged.values()) > 50, judged


def make_random(writer: Writer, seed: int) -> ResultSet:
    """Rows of any number, speed and scatter, some of them disturbed, few or failed."""
    rng = np.random.default_rng(seed)
    keys = [("single", "1x1")] if rng.random() < 0.9 else []
    for strategy in rng.permutation(["ddp", "fsdp", "zero1", "mp"])[: rng.integers(5)]:
        count = rng.integers(1, len(TOPOLOGIES) + 1)
        keys += [(str(strategy), one) for one in TOPOLOGIES[-count:]]
    of_model = MODEL if rng.random() < 0.2 else {}
    scaling = str(rng.choice(["weak", "strong"]))
    count = int(rng.choice([1, 3, 8]))
    rows = []
    for number in range(int(rng.choice([1, 1, 1, 2, 9]))):
        for strategy, topology in keys:
            cell = make_cell(
                strategy, topology, seed=number, scaling=scaling, **of_model
            )
            devices = cell.size.devices
            speed = 800 * devices ** rng.uniform(0.3, 1.05)
            rates = scatter(
                rng,
                speed * rng.choice([0.99, 1.0, 1.3]),
                float(rng.choice([0.002, 0.03, 0.3])),
                count,
            )
            if rng.random() < 0.05:
                rates[-1] = None
            rows.append(
                writer.make_row(cell, f"{strategy}.x.{topology}.{number}", rates)
            )
    return writer.read(rows)


def read_table(found: ResultSet) -> Rows:
    """table.csv, by cell."""
    section = load_sections()["table"]
    text = to_csv(section.frame(section.make(found)))
    return {row["cell"]: row for row in csv.DictReader(io.StringIO(text))}


def number_of(row: Mapping[str, str], name: str, factor: float = 1.0) -> Estimate:
    value, low, high = (row[f"{name}{end}"] for end in ("", "_lo", "_hi"))
    ends = [float(one) if one else None for one in (low, high)]
    return Estimate(float(value), *ends).scaled(factor)


def shown(row: Mapping[str, str], name: str) -> str:
    return str(show_estimate(number_of(row, name)))


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_no_statement_of_200_random_answers_contradicts_its_table(writer, first):
    for seed in range(first, first + 20):
        found = make_random(writer, seed)
        answer = find_answer(found)
        notes = in_brief(answer)
        lines = to_lines(notes)
        assert len(lines) <= LINES, lines
        assert max(map(len, lines), default=0) <= COLUMNS, lines
        if len(found.panels) == 1:
            (facts,) = answer["workloads"]
            said = {one.term: " ".join(one.text.split()) for one in notes}
            assert list(said) == [term for term in TERMS if term in said]
            check_answer(facts, said, read_table(found), answer)


def check_answer(
    facts: dict[str, Any], said: dict[str, str], table: Rows, answer: dict[str, Any]
) -> None:
    ok = {name: row for name, row in table.items() if row["status"] == "ok"}
    if "fastest" not in facts:
        assert "nothing to choose from" in said["USE"]
        return
    fastest, names = facts["fastest"], facts["names"]
    best = ok[fastest["cell"]]
    assert said["USE"].startswith(names[fastest["recommended"]])
    noisy = "too noisy" in said["USE"]
    ends = [one["ratio"]["high"] or 0 for one in fastest["rivals"]]
    assert noisy == (max(ends, default=0) > 1.2)
    unit = best.get("unit") or "samples/s"
    assert noisy or f": {shown(best, 'throughput')} {unit}." in said["USE"]
    check_rivals(fastest, ok, answer["margin"])
    check_scaling(facts, said.get("SCALES", ""), ok, answer["efficiency"])
    check_cost(facts["cheapest"]["cell"], facts["cheapest"], ok)
    check_cost(fastest["recommended"], facts["cost_of_use"], ok)
    disturbed = sum(int(row["disturbed"] or 0) for row in ok.values())
    assert facts["measured"]["disturbed"] == disturbed
    assert (f"{disturbed} of " in said["TRUST"]) or not disturbed
    if (training := facts["training"]) and "global batches" in said["LEARNS"]:
        batches = [ok[one["cell"]]["global_batch"] for one in training["cells"]]
        assert f"batches {', '.join(dict.fromkeys(batches))}" in said["LEARNS"]
    if loss := facts["lost"]:
        assert loss["step_ms"] == float(ok[loss["cell"]]["step_ms"])
        assert f"of {loss['step_ms']:.3g} ms lost" in said["LIMIT"]
        assert math.isclose(
            sum(part["value"] for part in loss["parts_ms"].values()),
            loss["lost_ms"]["value"],
            rel_tol=0.02,
            abs_tol=0.002 * loss["step_ms"],
        )
    for row in (row for one in facts["next"] for row in one["cells"]):
        assert row["launches"] - row["more"] == int(ok[row["cell"]]["launches_ok"])
        assert row["more"] > 0


def check_rivals(fastest: dict[str, Any], ok: Rows, margin: float) -> None:
    """Rivals are not slower than the best; with equal launches, nobody is faster."""
    for rival in fastest["rivals"]:
        low, high = rival["ratio"]["low"], rival["ratio"]["high"]
        text = str(show_estimate(Estimate(rival["ratio"]["value"], low, high)))
        if rival["verdict"] == FEW:
            assert low is None
            continue
        _, *ends = map(float, PRINTED.fullmatch(text).groups()[:3])  # type: ignore[union-attr]
        equal = 1 / (1 + margin) <= ends[0] <= ends[1] <= 1 + margin
        assert rival["verdict"] == (EQUAL if equal else UNTOLD), text
        assert ends[0] <= 1 <= ends[1], text
    if fastest["recommended"] != fastest["cell"]:
        verdicts = {one["cell"]: one["verdict"] for one in fastest["rivals"]}
        assert verdicts[fastest["recommended"]] == EQUAL


def check_scaling(facts: dict[str, Any], said: str, ok: Rows, wanted: float) -> None:
    expected = {}
    for point in [point for one in facts["scaling"] for point in one["points"]]:
        row, count = ok[point["cell"]], point["devices"]
        unit = row.get("unit") or "samples/s"
        where = "1 device" if count == 1 else f"{count} devices"
        if point["cell"] == facts["base"]:
            where = facts["names"][point["cell"]]
        efficiency = shown(row, "efficiency")
        each = f"{shown(row, 'per_device')} {unit} of each, efficiency {efficiency}"
        expected[f"{where}: {each}"] = row
    head, *lines = said.rstrip(".").split("; ") if said else [""]
    assert {*lines} <= expected.keys(), (lines, expected)
    rows = {row["topology"]: row for row in expected.values()}
    if found := re.search(r"above \S+ up to (\S+?)( at least)?$", head):
        assert any(
            row["topology"] == found[1] and float(row["efficiency_lo"]) > wanted
            for row in expected.values()
        ), (head, rows)
    if found := re.search(r"below \S+ from (\S+) on$", head):
        assert any(
            row["topology"] == found[1] and float(row["efficiency_hi"]) < wanted
            for row in expected.values()
        ), (head, rows)


def check_cost(cell: str, costs: dict[str, Any], ok: Rows) -> None:
    """Device-hours are those of the table's epochs."""
    row = ok[cell]
    hours = number_of(row, "epoch_s", int(row["devices"]) / 3600)
    told = costs["device_hours_per_epoch"]
    assert told["value"] == pytest.approx(hours.value, rel=1e-3)
    assert (told["low"] is None) == (hours.low is None)
