"""Computation against communication: sizes of the model, and ratios by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankbench.record import Layout
from unit.synthetic import (
    plan_one,
    read_rows,
    write_launches,
    write_tables,
)

pytestmark = pytest.mark.unit

MODEL = {
    "parameters": 25_000_000,
    "parameter_bytes": 100_000_000,
    "flops_per_sample": 20_000_000_000,
}
TITLE = "Arithmetic of models and devices"


def write(root: Path, *, replicas: int, samples: int, **changes: Any) -> Layout:
    layout, planned = plan_one(root, "ddp", "1x2")
    shape = {"replicas": replicas, "replica_ranks": 1, "global_batch": samples}
    shape |= {"ranks": 2}
    write_launches(layout, planned, **{"shape": shape, "model": MODEL, **changes})
    write_tables(layout)
    return layout


def row_of(layout: Layout) -> dict[str, str]:
    (row,) = read_rows(layout, "models")
    return row


def test_ratio_is_of_a_replica(tmp_path):
    row = row_of(write(tmp_path, replicas=4, samples=256))
    assert row["model"] == "convnet"
    assert (row["parameters"], row["gradient_mb"]) == ("25000000", "100")
    assert (row["gflop_per_sample"], row["replica_batch"]) == ("20", "64")
    # 64 samples with 20 GFLOP each, and 100 MB of weights.
    assert row["flop_per_byte"] == "12800"


def test_achieved_rate_is_throughput_times_arithmetic(tmp_path):
    layout = write(tmp_path, replicas=2, samples=128)
    row = row_of(layout)
    (measured,) = read_rows(layout)
    rate = 20 * float(measured["throughput"])
    assert float(row["gflop_s"]) == pytest.approx(rate, rel=1e-3)


def test_one_replica_averages_nothing(tmp_path):
    row = row_of(write(tmp_path, replicas=1, samples=64))
    assert (row["replica_batch"], row["flop_per_byte"]) == ("64", "")


def test_the_pages_have_a_section(tmp_path):
    layout = write(tmp_path, replicas=2, samples=128)
    page = layout.report.read_text()
    assert f"<summary>{TITLE}</summary>" in page
    assert "FLOP per byte" in page
    assert '<td class="number">12800</td>' in page


def test_records_without_a_model_have_no_section_and_no_file(tmp_path):
    layout = write(tmp_path, replicas=2, samples=128, model=None)
    assert TITLE not in layout.report.read_text()
    assert not layout.section("models").exists()


def test_a_model_without_arithmetic_has_a_rate_of_zero(tmp_path):
    empty = {"parameters": 0, "parameter_bytes": 0, "flops_per_sample": 0}
    row = row_of(write(tmp_path, replicas=2, samples=128, model=empty))
    assert (row["flop_per_byte"], row["gflop_s"]) == ("", "0")


def test_the_arithmetic_of_a_script_is_unknown(tmp_path):
    known = {**MODEL, "flops_per_sample": None}
    row = row_of(write(tmp_path, replicas=2, samples=128, model=known))
    assert (row["parameters"], row["replica_batch"]) == ("25000000", "64")
    unknown = ("gflop_per_sample", "flop_per_byte", "gflop_s")
    assert [row[name] for name in unknown] == ["", "", ""]
