"""The table: its numbers, their bases, and all formats."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import rankbench.results
from pages import Words
from rankbench.record import PLOTS
from rankbench.results.advice.answer import find_answer
from rankbench.results.elements.text import figures, show_estimate
from rankbench.results.numbers.result_set import read
from rankbench.results.numbers.statistics import Estimate
from unit.synthetic import (
    BATCH,
    STEPS,
    WARMUP,
    change_steps,
    edited,
    plan_cell,
    plan_one,
    read_report,
    read_rows,
    write_cells,
    write_example,
    write_launch,
    write_launches,
    write_plan,
    write_rows,
    write_tables,
)

pytestmark = pytest.mark.unit

# A name with a star has the ends of its interval, too.
HEADER = """
experiment cell strategy backend topology devices launcher model data batch_size scaling
status reason marks launches_ok launches throughput step_ms epoch_s total_s speedup*
base efficiency* memory_mib* accuracy* attempt ratios speedup_verdict efficiency_verdict
per_device disturbed repeated global_batch
"""
HEADER = re.sub(r"(\w+)\*", r"\1 \1_lo \1_hi", HEADER).split()
NUMBERS = [
    name
    for name in HEADER[HEADER.index("launches") + 1 :]
    if name not in ("base", "attempt", "ratios") and not name.endswith("_verdict")
]


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """Tables of rows of every status."""
    layout = write_example(tmp_path_factory.mktemp("example"))
    write_tables(layout)
    return layout


@pytest.fixture(scope="module")
def example(layout):
    return {row["cell"]: row for row in read_rows(layout)}


def test_columns_and_rows_are_those_of_the_plan(layout, example):
    assert layout.table("csv").read_text().splitlines()[0] == ",".join(HEADER)
    assert list(example) == [row.id for row in read(layout).rows]


BASE = "single.none.1x1.convnet.digits = 803.9 samples/s"


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (
            "ddp.gloo.1x2",
            {
                **{"experiment": "quickstart", "strategy": "ddp", "backend": "gloo"},
                **{"topology": "1x2", "devices": "2", "launcher": "spawn"},
                **{"batch_size": "64", "scaling": "weak", "attempt": "1"},
                **{"status": "ok", "reason": "", "launches_ok": "6", "launches": "6"},
                # Rates scatter from 0.98 to 1.03 times 1500; their geometric mean is
                # 1.005 times.
                **{"throughput": "1507", "memory_mib": "351", "accuracy": "0.97"},
                "base": BASE,
            },
        ),
        ("ddp_dp.none.1x2", {"launches_ok": "2", "launches": "6"}),
        ("ddp.gloo.1x4", {"marks": "oversubscribed unpaired"}),
        ("single.none.1x1", {"speedup": "1", "efficiency": "1", "base": BASE}),
    ],
)
def test_row_tells_what_was_measured(example, cell, expected):
    assert example[f"{cell}.convnet.digits"].items() >= expected.items()


@pytest.mark.parametrize(
    ("cell", "status"),
    [
        ("ddp.nccl.1x2", "unsupported"),
        ("ddp_dp.none.1x2", "crashed"),
        ("fsdp.none.1x2", "not-run"),
        ("zero.none.1x2", "stale"),
    ],
)
def test_row_that_is_not_ok_has_a_reason_and_no_number(example, cell, status):
    row = example[f"{cell}.convnet.digits"]
    assert row["status"] == status
    assert row["reason"]
    assert {row[name] for name in (*NUMBERS, "base")} == {""}


SINGLE, GPUS = ("single",), {"backend": "nccl", "device": "cuda"}
DDP, DDP2, SPAWN, TORCHRUN = ("ddp",), ("ddp", "1x2"), "spawn", "torchrun"
HOOK = {"options": {"hook": "powersgd"}}
HOOK, SHARED = {"options": {"hook": "powersgd"}}, {"oversubscribe": True}


# Cells and their rates -> of some of them the base, speedup and efficiency.
@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (
            [
                (SINGLE, {"device": "cuda"}, 100),
                (DDP2, GPUS, 190),
                (DDP2, {**GPUS, "gpudirect": False}, 180),
            ],
            {0: (0, 1, 1), 1: (0, 1.9, 0.95), 2: (0, 1.8, 0.9)},
        ),
        # Without single, the base of the efficiency is the strategy itself ...
        ([(DDP, {}, 100), (DDP2, {}, 190)], {0: (0, None, 1), 1: (0, None, 0.95)}),
        (
            [(DDP, {}, 800), (("ddp", "1x4"), {"oversubscribe": True}, 900)],
            {1: (0, None, 900 / 800 / 4)},
        ),
        # ... with the same options.
        (
            [(DDP, {}, 800), (DDP, HOOK, 400), (DDP2, HOOK, 700)],
            {2: (1, None, 700 / 400 / 2)},
        ),
        # Speedups have one base; an efficiency needs one with the same settings, and
        # another workload has neither.
        *(
            ([(SINGLE, {}, 800), (DDP2, {key: value}, 1500)], {1: (*base, None)})
            for key, value, base in (
                ("batch_size", 32, (0, 1500 / 800)),
                ("scaling", "strong", (0, 1500 / 800)),
                ("precision", "bf16", (0, 1500 / 800)),
                ("seed", 1, (0, 1500 / 800)),
                ("model", "lenet", (None, None)),
                ("optimizer", "adamw", (None, None)),
            )
        ),
        # Of the efficiency, the same launcher is preferred.
        (
            [
                (SINGLE, {"launcher": SPAWN}, 800),
                (SINGLE, {"launcher": TORCHRUN}, 400),
                (DDP2, {"launcher": TORCHRUN}, 1500),
            ],
            {1: (0, 0.5, 1), 2: (0, 1500 / 800, 1500 / 400 / 2)},
        ),
        (
            [(SINGLE, {}, 800), (SINGLE, {"compile": True}, 900)],
            {1: (0, 900 / 800, 1)},
        ),
        (
            [(("single", "1x2"), {}, 1200), (SINGLE, {}, 800), (DDP2, {}, 1500)],
            {0: (1, 1.5, 0.75), 2: (1, 1500 / 800, 1500 / 800 / 2)},
        ),
        ([(SINGLE, {}, 800), (("mp", "1x2"), {}, 700)], {1: (0, 7 / 8, 7 / 16)}),
    ],
)
def test_the_base_of_a_row(tmp_path, cells, expected):
    planned = [
        plan_cell(*name, suffix=f".{n}", **changes)
        for n, (name, changes, _) in enumerate(cells)
    ]
    layout = write_cells(tmp_path, *planned, rates=[rate for *_, rate in cells])
    rows = list(write_rows(layout).values())
    for place, (base, *ratios) in expected.items():
        row = rows[place]
        assert row["status"] == "ok"
        named = "" if base is None else planned[base]["id"]
        assert row["base"].partition(" = ")[0] == named
        for name, ratio in zip(("speedup", "efficiency"), ratios, strict=True):
            found = float(row[name]) if row[name] else None
            assert found == (ratio and pytest.approx(ratio, rel=1e-3))


@pytest.fixture
def two(tmp_path):
    """A plan of single and ddp, whose launches a test writes."""
    cells = plan_cell("single"), plan_cell("ddp", "1x2")
    return write_plan(tmp_path, cells), *cells


def test_base_that_is_not_ok_is_no_base(two):
    layout, single, ddp = two
    write_launches(layout, ddp)
    write_launches(layout, single, count=5)
    write_launch(layout, single, 6, status="timeout", reason="time limit of 60 s")
    row = write_rows(layout)[ddp["id"]]
    assert (row["throughput"], row["speedup"], row["base"]) == ("803.9", "", "")
    assert "no such cell is ok" in layout.table("md").read_text()


def test_base_of_another_torch_is_marked(two):
    layout, single, ddp = two
    write_launches(layout, single)
    write_launches(layout, ddp, software={"torch": "2.6.0", "python": "3.13"})
    rows = write_rows(layout)
    assert [rows[one["id"]]["marks"] for one in (single, ddp)] == ["", "mixed-torch"]
    assert [rows[one["id"]]["torch"] for one in (single, ddp)] == ["2.13.0", "2.6.0"]
    assert "- **mixed-torch**" in layout.table("md").read_text()


def test_launches_with_other_settings_are_not_compared(tmp_path):
    """Of rows with two settings, another one than the base, or unknown ones."""
    cells = [plan_cell("ddp", f"1x{n}") for n in (2, 4, 8, 16, 32)]
    layout = write_plan(tmp_path, [single := plan_cell("single"), *cells])
    ring, tree = (
        {"settings": {"NCCL_ALGO": name, "NCCL_PROTO": "LL"}}
        for name in ("Ring", "Tree")
    )
    unset = {"settings": {"NCCL_PROTO": "LL"}}
    for number, launcher in ((1, ring), (2, tree)):
        write_launch(layout, cells[2], number, wanted=2, launcher=launcher)
    others = [single, cells[0], cells[1], *cells[3:]]
    for cell, launcher in zip(others, (ring, ring, tree, {}, unset), strict=True):
        write_launches(layout, cell, launcher=launcher)
    rows = write_rows(layout)
    for cell in (single, *cells):
        assert "environment(NCCL_ALGO)" in rows[cell["id"]]["marks"].split()
    has_base = [rows[cell["id"]]["base"] != "" for cell in cells]
    assert has_base == [True, *[False] * 4]
    workloads = find_answer(read(layout)).workloads
    assert [facts.workload.split(", convnet")[0] for facts in workloads] == [
        *("NCCL_ALGO=Ring", "NCCL_ALGO=Tree", "mixed NCCL_ALGO"),
        *("NCCL_ALGO=unknown", "NCCL_ALGO=unset"),
    ]


def test_ranks_that_train_alone_are_not_compared(two):
    layout, single, ddp = two
    write_launches(layout, single)
    write_launches(layout, ddp, marks=["no-exchange"])
    row = write_rows(layout)[ddp["id"]]
    assert "no-exchange" in row["marks"]
    assert (row["status"], row["base"], row["efficiency"]) == ("ok", "", "")
    alone = find_answer(read(layout)).workloads[1]
    assert alone.workload.startswith("no exchange of gradients, convnet")
    assert alone.undecided


CUDA = {"backend": "nccl", "device": "cuda"}


def told(*ranks):
    """What the logs of ranks say of GPUDirect."""
    seen = [
        {"ranks": [rank], "libraries": {"nccl": {"gpudirect_rdma": one}}}
        for rank, one in enumerate(ranks)
    ]
    return {"transport": {"backend": "nccl", "asked": {}, "seen": seen}}


def counted(record):
    counts = {"inputs": 40, "planned": 64}
    record["ranks"][0]["details"] = {"optimizer": "SGD of 9", "counted": counts}


# A cell, what its record says, and the note.
@pytest.mark.parametrize(
    ("cell", "record", "note"),
    [
        ({**CUDA, "gpudirect": "auto"}, told(True), None),
        ({**CUDA, "gpudirect": True}, told(True, True), "gpudirect on: it was in eff"),
        ({**CUDA, "gpudirect": True}, told(False), "gpudirect on: it was not in eff"),
        ({**CUDA, "gpudirect": False}, told(False, None), "off: it was not in effect"),
        (
            {**CUDA, "gpudirect": True},
            told(False, True),
            "on: it was in effect; on other ranks it was not in effect.",
        ),
        ({**CUDA, "gpudirect": True}, told(None), "gpudirect on: no log says whether "),
        ({**CUDA, "gpudirect": False}, told(), "gpudirect off: no log says whether "),
        ({}, {}, None),
        (
            {"script": {"samples_per_step": "64", "args": ""}},
            counted,
            "by SGD of 9, inputs of 40 samples",
        ),
    ],
)
def test_a_note_says_what_the_records_say(tmp_path, cell, record, note):
    layout, planned = plan_one(tmp_path, "ddp", "2x1", **cell)
    changes = {"gate": None} if callable(record) else {"gate": None, **record}
    path = write_launch(layout, planned, wanted=1, **changes) / "record.json"
    if callable(record):
        with edited(path) as written:
            record(written)
    write_tables(layout)
    text = read_report(layout)
    if note:
        assert note in text
    else:
        assert "gpudirect" not in text
        assert "compared with single" not in text


def test_a_note_says_how_near_the_gate_found_the_rows(tmp_path):
    exact = {"status": "ok", "dtype": "float64", "lossy": False, "tolerance": 1e-6}
    exact |= {"weights_error": 3e-15, "loss_error": 1e-16}
    lossy = exact | {"lossy": True, "tolerance": 0.1, "loss_error": 0.04}
    gates = {"single": None, "ddp": exact, "fsdp": exact | {"loss_error": 2e-14}}
    gates |= {"zero": lossy, "mp": {"status": "ok"}, "ddp_dp": None}
    cells = {name: plan_cell(name) for name in gates}
    layout = write_plan(tmp_path, [*cells.values()])
    for name, planned in cells.items():
        write_launch(layout, planned, wanted=1, gate=gates[name])
    write_tables(layout)
    assert (
        " gate 4 of 5 rows compared with single. 2 rows in float64 (tolerance 1e-06), "
        "weights and loss off by at most 2e-14. 1 row with a lossy option (tolerance "
        "0.1), loss off by at most 0.04. "
    ) in read_report(layout)


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        ((812.34,), "812.3"),
        ((812.34, 801.2, 820.5), "812 [801, 820]"),
        ((1183.4, 1010.2, 1268.3), "1180 [1010, 1270]"),
        ((36.03, 36.021, 36.042), "36.03 [36.02, 36.04]"),
        ((0.95667, 0.95612, 0.95718), "0.9567 [0.9561, 0.9572]"),
        ((6.5, 4.0, 9.0), "6.5 [4.0, 9.0]"),
        # All launches agree.
        ((0.9722, 0.9722, 0.9722), "0.9722 [0.9722, 0.9722]"),
        ((0.0, 0.0, 0.0), "0 [0, 0]"),
        ((2e-7, 1e-7, 4e-7), "0.00000020 [0.00000010, 0.00000040]"),
    ],
)
def test_digits_follow_the_interval(estimate, text):
    assert str(show_estimate(Estimate(*estimate))) == text


def test_figures_are_no_powers_of_ten():
    values = (1.0, 0.97222, 123456.0, 12345678.9, 0.000012345, 0.1 + 0.2)
    assert [figures(value) for value in values] == [
        *("1", "0.9722", "123500", "12350000", "0.00001234", "0.3"),
    ]
    assert [figures(value, 2) for value in (32_123, 6.54)] == ["32000", "6.5"]


def test_unchanged_table_is_not_written_again(layout):
    before = layout.report.stat().st_mtime_ns
    write_tables(layout)
    assert layout.report.stat().st_mtime_ns == before


@pytest.mark.parametrize("suffix", ["md", "html", "tex"])
def test_notes_explain_what_occurs(layout, suffix):
    text = layout.table(suffix).read_text().replace("\\", "")
    text = re.sub("<[^>]*>", " ", text).replace("  ", " ")
    for part in (
        "means over launches",
        "batch_size is per model replica",
        "single.none.1x1 = 803.9 samples/s",
        "was not launched in the same rounds",
        "ranks share a core or a GPU",
        "nccl carries CUDA tensors only",
        "rank 1 ended by SIGSEGV",
        "Example CPU, 2 cores, 23 GiB",
        "torch 2.13.0",
    ):
        assert part in text
    assert "batch_size is global" not in text
    assert "lossy" not in text


HOSTILE = '<script>alert(1)</script> | [x](javascript:y) & "q" \\end{tabular} 50% `a`'


def test_every_format_escapes_reasons(tmp_path):
    layout = write_plan(tmp_path, [plan_cell("ddp", "1x2", infeasible=HOSTILE)])
    write_tables(layout)
    page = layout.report.read_text()
    assert HOSTILE in Words(page).text
    # It needs no other files but its plots.
    assert "http" not in page.replace("http-equiv", "")
    assert all(f'<img src="plots/{name}.svg"' in page for name in PLOTS)
    text = layout.table("md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| unsupported")]
    assert row.replace("\\|", "").count("|") == 5
    text = layout.table("tex").read_text()
    assert text.count(r"\end{tabular}") == 1
    assert r"50\%" in text
    assert r"\textbackslash{}end\{tabular\}" in text
    (row,) = read_rows(layout)
    assert row["reason"] == HOSTILE


def test_rows_without_numbers_are_one_for_each_reason(tmp_path):
    cells = [plan_cell("ddp", f"1x{n}", infeasible="no GPU") for n in range(1, 7)]
    cells += [plan_cell("fsdp", "1x2", infeasible="no torch"), plan_cell("single")]
    layout = write_plan(tmp_path, cells)
    write_launches(layout, cells[-1])
    assert len(write_rows(layout)) == 8
    names = ", ".join(f"ddp.gloo.1x{n}" for n in range(1, 5))
    text = layout.table("md").read_text()
    assert f"| unsupported | 6 | {names} and 2 more | no GPU |" in text
    assert "| unsupported | 1 | fsdp.none.1x2 | no torch |" in text
    assert "- **cells**: 8: 1 ok, 7 unsupported." in text
    assert "All cells: convnet.digits." in text


def test_empty_plan_makes_an_empty_table(tmp_path):
    layout = write_plan(tmp_path, [])
    write_tables(layout)
    assert layout.table("csv").read_text() == ",".join(HEADER) + "\n"


def test_a_folder_is_loaded_as_a_frame(layout, example):
    frame = rankbench.load(layout.root)
    assert sorted(frame.columns) == sorted(HEADER)
    for _, loaded in frame.iterrows():
        row = example[loaded.cell]
        assert loaded.status == row["status"]
        if row["speedup_lo"]:
            low = pytest.approx(float(row["speedup_lo"]), rel=1e-3)
            assert loaded.speedup_lo == low
    with pytest.raises(ValueError, match="does not exist: give results or a bundle"):
        rankbench.load(layout.root / "nothing")


def test_the_package_itself_imports_no_pandas():
    code = "import rankbench.results, sys; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_time_to_a_loss(two):
    """The losses of these launches fall evenly from 2.3 to 0.4, in equal steps."""
    layout, *cells = two
    for planned, rate in zip(cells, (800, 1600), strict=True):
        write_launches(layout, planned, rate=rate)
    steps = WARMUP + STEPS
    # The loss of a step is the mean of those up to it, of 20 at most.
    last = float(np.linspace(2.3, 0.4, steps).mean())

    def rows_for(goal, name="loss"):
        with edited(layout.plan) as plan:
            plan["experiment"]["target"] = goal and {name: goal}
        return list(write_rows(layout).values())

    assert "target" not in rows_for(None)[0]
    single, ddp = rows_for(last + 1e-3)
    assert (single["target"], ddp["target"]) == ("reached", "reached")
    assert float(single["target_samples"]) == steps * BATCH
    assert float(ddp["target_samples"]) == 2 * steps * BATCH
    # The window of the record, for each of its steps.
    seconds = float(single["total_s"]) * steps / STEPS
    assert float(single["target_s"]) == pytest.approx(seconds, rel=1e-3)
    assert float(single["target_s_lo"]) < seconds < float(single["target_s_hi"])
    assert f"to loss {last + 1e-3:g} (s)" in layout.table("md").read_text()
    single, _ = rows_for(last - 1e-3)
    assert (single["target"], single.get("target_s", "")) == ("not reached", "")
    # The records say 0.97, after the last step.
    assert float(rows_for(0.97, "accuracy")[0]["target_samples"]) == steps * BATCH
    assert rows_for(0.98, "accuracy")[0]["target"] == "not reached"
    # As of a script that reports no loss.
    for place in layout.attempt(cells[0]["id"], 1).iterdir():
        change_steps(place, rank0_loss=np.full(steps, np.nan, np.float32))
    single, ddp = rows_for(last + 1e-3)
    assert (single["target"], ddp["target"]) == ("not measured", "reached")


def test_settings_of_a_cell_are_columns_where_one_has_them(tmp_path):
    keys = ("env", "image", "partition")
    settings = {"env": {"A": "1", "B": "2"}, "image": "ngc", "partition": "gpu"}
    plain, other = plan_cell(), plan_cell(suffix=".image=ngc", **settings)
    layout = write_cells(tmp_path, plain)
    assert not {*keys} & next(iter(write_rows(layout).values())).keys()
    layout = write_plan(tmp_path, [plain, other])
    write_launches(layout, other)
    rows = write_rows(layout)
    assert [rows[plain["id"]][key] for key in keys] == ["", "", ""]
    assert [rows[other["id"]][key] for key in keys] == ["A=1 B=2", "ngc", "gpu"]
    assert "partition=gpu" in layout.table("md").read_text()
