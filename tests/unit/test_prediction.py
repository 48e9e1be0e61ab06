"""Predictions: their parts against formulas, planted machines, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from factories import make_shape, read_plan_of
from rankbench.cell import Shape, Topology
from rankbench.decoder import split_evenly
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.plan import plan_predicted
from rankbench.plan import PredictedCell, read_plan
from rankbench.record import Layout
from rankbench.results.numbers.result_set import read
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.prediction.mechanism import (
    expected_maximum,
    step_seconds,
)
from rankbench.results.prediction.predict import (
    MECHANISM,
    TOTALS,
    Prediction,
    find_interval,
    predict,
    predict_by_law,
)
from unit import synthetic
from unit.synthetic import edited, make_cell, plan_cell, write_plan

pytestmark = pytest.mark.unit

# --- from throughput alone ------------------------------------------------------------


@pytest.mark.parametrize(("slope", "told"), [(1.0, 1.0), (0.9, 0.9), (1.2, 1.0)])
def test_a_power_law_is_right_where_it_holds_and_never_superlinear(slope, told):
    known = [(count, 100 * count**slope) for count in (1, 2, 4)]
    found = predict_by_law(known, 16, 0.0)
    last = known[-1][1]
    assert found.value == pytest.approx(last * 4**told)
    # Efficiency gains at most 10 % with each of two doublings.
    assert found.high is not None
    assert found.value < found.high <= last * 4 * 1.1**2 * (1 + 1e-9)


def test_intervals_widen_with_the_distance_and_with_the_noise():
    misses = (0.1, 0.05)
    near = find_interval(100, 1, misses, 0.0).interval
    assert near == pytest.approx((100 * math.exp(-0.1), 100 * math.exp(0.05)))
    for doublings, noise in ((2, 0.0), (1, 0.2)):
        low, high = ends_of(find_interval(100, doublings, misses, noise))
        assert low < near[0] < near[1] < high


# --- parts of the mechanism -----------------------------------------------------------


def test_the_largest_of_some_draws():
    values = np.sort(np.random.default_rng(0).uniform(size=100_000))
    for draws in (1, 2, 8):
        assert expected_maximum(values, draws) == pytest.approx(
            draws / (draws + 1), abs=0.01
        )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "batches"), [(1, 4), (2, 4), (4, 4), (4, 9)])
def test_equal_stages_have_the_bubble_of_the_textbook(schedule, stages, batches):
    taken = step_seconds([1.0] * stages, [2.0] * stages, batches, 0.0, schedule)
    assert taken == pytest.approx(3 * (batches + stages - 1))


def test_the_slowest_stage_and_the_hops_count():
    # The second stage is busy all the time after the first micro-batch has come.
    assert step_seconds([1, 3], [0, 0], 4, 0.5, "gpipe") == pytest.approx(
        1 + 0.5 + 4 * 3 + 0.5
    )


# --- planted machines -----------------------------------------------------------------

SAMPLE = 1e-3  # seconds of a sample: a third of it forward, the rest backward
ALPHA, BETA = 2e-4, 2e-8  # seconds of a message, and of a byte
WEIGHTS = 4_000_000
# Share of the weights, ready after this share of backward.
BUCKETS = ((0.25, 0.5), (0.5, 1.0))
UPDATE = 2e-3
MODEL = {"parameters": WEIGHTS // 4, "parameter_bytes": WEIGHTS}
MODEL |= {"flops_per_sample": 1000}


def all_reduce(size: float, ranks: int) -> float:
    return 2 * (ranks - 1) * (ALPHA + BETA * size / ranks)


def half(size: float, ranks: int) -> float:
    return all_reduce(size, ranks) / 2


def broadcast(size: float, ranks: int) -> float:
    return math.ceil(math.log2(ranks)) * (ALPHA + BETA * size)


CALLS = {"all_reduce": all_reduce, "broadcast": broadcast}
CALLS |= {"all_gather": half, "reduce_scatter": half}


def planted_phases(shape: Shape, slowdown: float) -> dict[str, float]:
    """Seconds of each phase of a rank that overlaps its buckets with backward."""
    forward, backward = (shape.rank_batch * SAMPLE * share for share in (1 / 3, 2 / 3))
    end = 0.0
    for share, ready in BUCKETS:
        takes = all_reduce(share * WEIGHTS, shape.ranks) if shape.ranks > 1 else 0.0
        end = max(end, ready * backward) + slowdown * takes
    exposed = max(0.0, end - backward)
    values = (0.0, 0.0, forward, backward, exposed, UPDATE)
    return dict(zip(synthetic.PHASES, values, strict=True))


def shape_of(topology: str, *, strong: bool = False, whole: bool = False) -> Shape:
    """With a replica on each rank, or on all of them."""
    ranks = Topology.parse(topology).devices
    batch = 48 // ranks if strong else 16
    split = {"replicas": 1, "replica_ranks": ranks} if whole else {}
    sizes = {"global_batch": batch if whole else batch * ranks, "rank_batch": batch}
    return make_shape(ranks, nodes=ranks, ranks_per_node=1, **sizes, **split)


def write_row(
    layout: Layout,
    planned: dict[str, Any],
    shape: Shape,
    phases: Mapping[str, float],
    *,
    details: Mapping[str, Any] | None = None,
    collectives: Any = None,
) -> None:
    """Launches whose ranks and steps are all alike."""
    steps, step = synthetic.STEPS, sum(phases.values())
    row = np.tile([phases[name] for name in planned["phases"]], (steps, 1))
    changes = {"shape": shape.to_dict(), "samples": steps * shape.global_batch}
    changes |= {"model": MODEL, "collectives": collectives}
    for launch in range(1, 7):
        folder = synthetic.write_launch(layout, planned, launch, **changes)
        with edited(folder / "record.json") as record:
            rank = record["ranks"][0] | {"window_s": steps * step}
            rank |= {"details": details} if details else {}
            rank["memory"]["rss_peak_mib"] = 100.0 + 2 * shape.rank_batch
            record["ranks"] = [rank | {"rank": n} for n in range(shape.ranks)]
        members = {f"rank{n}_seconds": row for n in range(shape.ranks)}
        synthetic.change_steps(folder, **members)


def sweeps_of(ranks: int, **times: float) -> list[dict[str, Any]] | None:
    """Sweeps of operations that move all weights so many times in a step."""
    if ranks == 1:
        return None
    return [
        {
            **{"operation": name, "times_weights": often, "bytes": size},
            "seconds": [CALLS[name](size, ranks)] * 3,
        }
        for name, often in times.items()
        for size in (4**5, 4**8, 4**10, 4**12)
    ]


def buckets_of(phases: Mapping[str, float]) -> dict[str, Any]:
    return {
        "buckets": [
            {"bytes": share * WEIGHTS, "ready_s": ready * phases["backward"]}
            for share, ready in BUCKETS
        ]
    }


def write_machine(
    root: Path,
    *topologies: str,
    strong: bool = False,
    slowdown: float = 1.3,
    sweeps: bool = True,
) -> Layout:
    scaling = "strong" if strong else "weak"
    cells = {name: plan_cell("ddp", name, scaling=scaling) for name in topologies}
    layout = write_plan(root, list(cells.values()))
    for name, planned in cells.items():
        shape = shape_of(name, strong=strong)
        phases = planted_phases(shape, slowdown)
        swept = sweeps_of(shape.ranks, all_reduce=1) if sweeps else None
        told = buckets_of(phases)
        write_row(layout, planned, shape, phases, details=told, collectives=swept)
    return layout


def target_of(topology: str, *, strong: bool = False, **changes: Any) -> PredictedCell:
    cell = make_cell("ddp", topology, scaling="strong" if strong else "weak")
    values = {"id": f"ddp.gloo.{topology}.convnet.digits", "cell": cell}
    values |= {"shape": shape_of(topology, strong=strong), "infeasible": None}
    return PredictedCell(**{**values, **changes})


def predict_one(layout: Layout, target: PredictedCell) -> Prediction:
    (made,) = predict(read(layout).rows, [target])
    return made


def ends_of(number: Estimate | None) -> tuple[float, float]:
    assert number is not None
    assert number.interval is not None
    return number.interval


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize(
    ("slowdown", "topology"), [(0.6, "4x1"), (1.0, "6x1"), (1.5, "16x1")]
)
def test_a_planted_machine_is_foreseen(tmp_path, strong, slowdown, topology):
    known = ("1x1", "2x1", "3x1")
    layout = write_machine(tmp_path, *known, strong=strong, slowdown=slowdown)
    target = target_of(topology, strong=strong)
    made = predict_one(layout, target)
    assert (made.refused, made.method, made.why) == (None, MECHANISM, None)
    true = 1e3 * sum(planted_phases(target.shape, slowdown).values())
    low, high = ends_of(made.numbers["step_ms"])
    assert low < true < high
    # The update does not shrink with the batch, and little else is approximate.
    assert made.numbers["step_ms"].value == pytest.approx(true, rel=0.02)
    assert [one.cell.topology for one in made.fitted] == [*known]
    memory = made.numbers["memory_mib"].value
    assert memory == pytest.approx(100 + 2 * target.shape.rank_batch, rel=0.05)


def test_intervals_are_narrower_where_the_mechanism_is_confirmed(tmp_path):
    widths = []
    for rows in (("1x1", "2x1"), ("1x1", "2x1", "3x1")):
        layout = write_machine(tmp_path / str(len(rows)), *rows)
        low, high = ends_of(predict_one(layout, target_of("8x1")).throughput)
        widths.append(high / low)
    assert widths[1] < widths[0]


def test_without_sweeps_throughput_alone_is_known(tmp_path):
    layout = write_machine(tmp_path, "1x1", "2x1", "3x1", sweeps=False)
    made = predict_one(layout, target_of("8x1"))
    assert (made.method, made.throughput is None) == (TOTALS, False)
    assert "collectives: true" in str(made.why)


# --- other strategies -----------------------------------------------------------------

# Topology -> seconds of each phase, and other members of its record.
Measured = Mapping[str, tuple[Mapping[str, float], dict[str, Any]]]


def foresee(
    root: Path,
    strategy: str,
    measured: Measured,
    target: str,
    *,
    whole: bool = False,
    **cell: Any,
) -> Prediction:
    """Write rows of a strategy, and predict another one; `cell` has further fields."""
    fields = {"backend": "gloo", **cell}
    cells = {
        name: plan_cell(strategy, name, phases=list(phases), **fields)
        for name, (phases, _) in measured.items()
    }
    layout = write_plan(root, list(cells.values()))
    for name, (phases, members) in measured.items():
        shape = shape_of(name, whole=whole)
        write_row(layout, cells[name], shape, phases, **members)
    cell_of = make_cell(strategy, target, **fields)
    shape = shape_of(target, whole=whole)
    return predict_one(layout, target_of(target, cell=cell_of, shape=shape))


def test_what_nothing_hides_is_added(tmp_path):
    """Like zero1, which broadcasts weights in its update, along a tree."""

    def phases_of(name: str) -> dict[str, float]:
        shape = shape_of(name)
        phases = planted_phases(shape, 1.0)
        if shape.ranks > 1:
            phases["update"] += 0.9 * broadcast(WEIGHTS, shape.ranks)
        return phases

    measured = {}
    for name in ("1x1", "2x1", "3x1"):
        swept = sweeps_of(shape_of(name).ranks, all_reduce=1, broadcast=1)
        phases = phases_of(name)
        told = {"collectives": swept, "details": buckets_of(phases)}
        measured[name] = (phases, told)
    made = foresee(tmp_path, "zero1", measured, "16x1")
    assert made.method == MECHANISM
    true = 1e3 * sum(phases_of("16x1").values())
    assert made.numbers["step_ms"].value == pytest.approx(true, rel=0.02)


def test_communication_within_other_phases_is_told_by_one_rank(tmp_path):
    """Like fsdp, which gathers weights and scatters gradients all the time."""

    def phases_of(name: str) -> dict[str, float]:
        # Nothing is hidden.
        ranks = shape_of(name).ranks
        alone = planted_phases(shape_of("1x1"), 1.0)
        takes = 1.5 * all_reduce(WEIGHTS, ranks) if ranks > 1 else 0.0
        forward, backward = alone["forward"] + takes / 3, alone["backward"]
        backward += takes * 2 / 3
        return {"load": 0, "forward": forward, "backward": backward, "update": UPDATE}

    measured = {}
    for name in ("1x1", "2x1", "3x1"):
        swept = sweeps_of(shape_of(name).ranks, all_gather=2, reduce_scatter=1)
        measured[name] = (phases_of(name), {"collectives": swept})
    made = foresee(tmp_path / "a", "fsdp", measured, "8x1")
    assert made.method == MECHANISM
    true = 1e3 * sum(phases_of("8x1").values())
    # Overlap is assumed to be possible, and then fitted away.
    assert made.numbers["step_ms"].value == pytest.approx(true, rel=0.05)
    del measured["1x1"]
    without = foresee(tmp_path / "b", "fsdp", measured, "8x1")
    assert without.method == TOTALS
    assert "no row of one rank is without" in str(without.why)


COSTS = [1e-3, *[8e-3] * 12, 1e-3]  # seconds of the parts of a model


def planted_pipeline(name: str) -> tuple[dict[str, float], dict[str, Any]]:
    """A third of a part's cost is forward; hops and a fixed part are added."""
    ranks = shape_of(name).ranks
    counts = split_evenly(COSTS, ranks)
    ends = np.cumsum(counts)
    stages = [sum(COSTS[end - n : end]) for n, end in zip(counts, ends, strict=True)]
    forward, backward = ([share * cost for cost in stages] for share in (1 / 3, 2 / 3))
    taken = step_seconds(forward, backward, 4, 2e-3, "gpipe")
    # `write_row` gives each rank what all stages need, divided by the ranks.
    details: dict[str, Any] = {"part_costs": COSTS, "microbatches": 4}
    details |= {"stages": [["part"] * n for n in counts]}
    details |= {"forward_s": sum(forward) / ranks, "backward_s": sum(backward) / ranks}
    details |= {"bubble": 0.3, "ideal_bubble": 0.3}
    phases = {"load": 0.0, "pipeline": taken + 5e-3, "update": 4e-3 / ranks}
    return phases, {"details": details}


def test_a_planted_pipeline_is_foreseen(tmp_path):
    measured = {name: planted_pipeline(name) for name in ("2x1", "3x1", "4x1")}
    options = {"schedule": "gpipe", "microbatches": 4}

    def of(strategy: str, target: str, **more: Any) -> Prediction:
        root = tmp_path / f"{strategy}{target}{len(measured['2x1'][1]['details'])}"
        own = {"whole": True, "options": options | more}
        return foresee(root, strategy, measured, target, **own)

    made = of("pipeline", "7x1")
    assert (made.method, made.why) == (MECHANISM, None)
    true = 1e3 * sum(planted_pipeline("7x1")[0].values())
    assert made.numbers["step_ms"].value == pytest.approx(true, rel=0.01)
    many = of("pipeline", "15x1")
    assert many.refused == "a model of 14 parts cannot be split in 15"
    mesh = of("mesh", "7x1", pipe=2)
    assert (mesh.method, "share replicas" in str(mesh.why)) == (TOTALS, True)
    for _, members in measured.values():
        del members["details"]["part_costs"]
    older = of("pipeline", "7x1")
    assert (older.method, "part of its model" in str(older.why)) == (TOTALS, True)


# --- what is refused ------------------------------------------------------------------

ZERO1 = {"cell": make_cell("zero1", "4x1", backend="gloo")}


@pytest.mark.parametrize(
    ("measured", "topology", "changes", "said"),
    [
        (["1x1"], "4x1", {}, "no smaller row on several devices is measured on sev"),
        (["2x1"], "4x1", {}, "2x1.convnet.digits is its only smaller row on several"),
        (["1x1", "1x2"], "4x1", {}, "measured on several hosts; a prediction needs tw"),
        (["1x1", "2x1"], "1x4", {}, "measured on one host; a prediction needs two sc"),
        (["4x1", "8x1"], "2x1", {}, "no smaller row"),
        (["1x1", "2x1"], "4x1", ZERO1, "none of its rows"),
        (["1x1", "2x1"], "4x1", {"infeasible": "it cannot"}, "it cannot"),
    ],
)
def test_too_little_is_refused(tmp_path, measured, topology, changes, said):
    layout = write_machine(tmp_path, *measured)
    made = predict_one(layout, target_of(topology, **changes))
    assert made.throughput is None
    assert said in str(made.refused)


@pytest.mark.parametrize(
    ("records", "key", "value", "said"),
    [
        ("ddp.gloo.3x1*/1/1", "cpu", "Another CPU", "differ: None x Another"),
        ("*/1/*", "memory_gib", 0.1, "a rank would need"),
    ],
)
def test_hosts_that_differ_or_have_too_little_memory_are_refused(
    tmp_path, records, key, value, said
):
    layout = write_machine(tmp_path, "1x1", "2x1", "3x1")
    for path in layout.root.glob(f"records/{records}/record.json"):
        with edited(path) as record:
            record["hosts"][0][key] = value
    assert said in str(predict_one(layout, target_of("4x1")).refused)


# --- targets of a plan ----------------------------------------------------------------

PLAN = """
name: x
topology: [1x1, 1x2]
predict: [1x2, 1x8, 3x1]
blocks:
  - strategy: single
    topology: 1x1
  - strategy: [ddp, pipeline]
batch_size: 32
scaling: strong
steps: 3
"""


def test_a_plan_has_what_is_to_be_predicted(tmp_path):
    plan = read_plan_of(tmp_path, PLAN)
    told = {one.id: one.infeasible for one in plan.predicted}
    assert [name for name in told if "pipeline" not in name] == [
        "ddp.gloo.1x8.convnet.digits.batch_size=32.scaling=strong",
        "ddp.gloo.3x1.convnet.digits.batch_size=32.scaling=strong",
    ]
    reasons = list(told.values())
    # This site has one host of two cores, which does not matter.
    assert reasons[0] is None
    assert reasons[1] == "batch_size 32 (strong) does not split over 3"
    assert any("needs 8 microbatches" in str(reason) for reason in reasons)
    shape = plan.predicted[0].shape
    assert (shape.ranks, shape.global_batch, shape.rank_batch) == (8, 32, 4)
    path = tmp_path / "plan.json"
    path.write_bytes(plan.to_json())
    # The site that a plan tells of is enough to plan others.
    again = read_plan(path)
    cells = {name: one.cell for name, one in again.cells.items()}
    site = again.site
    planned = plan_predicted(cells, ["1x8"], site, load_catalog())
    assert planned[0] == plan.predicted[0]
    with pytest.raises(ValueError, match=r"predict.*'8'"):
        read_plan_of(tmp_path, PLAN.replace("1x8", "'8'"))


# --- what people see ------------------------------------------------------------------


def test_predictions_are_shown_apart(tmp_path, cli):
    layout = write_machine(tmp_path, "1x1", "2x1", "3x1")
    with edited(layout.plan) as plan:
        plan["predicted"] = [
            dataclasses.asdict(one)
            | {"cell": one.cell.to_dict(), "shape": one.shape.to_dict()}
            for one in (target_of("8x1"), target_of("5x1", infeasible="it cannot"))
        ]
        plan["site"] = {"device_hour_price": "2.50 EUR"}
    synthetic.write_tables(layout)
    frame = pd.read_csv(layout.section("prediction"))
    assert frame["topology"].tolist() == ["8x1", "5x1"]
    assert frame["refused"].fillna("").tolist() == ["", "it cannot"]
    assert frame["cost"][0] == pytest.approx(2.5 * frame["hours"][0])
    # Never in the column of measured values.
    assert "8x1" not in layout.table("csv").read_text()
    assert "it cannot" in synthetic.read_report(layout)
    said = " ".join(cli("answer", layout.root, "--at", "8x1").out.split())
    assert "ddp over gloo on 8 hosts x 1 core (2.67 times the devices): " in said
    assert "samples/s" in said
    assert "EUR" in said
    told = json.loads(cli("answer", layout.root, "--at", "8x1", "--json").out)
    assert [one["method"] for one in told["predictions"]] == [MECHANISM]
    said = cli("answer", layout.root, "--at", "5x1", status=1).out
    assert "it cannot" in said
    said = cli("answer", layout.root, "--at", "8", status=2).err
    assert "topology '8' is not NODESxDEVICES" in said
