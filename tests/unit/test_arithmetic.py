"""Arithmetic of models, counted by hand, and its share of a device's peak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from factories import read_pairs
from rankbench.rank.models import describe_model, transformer
from rankbench.record import Layout, read_json, write_json
from rankbench.results.numbers.hardware import find_peak
from unit.synthetic import (
    plan_one,
    read_rows,
    write_launches,
    write_tables,
)

pytestmark = pytest.mark.unit

# ResNet-50 for 224 x 224 pixels (He et al. 2016, table 1): blocks, channels within a
# block, pixels of a side. The first convolution of each block after the first stage
# still sees images of the stage before.
STAGES = ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7))


def count_resnet50(classes: int) -> int:
    """Multiply-adds of the forward pass of one image."""
    first = 7 * 7 * 3 * 64 * 112**2
    total, channels, pixels = first, 64, 56
    for blocks, width, side in STAGES:
        for block in range(blocks):
            total += channels * width * (side if block else pixels) ** 2
            total += 3 * 3 * width * width * side**2
            total += width * 4 * width * side**2
            if not block:
                total += channels * 4 * width * side**2
            channels = 4 * width
        pixels = side
    return total + channels * classes


def test_arithmetic_of_resnet50():
    forward = count_resnet50(1000)
    assert forward == pytest.approx(4.09e9, rel=0.01)  # as torchvision states it
    # Backward computes twice as much, but no gradient of the image.
    by_hand = 2 * (3 * forward - 7 * 7 * 3 * 64 * 112**2)
    found = describe_model(
        "resnet50", {"channels": 3, "image_size": 224, "classes": 1000}
    )
    assert found["flops_per_sample"] == by_hand


def test_arithmetic_of_a_transformer_counts_its_attention():
    """The counter of torch does not know the kernels of attention of a CPU."""
    tokens, width = (28 // 4) ** 2, transformer.WIDTH
    projections = 4 * tokens * width * width
    attention = 2 * tokens * tokens * width
    mlp = 2 * tokens * width * transformer.MLP
    blocks = transformer.BLOCKS * (projections + attention + mlp)
    embedding, head = tokens * 4 * 4 * width, width * 10
    # Backward computes twice as much, but no gradient of the image.
    by_hand = 2 * (3 * (blocks + head) + 2 * embedding)
    found = describe_model(
        "transformer", {"channels": 1, "image_size": 28, "classes": 10}
    )
    assert found["flops_per_sample"] == by_hand


@pytest.mark.parametrize(("gpu", "peak"), read_pairs("peaks.txt"))
def test_peaks(gpu, peak):
    found = find_peak(*gpu.split(", "))
    assert peak == ("unknown" if found is None else f"{found:g}")


def write(
    root: Path,
    gpus: list[str],
    *,
    peaks: dict[str, float] | None = None,
    rate: float = 5000.0,
    **cell: Any,
) -> Layout:
    """Launches of about `rate` images of ResNet-50 a second."""
    values = {"device": "cuda", "precision": "bf16", **cell}
    layout, planned = plan_one(root, "ddp", "1x2", **values)
    plan = read_json(layout.plan)
    plan["site"] = {"peak_tflops": peaks or {}}
    write_json(layout.plan, plan)
    hosts = [
        {
            "host": "a",
            "cpu": "CPU",
            "cores": 8,
            "memory_gib": 64,
            "gpus": [{"name": name} for name in gpus],
        }
    ]
    model = {
        "parameters": 1,
        "parameter_bytes": 4,
        "flops_per_sample": 24_300_000_000,
    }
    write_launches(layout, planned, rate=rate, hosts=hosts, model=model)
    write_tables(layout)
    return layout


def row_of(layout: Layout) -> dict[str, str]:
    (row,), (measured,) = read_rows(layout, "models"), read_rows(layout)
    return {**row, "throughput": measured["throughput"]}


@pytest.mark.parametrize(
    ("peaks", "peak"),
    [({}, 989.5), ({"bf16": 500.0}, 500.0)],  # The site file overrides it.
)
def test_mfu_is_the_rate_of_a_device_over_its_peak(tmp_path, peaks, peak):
    row = row_of(write(tmp_path, ["NVIDIA H200"] * 2, peaks=peaks))
    rate = float(row["throughput"]) * 24.3e9 / 2 / 1e12
    assert float(row["tflop_s"]) == pytest.approx(rate, rel=1e-4)
    assert float(row["mfu_pct"]) == pytest.approx(100 * rate / peak, rel=1e-3)
    assert float(row["peak_tflop_s"]) == peak
    assert "reason" not in row


def test_the_rate_of_fp8_may_be_above_the_peak_of_bf16(tmp_path):
    row = row_of(write(tmp_path, ["NVIDIA H200"] * 2, rate=1.3e5, precision="fp8"))
    assert 989.5 < float(row["tflop_s"]) < 1979
    assert 50 < float(row["mfu_pct"]) < 100
    layout = write(tmp_path / "bf16", ["NVIDIA H200"] * 2, rate=1.3e5)
    assert "above the peak" in row_of(layout)["reason"]


@pytest.mark.parametrize(
    ("gpus", "peaks", "reason"),
    [
        (["Tesla T4"] * 2, {}, "no peak of Tesla T4 in bf16 is known: set peak_tflops"),
        (["NVIDIA H200", "NVIDIA A10"], {}, "different GPUs: NVIDIA A10, NVIDIA H200"),
        (["NVIDIA H200"], {"bf16": 1.0}, "above the peak: correct peak_tflops"),
    ],
)
def test_without_a_peak_the_row_stays_and_says_why(gpus, peaks, reason, tmp_path):
    row = row_of(write(tmp_path, gpus, peaks=peaks))
    assert reason in row["reason"]
    assert not row.get("mfu_pct")
    assert float(row["tflop_s"]) > 0


def test_cpus_have_an_mfu_if_the_site_file_gives_their_peak(tmp_path):
    row = row_of(
        write(tmp_path, [], peaks={"fp32": 200.0}, device="cpu", precision="fp32")
    )
    assert float(row["mfu_pct"]) == pytest.approx(float(row["tflop_s"]) / 2, rel=1e-3)
    elsewhere = write(tmp_path / "other", [], device="cpu", precision="fp32")
    assert "tflop_s" not in row_of(elsewhere)
