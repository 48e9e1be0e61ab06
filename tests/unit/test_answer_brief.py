"""The answer in fifteen lines: short, and nothing that the table does not say."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from rankbench.record import Layout
from rankbench.results.advice.answer import find_answer
from rankbench.results.advice.choice import Facts
from rankbench.results.advice.words import COLUMNS, LINES, in_brief, to_lines
from rankbench.results.elements.text import show_estimate
from rankbench.results.numbers.result_set import ResultSet, read
from rankbench.results.numbers.statistics import Estimate
from unit.synthetic import make_cell, plan_cell, write_launch, write_plan

pytestmark = pytest.mark.unit

TERMS = ["WHAT", "USE", "SCALES", "LIMIT", "COST", "LEARNS", "TRUST", "NEXT"]


def write_random(root: Path, seed: int) -> Layout:
    """Rows of any number, speed and scatter, some of them disturbed or few."""
    rng = np.random.default_rng(seed)
    chosen = [("single", "1x1")]
    for strategy in rng.permutation(["ddp", "fsdp", "zero1", "mp"])[: rng.integers(4)]:
        topologies = ("1x1", "1x2", "1x4", "2x4", "4x4", "8x4")[: rng.integers(1, 7)]
        chosen += [(str(strategy), topology) for topology in topologies]
    workloads = int(rng.choice([1, 1, 1, 2, 9]))
    cells = [
        plan_cell(make_cell(*key, seed=n), suffix=f".seed={n}")
        for n in range(workloads)
        for key in (chosen if workloads < 9 else chosen[:3])
    ]
    layout = write_plan(root, cells, launches=8)
    count = int(rng.choice([1, 3, 8]))
    for planned in cells:
        devices = math.prod(map(int, planned["cell"]["topology"].split("x")))
        speed = 800 * devices ** rng.uniform(0.3, 1.05) * rng.choice([0.99, 1.0, 1.3])
        scatter = float(rng.choice([0.002, 0.03, 0.3]))
        for number in range(1, count + 1):
            slow = 4.0 if rng.random() < 0.05 else 1.0
            write_launch(
                layout,
                planned,
                number,
                rate=speed * math.exp(scatter * rng.normal()) / slow,
                wanted=count,
                round={"seed": 1, "number": number, "position": 1},
                gate=None,
            )
    return layout


def said_of(found: ResultSet) -> tuple[Facts, dict[str, str]]:
    """The only workload, and what is said of it by term."""
    answer = find_answer(found)
    (facts,) = answer["workloads"]
    notes = in_brief(answer)
    assert [n.term for n in notes] == [t for t in TERMS if t in {n.term for n in notes}]
    return facts, {note.term: note.text.replace("\n", " ") for note in notes}


def shown(number: Estimate) -> str:
    """A number of the table, as the answer shows it."""
    return str(show_estimate(Estimate.from_json(number.to_json())))


@pytest.mark.parametrize("seed", range(60))
def test_a_random_answer_is_short_and_says_what_the_table_says(
    tmp_path: Path, seed: int
) -> None:
    found = read(write_random(tmp_path, seed))
    lines = to_lines(in_brief(find_answer(found)))
    assert 1 < len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    if len(found.panels) > 1:
        return
    facts, said = said_of(found)
    rows = {summary.row.id: summary for summary in found.summaries}
    if "fastest" not in facts:
        assert "nothing to choose from" in said["USE"]
        return
    fastest, names = facts["fastest"], facts["names"]
    assert said["USE"].startswith(names[fastest["recommended"]])
    best = rows[fastest["cell"]].numbers["throughput"]
    noisy = best.interval and best.interval[1] - best.interval[0] > best.value / 2
    assert ("too noisy" in said["USE"]) == bool(noisy)
    if not noisy:
        assert f": {shown(best)} samples/s." in said["USE"]
    expected = set()
    for point in [point for one in facts["scaling"] for point in one["points"]]:
        summary, count = rows[point["cell"]], point["devices"]
        each = shown(summary.numbers["throughput"].scaled(1 / count))
        devices = "1 device" if count == 1 else f"{count} devices"
        efficiency = shown(summary.numbers["efficiency"])
        expected.add(f"{devices}: {each} samples/s of each, efficiency {efficiency}")
    assert {*said.get("SCALES", "").rstrip(".").split("; ")[1:]} <= expected
    if loss := facts["lost"]:
        assert math.isclose(
            sum(part["value"] for part in loss["parts_ms"].values()),
            loss["lost_ms"]["value"],
            rel_tol=0.02,
            abs_tol=0.002 * loss["step_ms"],
        )
        step = rows[loss["cell"]].numbers["step_ms"].value
        assert loss["step_ms"] == pytest.approx(step, rel=1e-3)


def test_a_control_is_no_candidate(tmp_path: Path) -> None:
    """ddp on one device costs nothing beside single, and nobody would choose it."""
    cells = [make_cell("single"), make_cell("ddp", "1x1"), make_cell("ddp", "1x2")]
    planned = [plan_cell(cell) for cell in cells]
    layout = write_plan(tmp_path, planned, launches=8)
    for one, rate in zip(planned, (800, 810, 1500), strict=True):
        for number in range(1, 9):
            write_launch(layout, one, number, rate=rate * (1 + number / 500), wanted=8)
    facts, said = said_of(read(layout))
    assert said["COST"].startswith("cheapest: single on 1 device")
    assert "1 device: 8" in said["SCALES"]
    assert facts["rows"] == 2


def test_words_come_before_ids(tmp_path: Path) -> None:
    cells = [
        make_cell("single"),
        make_cell("ddp", "2x2"),
        make_cell("ddp", "2x2", options={"bucket_mb": 1}),
    ]
    planned = [plan_cell(cell, suffix=str(place)) for place, cell in enumerate(cells)]
    layout = write_plan(tmp_path, planned, launches=4)
    for one, number in itertools.product(planned, range(1, 5)):
        write_launch(layout, one, number, rate=800 + number, wanted=4)
    facts, said = said_of(read(layout))
    names = list(facts["names"].values())
    assert names[0] == "single on 1 device"
    assert names[1].startswith("ddp over gloo (bucket_mb=")
    assert names[1].endswith(" on 2 x 2 devices")
    assert len(set(names)) == 3
    assert not any(name in " ".join(said.values()) for name in facts["names"])
