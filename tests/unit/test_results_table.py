"""The table: its numbers, their bases, and all formats."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

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
    make_cell,
    plan_cell,
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

HEADER = (
    "experiment,cell,strategy,backend,topology,devices,launcher,model,data,batch_size,"
    "scaling,status,reason,marks,launches_ok,launches,"
    "throughput,step_ms,epoch_s,total_s,"
    "speedup,speedup_lo,speedup_hi,base,efficiency,efficiency_lo,efficiency_hi,"
    "memory_mib,memory_mib_lo,memory_mib_hi,accuracy,accuracy_lo,accuracy_hi,attempt,"
    "ratios,speedup_verdict,efficiency_verdict,"
    "per_device,disturbed,repeated,global_batch"
)
NUMBERS = [
    name
    for name in HEADER.partition(",launches,")[2].split(",")
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
    assert layout.table("csv").read_text().splitlines()[0] == HEADER
    assert list(example) == [row.id for row in read(layout).rows]


BASE = "single.none.1x1.convnet.digits = 803.9/s"


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
                "throughput": "1507",
                **{"memory_mib": "351", "accuracy": "0.97"},
                "base": BASE,
            },
        ),
        (
            "ddp_dp.none.1x2",
            {"launches_ok": "2", "launches": "6", "reason": "rank 1 ended by SIGSEGV"},
        ),
        ("ddp.gloo.1x4", {"marks": "oversubscribed unpaired"}),
        ("single.none.1x1", {"speedup": "1", "efficiency": "1", "base": BASE}),
        ("mp.none.1x2", {"base": BASE}),
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


def test_speedup_and_efficiency_name_their_bases(example):
    for cell, rate, devices in (
        ("ddp.gloo.1x2", 1507.5, 2),
        ("ddp.gloo.1x1", 794, 1),
        ("mp.none.1x2", 704, 2),
    ):
        row = example[f"{cell}.convnet.digits"]
        speedup = float(row["speedup"])
        assert speedup == pytest.approx(rate / 804, rel=1e-2)
        assert float(row["efficiency"]) == pytest.approx(speedup / devices, rel=1e-3)
        if row["launches_ok"] == "6":
            assert float(row["speedup_lo"]) < speedup < float(row["speedup_hi"])


SINGLE, GPUS = make_cell("single"), {"backend": "nccl", "device": "cuda"}
HOOK, SHARED = {"options": {"hook": "powersgd"}}, {"oversubscribe": True}


# Cells and their rates -> of some of them the base, speedup and efficiency.
@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (
            [
                (make_cell("single", device="cuda"), 100),
                (make_cell("ddp", "1x2", **GPUS), 190),
                (make_cell("ddp", "1x2", **GPUS, gpudirect=False), 180),
            ],
            {0: (0, 1, 1), 1: (0, 1.9, 0.95), 2: (0, 1.8, 0.9)},
        ),
        # Without single, the base of the efficiency is the strategy itself ...
        (
            [(make_cell("ddp"), 100), (make_cell("ddp", "1x2"), 190)],
            {0: (0, None, 1), 1: (0, None, 0.95)},
        ),
        (
            [
                (make_cell("ddp"), 800),
                (make_cell("ddp", "1x4", **SHARED), 900),
            ],
            {1: (0, None, 900 / 800 / 4)},
        ),
        # ... with the same options.
        (
            [
                (make_cell("ddp"), 800),
                (make_cell("ddp", **HOOK), 400),
                (make_cell("ddp", "1x2", **HOOK), 700),
            ],
            {2: (1, None, 700 / 400 / 2)},
        ),
        # Speedups have one base; an efficiency needs one with the same settings.
        *(
            (
                [(SINGLE, 800), (make_cell("ddp", "1x2", **difference), 1500)],
                {1: (0, 1500 / 800, None)},
            )
            for difference in (
                *({"batch_size": 32}, {"scaling": "strong"}),
                *({"precision": "bf16"}, {"seed": 1}),
            )
        ),
        *(
            (
                [(SINGLE, 800), (make_cell("ddp", "1x2", **difference), 1500)],
                {1: (None, None, None)},
            )
            for difference in ({"model": "lenet"}, {"optimizer": "adamw"})
        ),
        # Of the efficiency, the same launcher is preferred.
        (
            [
                (make_cell("single", launcher="spawn"), 800),
                (make_cell("single", launcher="torchrun"), 400),
                (make_cell("ddp", "1x2", launcher="torchrun"), 1500),
            ],
            {1: (0, 0.5, 1), 2: (0, 1500 / 800, 1500 / 400 / 2)},
        ),
        (
            [(SINGLE, 800), (make_cell("single", compile=True), 900)],
            {1: (0, 900 / 800, 1)},
        ),
        (
            [
                (make_cell("single", "1x2"), 1200),
                (SINGLE, 800),
                (make_cell("ddp", "1x2"), 1500),
            ],
            {0: (1, 1.5, 0.75), 2: (1, 1500 / 800, 1500 / 800 / 2)},
        ),
    ],
)
def test_the_base_of_a_row(tmp_path, cells, expected):
    planned = [plan_cell(cell, suffix=f".{n}") for n, (cell, _) in enumerate(cells)]
    layout = write_cells(tmp_path, *planned, rates=[rate for _, rate in cells])
    rows = list(write_rows(layout).values())
    for place, (base, *ratios) in expected.items():
        row = rows[place]
        assert row["status"] == "ok"
        named = "" if base is None else planned[base]["id"]
        assert row["base"].partition(" = ")[0] == named
        for name, ratio in zip(("speedup", "efficiency"), ratios, strict=True):
            found = float(row[name]) if row[name] else None
            assert found == (ratio and pytest.approx(ratio, rel=1e-3))


def test_base_that_is_not_ok_is_no_base(tmp_path):
    single, ddp = plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))
    layout = write_plan(tmp_path, [single, ddp])
    write_launches(layout, ddp)
    write_launches(layout, single, count=5)
    write_launch(layout, single, 6, status="timeout", reason="time limit of 60 s")
    row = write_rows(layout)[ddp["id"]]
    assert row["throughput"] == "803.9"
    assert (row["speedup"], row["base"]) == ("", "")
    assert "no such cell is ok" in layout.table("md").read_text()


def test_base_of_another_torch_is_marked(tmp_path):
    single, ddp = plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))
    layout = write_plan(tmp_path, [single, ddp])
    write_launches(layout, single)
    write_launches(layout, ddp, software={"torch": "2.6.0", "python": "3.13"})
    rows = write_rows(layout)
    assert "2.6.0" in layout.table("md").read_text()
    assert rows[ddp["id"]]["marks"] == "mixed-torch"
    assert rows[single["id"]]["marks"] == ""
    assert "- **mixed-torch**: it or its base ran" in layout.table("md").read_text()
    assert {row["torch"] for row in rows.values()} == {"2.13.0", "2.6.0"}


def test_launches_with_other_settings_are_not_compared(tmp_path):
    """Of rows with two settings, another one than the base, or unknown ones."""
    cells = [plan_cell(make_cell("ddp", f"1x{n}")) for n in (2, 4, 8, 16, 32)]
    single = plan_cell(make_cell("single"))
    layout = write_plan(tmp_path, [single, *cells])

    def launcher(algorithm):
        return {"settings": {"NCCL_ALGO": algorithm, "NCCL_PROTO": "LL"}}

    for cell in (single, cells[0]):
        write_launches(layout, cell, launcher=launcher("Ring"))
    write_launches(layout, cells[1], launcher=launcher("Tree"))
    for number, algorithm in ((1, "Ring"), (2, "Tree")):
        write_launch(layout, cells[2], number, wanted=2, launcher=launcher(algorithm))
    write_launches(layout, cells[3], launcher={})
    write_launches(layout, cells[4], launcher={"settings": {"NCCL_PROTO": "LL"}})
    rows = write_rows(layout)
    for cell in (single, *cells):
        assert "environment(NCCL_ALGO)" in rows[cell["id"]]["marks"].split()
    has_base = [rows[cell["id"]]["base"] != "" for cell in cells]
    assert has_base == [True, *[False] * 4]
    assert "- **environment(NCCL_ALGO)**" in layout.table("md").read_text()
    workloads = find_answer(read(layout)).workloads
    assert [facts.workload.split(", convnet")[0] for facts in workloads] == [
        "NCCL_ALGO=Ring",
        "NCCL_ALGO=Tree",
        "mixed NCCL_ALGO",
        "NCCL_ALGO=unknown",
        "NCCL_ALGO=unset",
    ]


def test_ranks_that_train_alone_are_not_compared(tmp_path):
    single, ddp = plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))
    layout = write_plan(tmp_path, [single, ddp])
    write_launches(layout, single)
    write_launches(layout, ddp, marks=["no-exchange"])
    row = write_rows(layout)[ddp["id"]]
    assert "no-exchange" in row["marks"]
    assert (row["status"], row["base"], row["efficiency"]) == ("ok", "", "")
    alone = find_answer(read(layout)).workloads[1]
    assert alone.workload.startswith("no exchange of gradients, convnet")
    assert str(alone.undecided).startswith("only ddp over gloo on 2 cores was measured")


def test_a_note_says_which_steps_of_a_script_are_counted(tmp_path):
    script = {"samples_per_step": "64", "args": ""}
    planned = plan_cell(make_cell("single", script=script))
    layout = write_plan(tmp_path, [planned], launches=1)
    path = write_launch(layout, planned, wanted=1) / "record.json"
    with edited(path) as record:
        counted = {"inputs": 40, "planned": 64}
        record["ranks"][0]["details"] = {"optimizer": "SGD of 9", "counted": counted}
    write_rows(layout)
    text = read_report(layout)
    assert f"of {planned['id']}: by SGD of 9, inputs of 40 samples" in text


@pytest.mark.parametrize(
    ("asked", "told", "note"),
    [
        ("auto", [True], None),
        (True, [True, True], "gpudirect on: it was in effect."),
        (True, [False], "gpudirect on: it was not in effect."),
        (False, [False, None], "gpudirect off: it was not in effect."),
        (
            True,
            [False, True],
            "gpudirect on: it was in effect; on other ranks it was not in effect.",
        ),
        (True, [None], "gpudirect on: no log says whether it was in effect "),
        (False, [], "gpudirect off: no log says whether it was in effect "),
    ],
)
def test_notes_tell_whether_gpudirect_was_in_effect(tmp_path, asked, told, note):
    cell = make_cell("ddp", "2x1", backend="nccl", device="cuda", gpudirect=asked)
    planned = plan_cell(cell)
    layout = write_plan(tmp_path, [planned])
    seen = [
        {"ranks": [rank], "libraries": {"nccl": {"gpudirect_rdma": one}}}
        for rank, one in enumerate(told)
    ]
    transport = {"backend": "nccl", "asked": {}, "seen": seen}
    write_launch(layout, planned, wanted=1, transport=transport)
    write_tables(layout)
    text = read_report(layout)
    if note is None:
        assert "gpudirect" not in text
    else:
        assert f"{planned['id']} {note}" in text


EXACT = {"status": "ok", "dtype": "float64", "lossy": False, "tolerance": 1e-6}
LOSSY = {"status": "ok", "dtype": "float32", "lossy": True, "tolerance": 0.1}


@pytest.mark.parametrize(
    ("gates", "note"),
    [
        ([None, None], None),
        ([{"status": "ok"}, None], "1 of 2 rows compared with single."),
        (
            [
                {**EXACT, "weights_error": 3e-15, "loss_error": 1e-16},
                {**EXACT, "weights_error": 0.0, "loss_error": 2e-14},
            ],
            "2 of 2 rows compared with single. 2 rows in float64 (tolerance 1e-06), "
            "weights and loss off by at most 2e-14.",
        ),
        (
            [
                {**EXACT, "weights_error": 3e-15, "loss_error": 0.0},
                {**LOSSY, "weights_error": 0.9, "loss_error": 0.04},
            ],
            "2 of 2 rows compared with single. 1 row in float64 (tolerance 1e-06), "
            "weights and loss off by at most 3e-15. 1 row with a lossy option "
            "(tolerance 0.1), loss off by at most 0.04.",
        ),
    ],
)
def test_a_note_tells_how_near_the_gate_found_the_rows(tmp_path, gates, note):
    cells = [plan_cell(make_cell(s)) for s in ("single", "ddp", "fsdp")]
    layout = write_plan(tmp_path, cells)
    for planned, gate in zip(cells, [None, *gates], strict=True):
        write_launch(layout, planned, wanted=1, gate=gate)
    write_tables(layout)
    text = read_report(layout)
    if note is None:
        assert "compared with single" not in text
    else:
        assert f" gate {note} " in text


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        ((812.34,), "812.3"),
        ((812.34, 801.2, 820.5), "812 [801, 820]"),
        ((1183.4, 1010.2, 1268.3), "1180 [1010, 1270]"),
        ((36.03, 36.021, 36.042), "36.03 [36.02, 36.04]"),
        ((1.752, 1.617, 2.024), "1.75 [1.62, 2.02]"),
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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (812.34, "812.3"),
        (0.97222, "0.9722"),
        (123456.0, "123500"),
        (12345678.9, "12350000"),
        (0.000012345, "0.00001234"),
        (0.1 + 0.2, "0.3"),
    ],
)
def test_four_significant_digits(value, text):
    assert figures(value) == text


def test_fewer_figures_are_no_powers_of_ten():
    assert [figures(value, 2) for value in (32_123, 110.4, 6.54)] == [
        *("32000", "110", "6.5"),
    ]


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
        "single.none.1x1 = 803.9/s",
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


@pytest.fixture
def hostile(tmp_path):
    planned = plan_cell(make_cell("ddp", "1x2"), infeasible=HOSTILE)
    layout = write_plan(tmp_path, [planned])
    write_tables(layout)
    return layout


def test_every_format_escapes_reasons(hostile):
    page = Words(hostile.report.read_text())
    assert "script" not in page.tags
    assert HOSTILE in page.text
    text = hostile.table("md").read_text()
    assert "<script>" not in text
    assert "](javascript" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("| unsupported")]
    assert row.replace("\\|", "").count("|") == 5
    text = hostile.table("tex").read_text()
    assert text.count(r"\end{tabular}") == 1
    assert r"50\%" in text
    assert r"\textbackslash{}end\{tabular\}" in text
    (row,) = read_rows(hostile)
    assert row["reason"] == HOSTILE


def test_html_needs_no_other_file_but_the_plots(hostile):
    text = hostile.report.read_text()
    assert "http" not in text.replace("http-equiv", "")
    for name in PLOTS:
        assert f'<img src="plots/{name}.svg"' in text


def test_rows_without_numbers_are_one_for_each_reason(tmp_path):
    cells = [
        plan_cell(make_cell("ddp", f"1x{n}"), infeasible="no GPU") for n in range(1, 7)
    ]
    other = plan_cell(make_cell("fsdp", "1x2"), infeasible="no torch")
    single = plan_cell(make_cell("single"))
    layout = write_plan(tmp_path, [*cells, other, single])
    write_launches(layout, single)
    assert len(write_rows(layout)) == 8
    names = ", ".join(f"ddp.gloo.1x{n}" for n in range(1, 5))
    text = layout.table("md").read_text()
    assert f"| unsupported | 6 | {names} and 2 more | no GPU |" in text
    assert "| unsupported | 1 | fsdp.none.1x2 | no torch |" in text
    assert "- **cells**: 8: 1 ok, 7 unsupported." in text
    assert "All cells: convnet.digits." in text


def test_the_page_begins_with_the_answer(tmp_path):
    keys = (("single", "1x1"), ("ddp", "1x2"), ("fsdp", "1x2"))
    cells = [plan_cell(make_cell(*key)) for key in keys]
    layout = write_cells(tmp_path, *cells, rates=(800, 805, 400))
    write_tables(layout)
    said = read_report(layout).partition(" BEST ")[2]
    assert said.startswith("1 core: ") or said.startswith("ddp over gloo on 2 cores: ")


def test_empty_plan_makes_an_empty_table(tmp_path):
    layout = write_plan(tmp_path, [])
    write_tables(layout)
    assert layout.table("csv").read_text() == f"{HEADER}\n"


def test_a_folder_is_loaded_as_a_frame(layout, example):
    frame = rankbench.load(layout.root).set_index("cell")
    assert ["cell", *frame.columns] == [
        "cell",
        *(n for n in HEADER.split(",") if n != "cell"),
    ]
    for cell, row in example.items():
        assert frame.status[cell] == row["status"]
        if row["speedup_lo"]:
            assert frame.speedup_lo[cell] == pytest.approx(
                float(row["speedup_lo"]), rel=1e-3
            )
    with pytest.raises(ValueError, match="does not exist: give results or a bundle"):
        rankbench.load(layout.root / "nothing")


def test_the_package_itself_imports_no_pandas():
    code = "import rankbench, sys; assert not {'pandas', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_room_itself_imports_nothing():
    assert rankbench.results.__file__
    body = ast.parse(Path(rankbench.results.__file__).read_text()).body
    assert [type(node) for node in body] == [ast.Expr]


def test_time_to_a_loss(tmp_path):
    """The losses of these launches fall evenly from 2.3 to 0.4, in equal steps."""
    cells = [plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))]
    layout = write_plan(tmp_path, cells)
    write_launches(layout, cells[0], rate=800)
    write_launches(layout, cells[1], rate=1600)
    plan = json.loads(layout.plan.read_text())
    losses = np.linspace(2.3, 0.4, WARMUP + STEPS)
    width = min(20, len(losses))
    last = float(losses[-width:].mean())

    def rows_for(goal, name="loss"):
        plan["experiment"]["target"] = goal and {name: goal}
        layout.plan.write_text(json.dumps(plan))
        return list(write_rows(layout).values())

    assert "target" not in rows_for(None)[0]
    single, ddp = rows_for(last + 1e-3)
    assert (single["target"], ddp["target"]) == ("reached", "reached")
    steps = WARMUP + STEPS
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
    single, _ = rows_for(0.97, "accuracy")
    assert float(single["target_samples"]) == steps * BATCH
    assert "to accuracy 0.97 (s)" in layout.table("md").read_text()
    assert rows_for(0.98, "accuracy")[0]["target"] == "not reached"
    # As of a script that reports no loss.
    for place in layout.attempt(cells[0]["id"], 1).iterdir():
        change_steps(place, rank0_loss=np.full(steps, np.nan, np.float32))
    single, ddp = rows_for(last + 1e-3)
    assert (single["target"], ddp["target"]) == ("not measured", "reached")


def test_settings_of_a_cell_are_columns_where_one_has_them(tmp_path):
    keys = ("env", "image", "partition")
    plain = plan_cell(make_cell("ddp"))
    layout = write_plan(tmp_path, [plain])
    write_launches(layout, plain)
    assert not {*keys} & next(iter(write_rows(layout).values())).keys()
    settings = {"env": {"A": "1", "B": "2"}, "image": "ngc", "partition": "gpu"}
    other = plan_cell(make_cell("ddp", **settings), suffix=".image=ngc")
    layout = write_plan(tmp_path, [plain, other])
    write_launches(layout, other)
    rows = write_rows(layout)
    assert [rows[plain["id"]][key] for key in keys] == ["", "", ""]
    assert [rows[other["id"]][key] for key in keys] == ["A=1 B=2", "ngc", "gpu"]
    assert "partition=gpu" in layout.table("md").read_text()
