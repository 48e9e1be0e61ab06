"""Predictions: their parts against formulas, planted machines, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from factories import make_site, read_plan_of
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
    exposed,
    find_slowdown,
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


def test_what_backward_cannot_hide():
    buckets = [(1.0, 1.0), (2.0, 1.0)]
    # The last bucket begins when it is ready, at the end of backward.
    assert exposed(buckets, 2, 1) == 1
    # Twice as slow, the second waits for the first: 1 + 2 + 2 - 2.
    assert exposed(buckets, 2, 2) == 3
    assert exposed(buckets, 9, 2) == 0
    for slowdown in (0.5, 1.0, 3.0):
        measured = exposed(buckets, 2, slowdown)
        assert find_slowdown(buckets, 2, measured) == pytest.approx(slowdown)


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
BUCKETS = (
    (0.25, 0.5),
    (0.5, 1.0),
)  # share of the weights, ready after this of backward
UPDATE = 2e-3


def all_reduce(size: float, ranks: int) -> float:
    return 2 * (ranks - 1) * (ALPHA + BETA * size / ranks)


def planted_phases(shape: Shape, slowdown: float) -> dict[str, float]:
    """Seconds of each phase of a rank that overlaps its buckets with backward."""
    forward, backward = (shape.rank_batch * SAMPLE * share for share in (1 / 3, 2 / 3))
    end = 0.0
    for share, ready in BUCKETS:
        takes = all_reduce(share * WEIGHTS, shape.ranks) if shape.ranks > 1 else 0.0
        end = max(end, ready * backward) + slowdown * takes
    return {
        "load": 0.0,
        "transfer": 0.0,
        "forward": forward,
        "backward": backward,
        "communication": max(0.0, end - backward),
        "update": UPDATE,
    }


def shape_of(topology: str, *, strong: bool = False) -> Shape:
    ranks = Topology.parse(topology).devices
    batch = 48 // ranks if strong else 16
    return Shape(
        nodes=Topology.parse(topology).nodes,
        ranks=ranks,
        ranks_per_node=ranks // Topology.parse(topology).nodes,
        devices_per_rank=1,
        cores_per_rank=1,
        replicas=ranks,
        replica_ranks=1,
        global_batch=batch * ranks,
        rank_batch=batch,
    )


def write_row(
    layout: Layout,
    planned: dict[str, Any],
    shape: Shape,
    phases: Mapping[str, float],
    *,
    launches: int = 6,
    **changes: Any,
) -> None:
    """Launches whose ranks and steps are all alike."""
    steps, step = synthetic.STEPS, sum(phases.values())
    for launch in range(1, launches + 1):
        folder = synthetic.write_launch(layout, planned, launch, **changes)
        path = folder / "record.json"
        with edited(path) as record:
            record["shape"] = shape.to_dict()
            record["samples"] = steps * shape.global_batch
            record["ranks"] = [
                {**record["ranks"][0], **changes.get("details", {}), "rank": rank}
                for rank in range(shape.ranks)
            ]
            for rank in record["ranks"]:
                rank["window_s"] = steps * step
                rank["memory"]["rss_peak_mib"] = 100.0 + 2 * shape.rank_batch
            record["model"] = {
                "parameters": WEIGHTS // 4,
                "parameter_bytes": WEIGHTS,
                "flops_per_sample": 1000,
            }
        row = np.array([phases[name] for name in planned["phases"]])
        members = {
            f"rank{rank}/{name}": value
            for rank in range(shape.ranks)
            for name, value in (
                ("seconds", np.tile(row, (steps, 1))),
                ("warmup", np.tile(row, (synthetic.WARMUP, 1))),
                ("loss", np.ones(synthetic.WARMUP + steps, np.float32)),
            )
        }
        np.savez(folder / "steps.npz", **members)


def broadcast(size: float, ranks: int) -> float:
    return math.ceil(math.log2(ranks)) * (ALPHA + BETA * size)


def sweeps_of(ranks: int, *operations: str, times: float = 1) -> list[dict[str, Any]]:
    def half(size: float, ranks: int) -> float:
        return all_reduce(size, ranks) / 2

    calls = {"all_reduce": all_reduce, "broadcast": broadcast}
    return [
        {
            "operation": name,
            "times_weights": times,
            "bytes": size,
            "seconds": [calls.get(name, half)(size, ranks)] * 3,
        }
        for name in operations
        for size in (4**5, 4**8, 4**10, 4**12)
    ]


def buckets_of(backward: float) -> dict[str, Any]:
    return {
        "details": {
            "buckets": [
                {"bytes": share * WEIGHTS, "ready_s": ready * backward}
                for share, ready in BUCKETS
            ]
        }
    }


def write_machine(
    root: Path,
    *topologies: str,
    strong: bool = False,
    slowdown: float = 1.3,
    sweeps: bool = True,
    **changes: Any,
) -> Layout:
    cells = {
        name: plan_cell(make_cell("ddp", name, scaling="strong" if strong else "weak"))
        for name in topologies
    }
    layout = write_plan(root, list(cells.values()))
    for name, planned in cells.items():
        shape = shape_of(name, strong=strong)
        phases = planted_phases(shape, slowdown)
        swept = None
        if sweeps and shape.ranks > 1:
            swept = sweeps_of(shape.ranks, "all_reduce")
        details = {"details": buckets_of(phases["backward"])}
        write_row(
            layout, planned, shape, phases, collectives=swept, **details, **changes
        )
    return layout


def target_of(topology: str, *, strong: bool = False, **changes: Any) -> PredictedCell:
    cell = make_cell("ddp", topology, scaling="strong" if strong else "weak")
    values = {
        "id": f"ddp.gloo.{topology}.convnet.digits",
        "cell": cell,
        "shape": shape_of(topology, strong=strong),
        "infeasible": None,
    }
    return PredictedCell(**{**values, **changes})


def predict_one(layout: Layout, target: PredictedCell) -> Prediction:
    (made,) = predict(read(layout).rows, [target])
    return made


def ends_of(number: Estimate | None) -> tuple[float, float]:
    assert number is not None
    assert number.interval is not None
    return number.interval


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize("slowdown", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("topology", ["4x1", "6x1", "16x1"])
def test_a_planted_machine_is_foreseen(tmp_path, strong, slowdown, topology):
    layout = write_machine(
        tmp_path, "1x1", "2x1", "3x1", strong=strong, slowdown=slowdown
    )
    target = target_of(topology, strong=strong)
    made = predict_one(layout, target)
    assert (made.refused, made.method, made.why) == (None, MECHANISM, None)
    true = 1e3 * sum(planted_phases(target.shape, slowdown).values())
    low, high = ends_of(made.numbers["step_ms"])
    assert low < true < high
    # The update does not shrink with the batch, and little else is approximate.
    assert made.numbers["step_ms"].value == pytest.approx(true, rel=0.02)
    assert [one.cell.topology for one in made.fitted] == ["1x1", "2x1", "3x1"]
    assert made.numbers["memory_mib"].value == pytest.approx(
        100 + 2 * target.shape.rank_batch, rel=0.05
    )


def test_intervals_are_narrower_where_the_mechanism_is_confirmed(tmp_path):
    widths = []
    for rows in (("1x1", "2x1"), ("1x1", "2x1", "3x1")):
        layout = write_machine(tmp_path / str(len(rows)), *rows)
        low, high = ends_of(predict_one(layout, target_of("8x1")).throughput)
        widths.append(high / low)
    assert widths[1] < widths[0]


def test_without_sweeps_throughput_alone_is_known(tmp_path):
    made = predict_one(
        write_machine(tmp_path, "1x1", "2x1", "3x1", sweeps=False), target_of("8x1")
    )
    assert (made.method, made.throughput is None) == (TOTALS, False)
    assert "collectives: true" in str(made.why)


# --- other strategies -----------------------------------------------------------------


def foresee(
    root: Path,
    strategy: str,
    measured: Mapping[str, tuple[Mapping[str, float], dict[str, Any]]],
    target: str,
    shapes: Mapping[str, Shape],
    **cell: Any,
) -> Prediction:
    """Write rows of a strategy, and predict another one.

    Args:
        measured: topology -> seconds of each phase, and other members of its record.
        shapes: topology -> shape, of the target, too.
        cell: further fields.
    """
    cells = {
        name: plan_cell(
            make_cell(strategy, name, backend="gloo", **cell), phases=list(phases)
        )
        for name, (phases, _) in measured.items()
    }
    layout = write_plan(root, list(cells.values()))
    for name, (phases, members) in measured.items():
        write_row(layout, cells[name], shapes[name], phases, **members)
    wanted = PredictedCell(
        id="wanted",
        cell=make_cell(strategy, target, backend="gloo", **cell),
        shape=shapes[target],
        infeasible=None,
    )
    return predict_one(layout, wanted)


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
        ranks = shape_of(name).ranks
        swept = sweeps_of(ranks, "all_reduce", "broadcast") if ranks > 1 else None
        details = buckets_of(phases_of(name)["backward"])
        measured[name] = (phases_of(name), {"collectives": swept, "details": details})
    shapes = {name: shape_of(name) for name in (*measured, "16x1")}
    made = foresee(tmp_path, "zero1", measured, "16x1", shapes)
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
        return {
            "load": 0.0,
            "forward": alone["forward"] + takes / 3,
            "backward": alone["backward"] + takes * 2 / 3,
            "update": UPDATE,
        }

    def members_of(name: str) -> dict[str, Any]:
        ranks = shape_of(name).ranks
        if ranks == 1:
            return {"collectives": None}
        swept = sweeps_of(ranks, "all_gather", times=2) + sweeps_of(
            ranks, "reduce_scatter"
        )
        return {"collectives": swept}

    names = ("1x1", "2x1", "3x1")
    measured = {name: (phases_of(name), members_of(name)) for name in names}
    shapes = {name: shape_of(name) for name in (*names, "8x1")}
    made = foresee(tmp_path / "a", "fsdp", measured, "8x1", shapes)
    assert made.method == MECHANISM
    true = 1e3 * sum(phases_of("8x1").values())
    # Overlap is assumed to be possible, and then fitted away.
    assert made.numbers["step_ms"].value == pytest.approx(true, rel=0.05)
    del measured["1x1"]
    without = foresee(tmp_path / "b", "fsdp", measured, "8x1", shapes)
    assert without.method == TOTALS
    assert "no row of one rank is without" in str(without.why)


COSTS = [1e-3, *[8e-3] * 12, 1e-3]  # seconds of the parts of a model


def pipeline_shape(topology: str) -> Shape:
    shape = shape_of(topology)
    return Shape(
        **{
            **shape.to_dict(),
            "replicas": 1,
            "replica_ranks": shape.ranks,
            "global_batch": 16,
            "rank_batch": 16,
        }
    )


def planted_pipeline(name: str) -> tuple[dict[str, float], dict[str, Any]]:
    """A third of a part's cost is forward; hops and a fixed part are added."""
    ranks = shape_of(name).ranks
    counts = split_evenly(COSTS, ranks)
    ends = np.cumsum(counts)
    stages = [sum(COSTS[end - n : end]) for n, end in zip(counts, ends, strict=True)]
    taken = step_seconds(
        [cost / 3 for cost in stages],
        [2 * cost / 3 for cost in stages],
        4,
        2e-3,
        "gpipe",
    )
    # `write_row` gives each rank what all stages need, divided by the ranks.
    details = {
        "part_costs": COSTS,
        "stages": [["part"] * n for n in counts],
        "microbatches": 4,
        "forward_s": sum(stages) / 3 / ranks,
        "backward_s": sum(stages) * 2 / 3 / ranks,
        "bubble": 0.3,
        "ideal_bubble": 0.3,
    }
    phases = {"load": 0.0, "pipeline": taken + 5e-3, "update": 4e-3 / ranks}
    return phases, {"collectives": None, "details": {"details": details}}


def test_a_planted_pipeline_is_foreseen(tmp_path):
    names = ("2x1", "3x1", "4x1")
    measured = {name: planted_pipeline(name) for name in names}
    shapes = {name: pipeline_shape(name) for name in (*names, "7x1")}
    options = {"options": {"schedule": "gpipe", "microbatches": 4}}
    made = foresee(tmp_path / "a", "pipeline", measured, "7x1", shapes, **options)
    assert (made.method, made.why) == (MECHANISM, None)
    true = 1e3 * sum(planted_pipeline("7x1")[0].values())
    assert made.numbers["step_ms"].value == pytest.approx(true, rel=0.01)
    shapes["15x1"] = pipeline_shape("15x1")
    many = foresee(tmp_path / "c", "pipeline", measured, "15x1", shapes, **options)
    assert many.refused == "a model of 14 parts cannot be split in 15"
    meshed = {"options": {**options["options"], "pipe": 2}}
    mesh = foresee(tmp_path / "d", "mesh", measured, "7x1", shapes, **meshed)
    assert mesh.method == TOTALS
    assert "share replicas" in str(mesh.why)
    for _, members in measured.values():
        del members["details"]["details"]["part_costs"]
    older = foresee(tmp_path / "b", "pipeline", measured, "7x1", shapes, **options)
    assert older.method == TOTALS
    assert "part of its model costs" in str(older.why)


# --- what is refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "topology", "said"),
    [
        (["1x1"], "4x1", "no smaller row on several devices is measured on several"),
        (["2x1"], "4x1", "2x1.convnet.digits is its only smaller row on several hosts"),
        (["1x1", "1x2"], "4x1", "measured on several hosts; a prediction needs two"),
        (["1x1", "2x1"], "1x4", "measured on one host; a prediction needs two scales"),
        (["4x1", "8x1"], "2x1", "no smaller row"),
    ],
)
def test_too_little_is_refused(tmp_path, measured, topology, said):
    made = predict_one(write_machine(tmp_path, *measured), target_of(topology))
    assert made.throughput is None
    assert said in str(made.refused)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cell": make_cell("zero1", "4x1", backend="gloo")}, "none of its rows"),
        (
            {"infeasible": "pipeline needs 4 microbatches"},
            "pipeline needs 4 microbatches",
        ),
    ],
)
def test_a_target_without_rows_or_with_an_obstacle_is_refused(tmp_path, changes, said):
    made = predict_one(
        write_machine(tmp_path, "1x1", "2x1"), target_of("4x1", **changes)
    )
    assert said in str(made.refused)


@pytest.mark.parametrize(
    ("records", "key", "value", "said"),
    [
        (
            "ddp.gloo.3x1*/1/1",
            "cpu",
            "Another CPU",
            "hosts that differ: None x Another",
        ),
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
    assert json.loads(path.read_text())["predicted"][0]["shape"]["ranks"] == 8
    # The site that a plan tells of is enough to plan others.
    again = read_plan(path)
    cells = {name: one.cell for name, one in again.cells.items()}
    site = type(make_site()).from_dict(again.site)
    assert site == make_site()
    planned = plan_predicted(cells, ["1x8"], site, load_catalog())
    assert planned[0] == plan.predicted[0]


def test_a_topology_to_predict_must_be_one(tmp_path):
    with pytest.raises(ValueError, match=r"predict.*'8'"):
        read_plan_of(tmp_path, PLAN.replace("1x8", "'8'"))


# --- what people see ------------------------------------------------------------------


def with_targets(layout: Layout, *targets: PredictedCell) -> Layout:
    with edited(layout.plan) as plan:
        plan["predicted"] = [
            {
                "id": one.id,
                "cell": one.cell.to_dict(),
                "shape": one.shape.to_dict(),
                "infeasible": one.infeasible,
            }
            for one in targets
        ]
        plan["site"] = {"device_hour_price": "2.50 EUR"}
    return layout


def test_tables_and_plots_show_predictions_apart(tmp_path):
    targets = [target_of("8x1"), target_of("5x1", infeasible="it cannot")]
    layout = with_targets(write_machine(tmp_path, "1x1", "2x1", "3x1"), *targets)
    synthetic.write_tables(layout)
    frame = pd.read_csv(layout.section("prediction"))
    assert frame["topology"].tolist() == ["8x1", "5x1"]
    assert frame["refused"].tolist() == [
        pytest.approx(np.nan, nan_ok=True),
        "it cannot",
    ]
    assert frame["cost"][0] == pytest.approx(2.5 * frame["hours"][0])
    # Never in the column of measured values.
    assert "8x1" not in layout.table("csv").read_text()
    text = synthetic.read_report(layout)
    assert "Predicted topologies" in text
    assert "it cannot" in text


def test_the_command_prints_them(tmp_path, cli):
    layout = with_targets(
        write_machine(tmp_path, "1x1", "2x1", "3x1"), target_of("8x1")
    )
    said = " ".join(cli("answer", layout.root, "--at", "8x1").out.split())
    assert "samples/s" in said
    assert "EUR" in said
    assert "ddp over gloo on 8 hosts x 1 core (2.67 times the devices): " in said
    (told,) = json.loads(cli("answer", layout.root, "--at", "8x1", "--json").out)[
        "predictions"
    ]
    assert told["method"] == MECHANISM


def test_the_command_refuses_what_it_cannot_predict(tmp_path, cli):
    layout = with_targets(write_machine(tmp_path, "1x1", "2x1"), target_of("1x8"))
    said = cli("answer", layout.root, "--at", "1x8", status=1).out
    assert "a prediction needs two scales" in " ".join(said.split())
    said = cli("answer", layout.root, "--at", "8", status=2).err
    assert "topology '8' is not NODESxDEVICES" in said
