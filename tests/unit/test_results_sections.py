"""Small sections: models, pipelines, profiles and diagnostics."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex

from rankbench.record import Layout
from rankbench.results.elements.plotting import color_phases
from rankbench.results.numbers.result_set import read
from rankbench.results.render.files import write_results
from rankbench.results.sections import load_sections
from rankbench.results.sections.profiles import (
    MOST_RANKS,
    draw_timeline,
    load_profiles,
    split_lanes,
)
from unit.synthetic import (
    edited,
    plan_cell,
    plan_one,
    read_rows,
    write_launch,
    write_launches,
    write_plan,
    write_profile,
    write_tables,
)

pytestmark = pytest.mark.unit

MODEL = {"parameters": 25_000_000, "parameter_bytes": 100_000_000}
MODEL |= {"flops_per_sample": 20_000_000_000}
TITLE = "Arithmetic of models and devices"


def write_model(root: Path, replicas: int, samples: int, **model: Any) -> Layout:
    layout, planned = plan_one(root, "ddp", "1x2")
    shape = {"replicas": replicas, "replica_ranks": 1, "global_batch": samples}
    own = {"shape": {**shape, "ranks": 2}, "model": MODEL, **model}
    write_launches(layout, planned, **own)
    write_tables(layout)
    return layout


def row_of(layout: Layout) -> dict[str, str]:
    (row,) = read_rows(layout, "models")
    return row


def test_ratio_is_of_a_replica(tmp_path):
    layout = write_model(tmp_path, 4, 256)
    row = row_of(layout)
    assert row["model"] == "convnet"
    assert (row["parameters"], row["gradient_mb"]) == ("25000000", "100")
    assert (row["gflop_per_sample"], row["replica_batch"]) == ("20", "64")
    # 64 samples with 20 GFLOP each, and 100 MB of weights.
    assert row["flop_per_byte"] == "12800"
    # The rate that was achieved is throughput times arithmetic.
    (measured,) = read_rows(layout)
    rate = 20 * float(measured["throughput"])
    assert float(row["gflop_s"]) == pytest.approx(rate, rel=1e-3)
    page = layout.report.read_text()
    assert f"<summary>{TITLE}</summary>" in page
    assert '<td class="number">12800</td>' in page


EMPTY = {"parameters": 0, "parameter_bytes": 0, "flops_per_sample": 0}
NONE = {"gflop_per_sample": "", "flop_per_byte": "", "gflop_s": ""}


@pytest.mark.parametrize(
    ("replicas", "samples", "model", "expected"),
    [
        # One replica averages nothing.
        (1, 64, MODEL, {"replica_batch": "64", "flop_per_byte": ""}),
        (2, 128, EMPTY, {"flop_per_byte": "", "gflop_s": "0"}),
        # The arithmetic of a script is unknown.
        (2, 128, {**MODEL, "flops_per_sample": None}, {**NONE, "replica_batch": "64"}),
    ],
)
def test_what_is_not_known_is_empty(tmp_path, replicas, samples, model, expected):
    row = row_of(write_model(tmp_path, replicas, samples, model=model))
    assert row.items() >= expected.items()


def test_records_without_a_model_have_no_section_and_no_file(tmp_path):
    layout = write_model(tmp_path, 2, 128, model=None)
    assert TITLE not in layout.report.read_text()
    for name in ("models", "pipeline"):
        assert not layout.section(name).exists()


# --- pipelines ------------------------------------------------------------------------


def write_pipeline(
    layout: Layout, planned: dict[str, Any], rate: float, bubble: float
) -> None:
    """Launches whose ranks have waited for this share of a step, and for 0.1 more."""
    write_launches(layout, planned, rate=rate)
    count = planned["cell"]["options"]["microbatches"]
    for path in layout.records.glob(f"{planned['id']}/1/*/record.json"):
        with edited(path) as record:
            for number, rank in enumerate(record["ranks"]):
                rank["details"] = {
                    **{"microbatches": count, "bubble": bubble + 0.1 * number},
                    "ideal_bubble": 1 / (count + 1),
                }


def test_bubble_stands_beside_the_ideal_and_the_speedup(tmp_path):
    cells = [
        plan_cell(
            *("pipeline", "1x2"),
            suffix=f".microbatches={count}",
            phases=["load", "transfer", "pipeline", "update"],
            backend="gloo",
            options={"schedule": "gpipe", "microbatches": count},
        )
        for count in (2, 8)
    ]
    layout = write_plan(tmp_path, [single := plan_cell("single"), *cells])
    write_launches(layout, single, rate=800)
    for planned, rate, bubble in zip(cells, (900, 1200), (0.4, 0.16), strict=True):
        write_pipeline(layout, planned, rate, bubble)
    write_tables(layout)
    rows = read_rows(layout, "pipeline")
    for name, values in (
        ("microbatches", ["2", "8"]),
        ("ranks", ["2", "2"]),
        ("bubble", ["0.45", "0.21"]),
        ("ideal_bubble", ["0.3333", "0.1111"]),
    ):
        assert [row[name] for row in rows] == values
    assert [float(row["speedup"]) for row in rows] == pytest.approx([1.125, 1.5])
    assert "<summary>Pipelines</summary>" in layout.report.read_text()
    # And over their number: those of one schedule in one line.
    (drawing,) = load_sections()["pipeline"].make(read(layout)).drawings
    (axes,) = drawing.draw(6.4).axes
    shown = [
        (*line.get_xdata(), *line.get_ydata())
        for line in axes.get_lines()
        if line.get_markersize() == 5.5
    ]
    speedups = [pytest.approx(float(row["speedup"]), rel=1e-3) for row in rows]
    assert shown == [(2, speedups[0]), (8, speedups[1])]


# --- profiles: operators, traces, pictures, and what is removed with them -------------
CELL = "ddp.gloo.1x2.convnet.digits"
PLOT = f"profile-{CELL}"


def write(root: Path, **profile: Any) -> Layout:
    """One cell with a profile."""
    layout, planned = plan_one(root, "ddp", "1x2")
    write_launch(layout, planned, wanted=1)
    write_profile(layout, planned, **{"ranks": 2, **profile})
    return layout


def find(layout: Layout):
    return load_profiles(read(layout))[0]


def test_operators_of_each_rank_by_step(tmp_path):
    layout = write(tmp_path)
    write_tables(layout)
    first, second, *_ = rows = read_rows(layout, "profiles")
    assert [row["rank"] for row in rows] == ["0", "0", "1", "1"]
    assert list(first.values()) == [CELL, "0", "aten::mm", "4", "15", "0", "0.5"]
    assert (second["calls"], second["cpu_ms"], second["share"]) == ("0.5", "3", "0.1")
    # With a GPU, the share is by its time.
    layout = write(tmp_path / "gpu", device_ms=48.0)
    write_tables(layout)
    rows = read_rows(layout, "profiles")
    assert [row["share"] for row in rows if row["rank"] == "0"] == ["0.8", "0"]


def test_pages_lead_to_traces_and_show_the_picture(tmp_path):
    layout = write(tmp_path)
    write_tables(layout)
    trace = f"records/{CELL}/1/profile/1/trace1.json.gz"
    page = layout.report.read_text()
    assert f'<a href="{trace}">trace1.json.gz</a>' in page
    assert f'<img src="plots/{PLOT}.svg"' in page
    assert f"<h3>{CELL}, rank 1</h3>" in page
    assert "GPU ms/step" not in page


def test_addresses_are_quoted(tmp_path):
    planned = plan_cell("ddp", "1x2", suffix=".a b#c?(d)")
    layout = write_plan(tmp_path, [planned])
    write_launch(layout, planned, wanted=1)
    write_profile(layout, planned)
    write_tables(layout)
    quoted = f"records/{CELL}.a%20b%23c%3F%28d%29/1/profile/1/trace0.json.gz"
    assert f'href="{quoted}"' in layout.report.read_text()


def test_the_first_profile_that_succeeded_counts_if_the_row_is_ok(tmp_path):
    layout, planned = write(tmp_path, number=2), plan_cell("ddp", "1x2")
    write_profile(layout, planned, number=1, status="oom", profile=None)
    (profile,) = find(layout)
    assert profile.folder == f"records/{CELL}/1/profile/2"
    failed = {"wanted": 2, "status": "crashed", "reason": "no"}
    write_launch(layout, planned, 2, **failed)
    assert not find(layout)


def test_a_rank_has_phases_and_collectives_beneath(tmp_path):
    (profile,) = find(write(tmp_path))
    (axes,) = draw_timeline(profile, width=8).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["rank 0", "rank 1"]
    # For each rank there are its phases, and two lanes because its collectives overlap.
    phases, *lanes = axes.collections[:3]
    bounds = [path.get_extents() for path in phases.get_paths()]
    assert [(b.x0, b.x1) for b in bounds] == [(0, 10), (10, 30), (30, 40), (40, 60)]
    colors = color_phases(["forward", "backward"])
    shown = [to_hex(color) for color in phases.get_facecolors()]
    assert shown == [to_hex(colors[name]) for name in ("forward", "backward") * 2]
    starts = [[p.get_extents().x0 for p in lane.get_paths()] for lane in lanes]
    assert starts == [[12, 42], [15, 45]]
    below = max(path.get_extents().y1 for path in phases.get_paths())
    assert all(p.get_extents().y0 >= below for lane in lanes for p in lane.get_paths())


def test_of_many_ranks_the_first_are_shown(tmp_path):
    (profile,) = find(write(tmp_path, ranks=MOST_RANKS + 3))
    (axes,) = draw_timeline(profile, width=8).axes
    assert len(axes.get_yticks()) == MOST_RANKS
    assert axes.get_title(loc="left") == f"{CELL} (the first 8 of 11 ranks)"


def test_lanes_hold_no_overlap():
    a, b, c, d = (
        {"start_ms": start, "ms": ms} for start, ms in ((0, 5), (1, 2), (3, 4), (5, 1))
    )
    assert split_lanes([d, c, b, a]) == [[a, d], [b, c]]


def test_files_go_with_the_profile(tmp_path):
    layout = write(tmp_path)
    write_results(read(layout))
    made = [layout.section("profiles")]
    made += [layout.plot(PLOT, suffix) for suffix in ("svg", "png")]
    assert all(path.exists() for path in made)
    shutil.rmtree(layout.attempt(CELL, 1) / "profile")
    write_results(read(layout), plots=False)
    assert not any(path.exists() for path in made)
    assert layout.plot("throughput", "svg").exists()
    assert "Profiles" not in layout.report.read_text()


# --- diagnostics ----------------------------------------------------------------------
DDP_CELL = plan_cell("ddp", "1x2")
Table = list[dict[str, str]]


def read_tables(layout: Layout) -> dict[str, Table]:
    """Title -> rows of the table, from diagnostics.csv."""
    write_tables(layout)
    tables: dict[str, dict[str, dict[str, str]]] = {}
    for row in read_rows(layout, "diagnostics"):
        rows = tables.setdefault(row["table"], {})
        fields = rows.setdefault(row["row"], {"cell": row["cell"]})
        fields[row["column"]] = row["value"]
    return {title: list(rows.values()) for title, rows in tables.items()}


def write_ddp(root: Path, *changes: Callable[[dict[str, Any]], object]) -> Layout:
    """One cell, and a launch for each change of its record."""
    layout = write_plan(root, [DDP_CELL])
    for number, change in enumerate(changes, start=1):
        place = write_launch(layout, DDP_CELL, number, wanted=len(changes))
        with edited(place / "record.json") as record:
            change(record)
    return layout


def test_launches_of_all_cells_stand_in_the_order_of_time(tmp_path):
    single = plan_cell("single")
    layout = write_plan(tmp_path, [single, DDP_CELL], launches=2)
    for planned, number, second in ((single, 1, 3), (single, 2, 1), (DDP_CELL, 1, 2)):
        own = {"wanted": 2 if planned is single else 1, "rate": 800 + second}
        started = f"2026-11-22T00:00:0{second}+00:00"
        write_launch(layout, planned, number, started=started, **own)
    rows = read_tables(layout)["Launches"]
    found = [(row["cell"], row["launch"]) for row in rows]
    assert found == [(single["id"], "2"), (DDP_CELL["id"], "1"), (single["id"], "1")]
    assert rows[0]["throughput (samples/s)"] == "801"


def test_between_and_within_launches_stand_apart(tmp_path):
    layout = write_plan(tmp_path, [DDP_CELL])
    for number, rate in enumerate((780, 790, 800, 800, 810, 820), start=1):
        write_launch(layout, DDP_CELL, number, rate=rate)
    (row,) = read_tables(layout)["Scatter"]
    # The quartiles are 792.5 and 807.5 around 800; all steps of a launch are equal.
    assert float(row["between (%)"]) == pytest.approx(1.875)
    assert float(row["within (%)"]) == pytest.approx(0, abs=1e-9)
    assert (row["launches"], row["steady"]) == ("6", "6/6")


def test_training_is_a_mean_over_launches(tmp_path):
    def change(number: int) -> Callable[[dict[str, Any]], object]:
        def apply(record: dict[str, Any]) -> None:
            record["loss"] = {"first": 2.0, "last": number / 10}
            record["accuracy"]["per_class"] = [0.5, None, number / 10]
            slow, fast = record["ranks"]
            slow["epochs_s"], fast["epochs_s"] = [3.0 + number, 1.0], [3.0, 2.0]

        return apply

    (row,) = read_tables(write_ddp(tmp_path, *map(change, range(1, 7))))["Training"]
    assert row["first epoch (s)"] == "6.5 [4.537, 8.463]"
    assert row["later epochs (s)"] == "2 [2, 2]"
    assert row["last loss"] == row["class 2"] == "0.35 [0.1537, 0.5463]"
    assert "class 1" not in row
    assert row["accuracy"] == "0.97 [0.97, 0.97]"
    assert "busiest expert" not in row


def test_the_load_of_the_busiest_expert_is_that_of_all_ranks(tmp_path):
    """A block may be on both ranks, or as a stage on one of them."""

    def route(record: dict[str, Any]) -> None:
        first, second = record["ranks"]
        first["details"] = {"routed": {"block1": [6, 0], "block2": [4, 4]}}
        second["details"] = {"routed": {"block1": [0, 2], "block3": [0, 8]}}

    (row,) = read_tables(write_ddp(tmp_path, route))["Training"]
    # 1.5, 1 and 2 times an equal share.
    assert row["busiest expert"] == "1.5"


def test_utilisation_is_a_mean_over_launches(tmp_path):
    def change(cpu: list[float], gpu: list[Any]) -> Callable[[dict[str, Any]], object]:
        def apply(record: dict[str, Any]) -> None:
            for rank, share in zip(record["ranks"], cpu, strict=True):
                rank["cpu_utilisation"] = share
            record["devices"] = [{"utilisation_mean": mean} for mean in gpu]

        return apply

    changes = change([1.0, 0.5], [0.9, None]), change([0.9, 0.7], [0.8, None])
    (row,) = read_tables(write_ddp(tmp_path, *changes))["Ranks"]
    assert row["CPU of each rank"] == "95 %, 60 %"
    assert row["GPU of each device"] == "85 %, ?"
    assert row["memory of each rank (MiB)"] == "350, 351"


TIMERS = {"forward_ms": 3.0, "backward_ms": 5.0, "communication_ms": 4.0}


def test_timers_of_ddp_stand_beside_our_phases(tmp_path):
    def change(*timers: dict[str, float]) -> Callable[[dict[str, Any]], object]:
        def apply(record: dict[str, Any]) -> None:
            for rank, own in zip(record["ranks"], timers, strict=True):
                rank["details"] = {"ddp_timers": own and {**own, "iteration": 10}}

        return apply

    known = {**TIMERS, "overlap_ms": 2.5}
    both = change(known, {**known, "forward_ms": 4.0})
    rows = read_tables(write_ddp(tmp_path / "all", both))["DDP's own timers"]
    assert [(row["phase"], row["DDP's (ms)"]) for row in rows] == [
        ("forward", "3.5"),
        ("backward", "5"),
        ("communication", "1.5"),
    ]
    ours = [float(row["ours (ms)"]) for row in rows]
    layout = Layout(tmp_path / "all")
    (phases,) = read_rows(layout, "phases")
    for row, own in zip(rows, ours, strict=True):
        assert f"{row['phase']} {own:g}" in phases["phases_ms"]
    # A timer that a torch lacks, and a rank that has none.
    rows = read_tables(write_ddp(tmp_path / "some", change(known, TIMERS)))
    assert [row["phase"] for row in rows["DDP's own timers"]] == ["forward", "backward"]
    assert "DDP's own timers" not in read_tables(
        write_ddp(tmp_path / "none", change(known, {}))
    )


NIC = {"name": "eth0", "driver": "mlx5_core", "model": "15b3:1017", "gbit_s": 25.0}
HOST = {"cpu": "Example CPU", "cores": 32, "memory_gib": 251.7, "kernel": "6.1"}
GPUS = {
    **{"os": "Example Linux 12", "nics": [NIC], "gpu_links": ["NV12"]},
    "gpus": [{"name": "Example GPU", "memory_gib": 79.6}] * 2,
    "gpu_driver": "550.54.15",
}


def test_hosts_and_versions(tmp_path):
    hosts = [{"host": "a", **HOST, **GPUS}, {"host": "b", **HOST, "gpus": []}]
    layout = write_ddp(tmp_path, lambda record: record.update(hosts=hosts))
    rows = read_tables(layout)["Environment"]
    assert list(rows[0])[1:] == ["servers"]
    found = {name: value for row in rows for name, value in list(row.items())[1:]}
    nic = "1 x eth0 (15b3:1017, driver mlx5_core, 25 Gbit/s)"
    assert (
        found.items()
        >= {
            **{
                "servers": "2",
                "CPU": "Example CPU, 32 cores",
                "images": "none: native",
            },
            "network cards": f"{nic} (1 host); none (1 host)",
            "GPUs": "2 x Example GPU, 80 GiB (1 host); none (1 host)",
            "GPU driver": "550.54.15 (1 host); none (1 host)",
            **{"PyTorch": "2.13.0", "NCCL": "none"},
        }.items()
    )
