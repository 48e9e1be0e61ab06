"""The table: its numbers, their bases, and all formats."""

from __future__ import annotations

import ast
import csv
import re
import shutil
from pathlib import Path

import pytest

import rankbench.results
from pages import Words
from rankbench.record import PLOTS, Layout
from rankbench.results.elements.text import figures, show_estimate
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import summarise
from rankbench.results.read.rows import load
from unit.synthetic import (
    make_cell,
    plan_cell,
    write_example,
    write_launch,
    write_launches,
    write_plan,
    write_tables,
)

pytestmark = pytest.mark.unit

HEADER = (
    "experiment,cell,strategy,backend,topology,devices,launcher,model,data,batch_size,"
    "scaling,status,reason,marks,launches_ok,launches,"
    "throughput,throughput_lo,throughput_hi,step_ms,step_ms_lo,step_ms_hi,"
    "epoch_s,epoch_s_lo,epoch_s_hi,total_s,total_s_lo,total_s_hi,"
    "speedup,speedup_lo,speedup_hi,base,efficiency,efficiency_lo,efficiency_hi,"
    "memory_mib,memory_mib_lo,memory_mib_hi,accuracy,accuracy_lo,accuracy_hi,attempt,"
    "ratios,speedup_verdict,efficiency_verdict,disturbed,repeated"
)
SUFFIXES = ("csv", "md", "html", "tex")
NUMBERS = [
    name
    for name in HEADER.partition(",launches,")[2].split(",")
    if name not in ("base", "attempt", "ratios") and not name.endswith("_verdict")
]


def build_rows(layout: Layout) -> dict[str, dict[str, str]]:
    """The rows of table.csv by cell."""
    write_tables(layout)
    with layout.table("csv").open(newline="") as file:
        return {row["cell"]: row for row in csv.DictReader(file)}


@pytest.fixture
def example(tmp_path):
    layout = write_example(tmp_path)
    return build_rows(layout)


def write_pair(root, *cells, rates):
    """A plan whose cells are all measured: the entries' rows by cell."""
    layout = write_plan(root, list(cells))
    for planned, rate in zip(cells, rates, strict=True):
        write_launches(layout, planned, rate=rate)
    return build_rows(layout)


def test_columns_are_the_published_ones(tmp_path):
    layout = write_example(tmp_path)
    write_tables(layout)
    assert layout.table("csv").read_text().splitlines()[0] == HEADER


def test_every_planned_cell_has_a_row_in_order(tmp_path):
    layout = write_example(tmp_path)
    assert list(build_rows(layout)) == [row.id for row in load(layout).rows]


def test_row_tells_what_was_measured(example):
    row = example["ddp.gloo.1x2.convnet.digits"]
    assert row["experiment"] == "quickstart"
    assert (row["strategy"], row["backend"], row["topology"]) == ("ddp", "gloo", "1x2")
    assert (row["devices"], row["launcher"]) == ("2", "spawn")
    assert (row["batch_size"], row["scaling"]) == ("64", "weak")
    assert (row["status"], row["reason"], row["attempt"]) == ("ok", "", "1")
    assert (row["launches_ok"], row["launches"]) == ("6", "6")
    # Rates scatter from 0.98 to 1.03 times 1500; their geometric mean is 1.005 times.
    assert row["throughput"] == "1507"
    assert (row["throughput_lo"], row["throughput_hi"]) == ("1478", "1537")
    assert (row["memory_mib"], row["accuracy"]) == ("351", "0.97")


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


def test_failed_row_shows_how_many_launches_succeeded(example):
    row = example["ddp_dp.none.1x2.convnet.digits"]
    assert (row["launches_ok"], row["launches"]) == ("2", "6")
    assert row["reason"] == "rank 1 ended by SIGSEGV"


def test_few_launches_have_no_interval(example):
    row = example["mp.none.1x2.convnet.digits"]
    assert row["throughput"]
    assert row["throughput_lo"] == row["throughput_hi"] == ""
    assert row["speedup"]
    assert row["speedup_lo"] == row["speedup_hi"] == ""


def test_oversubscribed_row_is_marked(example):
    marks = example["ddp.gloo.1x4.convnet.digits"]["marks"]
    assert marks == "oversubscribed unpaired"


def test_speedup_and_efficiency_name_their_bases(example):
    row = example["ddp.gloo.1x2.convnet.digits"]
    assert row["base"] == "single.none.1x1.convnet.digits = 803.9/s"
    assert float(row["speedup"]) == pytest.approx(1507.5 / 804, rel=1e-3)
    assert float(row["efficiency"]) == pytest.approx(1507.5 / 2 / 804, rel=1e-3)
    assert float(row["speedup_lo"]) < float(row["speedup"]) < float(row["speedup_hi"])


def test_gpudirect_does_not_part_a_row_from_single(tmp_path):
    cells = [
        plan_cell(make_cell("single", device="cuda")),
        plan_cell(make_cell("ddp", "1x2", backend="nccl", device="cuda")),
        plan_cell(
            make_cell("ddp", "1x2", backend="nccl", device="cuda", gpudirect=False),
            suffix=".gpudirect=false",
        ),
    ]
    rows = write_pair(tmp_path, *cells, rates=(100, 190, 180))
    for row in rows.values():
        assert row["base"].startswith("single.none.1x1.convnet.digits = ")


def test_bases_are_one(example):
    single = example["single.none.1x1.convnet.digits"]
    assert (single["speedup"], single["efficiency"]) == ("1", "1")
    assert single["base"] == "single.none.1x1.convnet.digits = 803.9/s"
    own = example["ddp.gloo.1x1.convnet.digits"]
    assert own["efficiency"] == own["speedup"]
    assert float(own["speedup"]) == pytest.approx(794 / 804, rel=1e-3)


def test_without_single_the_base_of_efficiency_is_the_strategy_itself(tmp_path):
    one, two = (plan_cell(make_cell("ddp", topology)) for topology in ("1x1", "1x2"))
    rows = write_pair(tmp_path, one, two, rates=(100, 190))
    assert rows[one["id"]]["efficiency"] == "1"
    assert float(rows[two["id"]]["efficiency"]) == pytest.approx(0.95, rel=1e-2)
    assert rows[two["id"]]["speedup"] == ""
    assert rows[two["id"]]["base"].startswith("ddp.gloo.1x1.convnet.digits = ")


def test_efficiency_has_the_base_of_the_speedup(example):
    row = example["mp.none.1x2.convnet.digits"]
    assert row["base"] == "single.none.1x1.convnet.digits = 803.9/s"
    assert float(row["efficiency"]) == pytest.approx(
        float(row["speedup"]) / 2, rel=1e-3
    )


@pytest.mark.parametrize(
    "difference",
    [{"batch_size": 32}, {"scaling": "strong"}, {"precision": "bf16"}, {"seed": 1}],
)
def test_base_agrees_in_everything_that_matters(tmp_path, difference):
    single = plan_cell(make_cell("single"))
    other = plan_cell(make_cell("ddp", "1x2", **difference), suffix=".other")
    rows = write_pair(tmp_path, single, other, rates=(800, 1500))
    row = rows[other["id"]]
    assert row["status"] == "ok"
    assert (row["speedup"], row["efficiency"], row["base"]) == ("", "", "")


def test_single_of_the_same_launcher_is_preferred(tmp_path):
    spawn = plan_cell(make_cell("single", launcher="spawn"))
    torchrun = plan_cell(make_cell("single", launcher="torchrun"), suffix=".torchrun")
    ddp = plan_cell(make_cell("ddp", "1x2", launcher="torchrun"))
    rows = write_pair(tmp_path, spawn, torchrun, ddp, rates=(800, 400, 1500))
    assert rows[ddp["id"]]["base"].startswith(f"{torchrun['id']} = 401.9/s")
    assert rows[torchrun["id"]]["speedup"] == "1"


def test_each_single_on_one_device_is_its_own_base(tmp_path):
    plain = plan_cell(make_cell("single"))
    compiled = plan_cell(make_cell("single", options={"compile": True}), suffix=".c")
    rows = write_pair(tmp_path, plain, compiled, rates=(800, 900))
    assert rows[compiled["id"]]["base"] == f"{compiled['id']} = 904.4/s"
    assert rows[compiled["id"]]["speedup"] == "1"


def test_single_over_two_devices_is_no_base(tmp_path):
    wide = plan_cell(make_cell("single", "1x2"))
    one = plan_cell(make_cell("single"))
    ddp = plan_cell(make_cell("ddp", "1x2"))
    rows = write_pair(tmp_path, wide, one, ddp, rates=(1200, 800, 1500))
    assert rows[ddp["id"]]["base"] == f"{one['id']} = 803.9/s"
    assert rows[wide["id"]]["base"] == f"{one['id']} = 803.9/s"
    assert float(rows[wide["id"]]["efficiency"]) == pytest.approx(0.75, rel=1e-3)


def test_own_base_has_the_same_options(tmp_path):
    plain = plan_cell(make_cell("ddp"))
    lossy = plan_cell(make_cell("ddp", options={"hook": "powersgd"}), suffix=".hook")
    wide = plan_cell(
        make_cell("ddp", "1x2", options={"hook": "powersgd"}), suffix=".hook"
    )
    rows = write_pair(tmp_path, plain, lossy, wide, rates=(800, 400, 700))
    assert rows[wide["id"]]["base"] == f"{lossy['id']} = 401.9/s"
    assert rows[wide["id"]]["speedup"] == ""


def test_oversubscribed_row_keeps_its_base(tmp_path):
    one = plan_cell(make_cell("ddp"))
    four = plan_cell(make_cell("ddp", "1x4", oversubscribe=True))
    rows = write_pair(tmp_path, one, four, rates=(800, 900))
    assert rows[four["id"]]["base"] == f"{one['id']} = 803.9/s"


def test_base_that_is_not_ok_is_no_base(tmp_path):
    single, ddp = plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))
    layout = write_plan(tmp_path, [single, ddp])
    write_launches(layout, ddp)
    write_launches(layout, single, count=5)
    write_launch(layout, single, 6, status="timeout", reason="time limit of 60 s")
    row = build_rows(layout)[ddp["id"]]
    assert row["throughput"] == "803.9"
    assert (row["speedup"], row["base"]) == ("", "")
    assert "no such cell is ok" in layout.table("md").read_text()


def test_base_of_another_torch_is_marked(tmp_path):
    single, ddp = plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))
    layout = write_plan(tmp_path, [single, ddp])
    write_launches(layout, single)
    write_launches(layout, ddp, software={"torch": "2.6.0", "python": "3.13"})
    rows = build_rows(layout)
    assert rows[ddp["id"]]["marks"] == "mixed-torch unpaired"
    assert rows[single["id"]]["marks"] == ""
    told = "- **torch**: rows ran different builds (2.13.0, 2.6.0): what differs"
    assert told in layout.table("md").read_text()


def test_launches_with_other_settings_are_not_compared(tmp_path):
    """Of a row with two settings, and of a row with another one than its base."""
    cells = [plan_cell(make_cell("ddp", f"1x{n}")) for n in (2, 4, 8)]
    single = plan_cell(make_cell("single"))
    layout = write_plan(tmp_path, [single, *cells])

    def launcher(algorithm):
        return {"settings": {"NCCL_ALGO": algorithm, "NCCL_PROTO": "LL"}}

    for cell in (single, cells[0]):
        write_launches(layout, cell, launcher=launcher("Ring"))
    write_launches(layout, cells[1], launcher=launcher("Tree"))
    for number, algorithm in ((1, "Ring"), (2, "Tree")):
        write_launch(layout, cells[2], number, wanted=2, launcher=launcher(algorithm))
    rows = build_rows(layout)
    for cell in (single, *cells):
        assert "environment(NCCL_ALGO)" in rows[cell["id"]]["marks"].split()
    has_base = [rows[cell["id"]]["base"] != "" for cell in cells]
    assert has_base == [True, False, False]
    assert "- **environment(NCCL_ALGO)**" in layout.table("md").read_text()


def test_ranks_that_train_alone_are_not_compared(tmp_path):
    single, ddp = plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))
    layout = write_plan(tmp_path, [single, ddp])
    write_launches(layout, single)
    write_launches(layout, ddp, marks=["no-exchange"])
    row = build_rows(layout)[ddp["id"]]
    assert "no-exchange" in row["marks"]
    assert (row["status"], row["base"], row["efficiency"]) == ("ok", "", "")


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
    text = layout.table("md").read_text()
    if note is None:
        assert "gpudirect" not in text
    else:
        assert f"- **{planned['id']}**: {note}" in text


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
    text = layout.table("md").read_text()
    if note is None:
        assert "**gate**" not in text
    else:
        assert f"- **gate**: {note}\n" in text


def test_not_evaluated_has_no_accuracy(tmp_path):
    planned = plan_cell(make_cell("single"))
    layout = write_plan(tmp_path, [planned])
    write_launches(layout, planned, accuracy=None)
    row = build_rows(layout)[planned["id"]]
    assert (row["status"], row["accuracy"], row["accuracy_lo"]) == ("ok", "", "")


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


def test_same_plan_and_records_give_the_same_bytes(tmp_path):
    first = write_example(tmp_path / "first")
    write_tables(first)
    second = Layout(tmp_path / "elsewhere" / "second")
    second.root.mkdir(parents=True)
    shutil.copy(first.plan, second.plan)
    shutil.copytree(first.records, second.records)
    write_tables(second)
    names = ("answer", "diagnostics", "losses", "loading")
    beside = [f"{name}.{s}" for name in names for s in ("csv", "md", "tex")]
    beside.append("answer.json")
    files = [*beside, *(f"table.{s}" for s in SUFFIXES)]
    assert sorted(p.name for p in second.root.iterdir() if p.is_file()) == sorted(
        [*files, "plan.json"]
    )
    for name in files:
        text = (second.root / name).read_bytes()
        assert text == (first.root / name).read_bytes()
        assert str(tmp_path).encode() not in text


def test_unchanged_table_is_not_written_again(tmp_path):
    layout = write_example(tmp_path)
    write_tables(layout)
    before = layout.table("html").stat().st_mtime_ns
    write_tables(layout)
    assert layout.table("html").stat().st_mtime_ns == before


@pytest.mark.parametrize("suffix", ["md", "html", "tex"])
def test_notes_explain_what_occurs(tmp_path, suffix):
    layout = write_example(tmp_path)
    write_tables(layout)
    text = layout.table(suffix).read_text().replace("\\", "")
    text = re.sub("<[^>]*>", " ", text).replace("  ", " ")
    for part in (
        "means over the launches",
        "batch_size is per model replica",
        "single.none.1x1 = 803.9/s",
        "were not launched in the same rounds",
        "ranks share a physical core or a GPU",
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
    layout = write_plan(tmp_path, [planned], name="<b>name</b>")
    write_tables(layout)
    return layout


def test_html_escapes_reasons_and_names(hostile):
    page = Words(hostile.table("html").read_text())
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert HOSTILE in page.text
    assert "<b>name</b>" in page.text


def test_html_needs_no_other_file_but_the_plots(hostile):
    text = hostile.table("html").read_text()
    assert "http" not in text.replace("http-equiv", "")
    for name in PLOTS:
        assert f'<img src="plots/{name}.svg"' in text


def test_markdown_escapes_reasons(hostile):
    text = hostile.table("md").read_text()
    assert "<script>" not in text
    assert "](javascript" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("| unsupported")]
    assert row.replace("\\|", "").count("|") == 5


def test_latex_escapes_reasons(hostile):
    text = hostile.table("tex").read_text()
    assert text.count(r"\end{tabular}") == 1
    assert r"50\%" in text
    assert r"\textbackslash{}end\{tabular\}" in text


def test_other_tables_are_fragments_of_latex_too(tmp_path):
    layout = write_example(tmp_path)
    write_tables(layout)
    for name in ("losses", "loading", "diagnostics"):
        text = layout.table("tex", name).read_text()
        for what in ("tabular", "description"):
            begun = text.count(rf"\begin{{{what}}}")
            assert begun == text.count(rf"\end{{{what}}}")
        # The rows are those of Markdown, which has one more line of dashes per table.
        lines = layout.table("md", name).read_text().splitlines()
        tables = text.count(r"\begin{tabular}")
        assert tables >= 1
        rows = [line for line in lines if line.startswith("|")]
        assert text.count(" \\\\\n") == len(rows) - tables
    assert r"\paragraph{Scatter}" in layout.table("tex", "diagnostics").read_text()


def test_rows_without_numbers_are_one_for_each_reason(tmp_path):
    cells = [
        plan_cell(make_cell("ddp", f"1x{n}"), infeasible="no GPU") for n in range(1, 7)
    ]
    other = plan_cell(make_cell("fsdp", "1x2"), infeasible="no torch")
    single = plan_cell(make_cell("single"))
    layout = write_plan(tmp_path, [*cells, other, single])
    write_launches(layout, single)
    rows = build_rows(layout)
    assert len(rows) == 8
    names = ", ".join(f"ddp.gloo.1x{n}" for n in range(1, 5))
    text = layout.table("md").read_text()
    assert f"| unsupported | 6 | {names} and 2 more | no GPU |" in text
    assert "| unsupported | 1 | fsdp.none.1x2 | no torch |" in text
    assert "- **cells**: 8: 1 ok, 7 unsupported." in text
    assert "All cells: convnet.digits." in text
    assert f"[single.none.1x1](cells/{single['id']}.json)" in text


def test_the_page_begins_with_the_answer(tmp_path):
    keys = (("single", "1x1"), ("ddp", "1x2"), ("fsdp", "1x2"))
    cells = [plan_cell(make_cell(*key)) for key in keys]
    write_pair(tmp_path, *cells, rates=(800, 805, 400))
    text = Layout(tmp_path).table("md").read_text()
    said = " ".join(text.partition("- **USE**: ")[2].partition("\n- ")[0].split())
    assert said == (
        "ddp over gloo on 2 devices: 809 [793, 825] samples/s. Or single on 1 device: "
        "0.994 [0.965, 1.023] of that. Slower: 1 other row."
    )


def test_csv_keeps_reasons_as_they_are(hostile):
    (row,) = build_rows(hostile).values()
    assert row["reason"] == HOSTILE


def test_damaged_record_leaves_the_old_table(tmp_path):
    layout = write_example(tmp_path)
    write_tables(layout)
    before = layout.table("csv").read_bytes()
    path = layout.launch("ddp.gloo.1x2.convnet.digits", 1, 3) / "record.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"1/3/record\.json is damaged"):
        write_tables(layout)
    assert layout.table("csv").read_bytes() == before


def test_empty_plan_makes_an_empty_table(tmp_path):
    layout = write_plan(tmp_path, [])
    write_tables(layout)
    assert layout.table("csv").read_text() == f"{HEADER}\n"


def test_summaries_of_rows_that_are_not_ok_hold_nothing(tmp_path):
    for summary in summarise(load(write_example(tmp_path))):
        if summary.row.status != "ok":
            assert not summary.numbers
            assert not summary.measures
            assert not summary.bases


def test_the_room_itself_imports_nothing():
    assert rankbench.results.__file__
    body = ast.parse(Path(rankbench.results.__file__).read_text()).body
    assert [type(node) for node in body] == [ast.Expr]
