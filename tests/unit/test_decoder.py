"""Sizes of decoders: by formula, by the counter of torch, and as published."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from factories import make_cell, make_shape, make_site
from rankbench.decoder import FORMULA, Decoder, describe_decoder
from rankbench.matrix.candidate import Candidate, make_candidate
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.matrix.feasible import (
    GIB,
    find_obstacle,
    judge_memory,
)
from rankbench.project.run import mark_measured
from rankbench.rank import models
from rankbench.rank.models import describe_model, llama
from rankbench.record import read_json, write_json
from unit.synthetic import make_cell as make_timed_cell
from unit.synthetic import plan_cell, write_launches, write_plan, write_tables

pytestmark = pytest.mark.unit

SIZES = {"vocabulary": 512, "context": 64}
# Three sizes: with shared heads and a gated MLP, with tied embeddings, and a wide one.
THREE: list[dict[str, Any]] = [
    {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "mlp": "swiglu"},
    {"layers": 3, "width": 96, "heads": 6, "tie_embeddings": True},
    {"layers": 1, "width": 256, "heads": 4, "vocabulary": 2048},
]


LLAMA: dict[str, Any] = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2}
WIDE = {**LLAMA, "mlp_width": 224, "tie_embeddings": True}
EXPERTS = {**LLAMA, "experts": 8, "top_k": 3}


def describe(options: dict[str, Any], model: str = "gpt", **sizes: int) -> Decoder:
    complete = models.complete(model, options)
    return describe_decoder(complete, **{**SIZES, **sizes})


@pytest.mark.parametrize(
    ("model", "options"),
    [
        *(("gpt", options) for options in THREE),
        *(("llama", options) for options in (LLAMA, WIDE, EXPERTS)),
    ],
)
def test_counters_and_formula_agree(model, options):
    decoder = describe(options, model)
    on_meta = describe_model(model, SIZES, options)
    assert on_meta["parameters"] == decoder.parameters
    assert on_meta["flops_by_formula"] == decoder.flops
    assert on_meta["flops_per_sample"] == pytest.approx(decoder.flops, rel=0.01)
    built = models.build(model, options=options, **SIZES)
    # The counter does not know the kernel of attention of a CPU.
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        built(models.example_inputs(SIZES, 1)).sum().backward()
    assert counter.get_total_flops() == pytest.approx(decoder.flops, rel=0.01)


# Model, tokens of a sequence, GPUs, tokens/s, MFU in %, parameters: rows of the table
# "H100 80GB BF16" of llm-foundry, scripts/train/benchmarking/README.md@c90b9b31.
MPT = [
    ("7b", 2048, 8, 85144, 46.44, 6658859008),
    ("1.3b", 2048, 8, 363645, 41.82, 1315950592),
    ("1.3b", 16384, 8, 157194, 35.22, 1345310720),
]


@pytest.mark.parametrize(("preset", "context", "gpus", "rate", "mfu", "size"), MPT)
def test_presets_have_published_sizes_and_the_formula_published_mfu(
    preset, context, gpus, rate, mfu, size
):
    options = load_catalog().models["gpt"]["presets"][preset]
    decoder = describe(options, context=context)
    # Theirs has biases in its linear layers.
    assert decoder.parameters == pytest.approx(size, rel=0.001)
    peak = 989.4e12
    found = 100 * decoder.flops / context * rate / gpus / peak
    # It counts embeddings of positions as if they were multiplied: up to 2.5 % more.
    assert found == pytest.approx(mfu, rel=0.03)


# Of the published weights: Llama 3.2 1B, Llama 3.1 8B and 70B, Mixtral 8x7B, OLMoE.
PUBLISHED = {
    "1b": 1_235_814_400,
    "8b": 8_030_261_248,
    "70b": 70_553_706_496,
    "8x7b": 46_702_792_704,
    # Theirs has norms of queries and keys: 65,536 more.
    "olmoe": 6_919_096_320,
}


@pytest.mark.parametrize(("preset", "parameters"), PUBLISHED.items())
def test_presets_of_llama_have_the_published_sizes(preset, parameters):
    options = load_catalog().models["llama"]["presets"][preset]
    assert describe(options, "llama", context=8192).parameters == parameters


def test_a_token_uses_as_many_weights_of_8x7b_as_published():
    """12.9 billion, Jiang et al. 2024, Mixtral of Experts, arXiv 2401.04088."""
    options = load_catalog().models["llama"]["presets"]["8x7b"]
    decoder = describe(options, "llama", context=8192)
    assert round((decoder.parameters - decoder.idle) / 1e9, 1) == 12.9


def test_rotary_positions_tell_distances():
    """The product of a query and a key depends on how far apart they are, alone."""
    query, key = torch.randn(2, 1, 1, 1, 8)
    turned = [llama.turn(one.expand(1, 1, 16, 8), theta=10.0) for one in (query, key)]
    products = (turned[0] @ turned[1].mT)[0, 0]
    for apart in (0, 3, -5):
        same = products.diagonal(apart)
        torch.testing.assert_close(same, same[:1].expand(len(same)))
    assert not torch.allclose(products[0], products[0, :1])


def test_the_blocks_of_llama_start_smaller_the_deeper_they_are():
    torch.manual_seed(0)
    built = models.build("llama", options={**LLAMA, "width": 256}, **SIZES)
    for number in (1, 2):
        block = built.get_submodule(f"block{number}")
        for name in ("out", "mlp.down"):
            spread = block.get_submodule(name).weight.std().item()
            assert spread == pytest.approx(0.02 / (2 * number) ** 0.5, rel=0.02)
        assert block.query.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_a_head_of_odd_width_is_refused():
    with pytest.raises(ValueError, match=r"llama.*even.*3"):
        models.build("llama", options={"width": 12, "heads": 4}, **SIZES)


def test_a_preset_stands_for_its_options(tmp_path):
    path = tmp_path / "some.yaml"
    text = "name: some\nstrategy: single\ndata: tokens\nmodel: "
    path.write_text(f"{text}{{gpt: {{preset: [10m, 125m], heads: 3}}}}\n")
    small, large = load_experiment(path, load_catalog(), cuda=False).cells.values()
    wanted = {"layers": 6, "width": 384, "heads": 3}
    assert small.model_options == models.complete("gpt", wanted)
    assert (large.model_options["layers"], large.model_options["heads"]) == (12, 3)
    path.write_text(f"{text}{{gpt: {{preset: 8b}}}}\n")
    with pytest.raises(ValueError, match=r"preset.*10m.*125m.*350m.*1\.3b.*7b"):
        load_experiment(path, load_catalog(), cuda=False)


GPT = {"model": "gpt", "data": "tokens", "context": 128}


def ask(memory_gib: float | None, estimate: dict[str, Any] | None) -> Candidate:
    site = make_site(cores=8, device_memory_gib=memory_gib)
    cell = make_cell(**GPT, topology="1x2", model_options={"tie_embeddings": False})
    return make_candidate(cell, site, load_catalog(), estimate)


def test_a_cell_that_exceeds_the_memory_is_refused_with_numbers():
    rank = {"rank": 1, "setup": 3 * GIB, "step": 5 * GIB, "sent": []}
    found = {"ranks": [rank | {"parts": {"weights": 1 * GIB, "activations": 4 * GIB}}]}
    # Both ranks of the host share its memory.
    reason = find_obstacle(ask(9.9, found))
    assert reason is not None
    for number in ("10 GiB", "9.9", "rank 1", "step 5 GiB", "activations 4", "fsdp"):
        assert number in reason
    unknown = {"unknown": "a script is not taken apart"}
    for memory, well in (
        (10, found),
        (None, found),
        (9.9, found | {"measured": True}),
        (9.9, unknown),
        (9.9, None),
    ):
        assert find_obstacle(ask(memory, well)) is None
    # With an allowance for what is no tensor.
    for has, verdict in ((6.4, "no"), (6.5, "tight"), (7.6, "tight"), (7.7, "fits")):
        on_gpu = judge_memory(found, make_cell(device="cuda"), make_shape(2), has)
        assert (on_gpu["gib"], on_gpu["verdict"]) == (6.5, verdict)


def test_what_was_measured_fits_whatever_is_estimated(tmp_path):
    ok, full, new = (
        plan_cell(make_timed_cell(name, **GPT)) for name in ("ddp", "fsdp", "mesh")
    )
    layout = write_plan(tmp_path, [ok, full, new])
    for cell, status in ((ok, "ok"), (full, "oom")):
        summary = {"cell_hash": cell["hash"], "status": status}
        write_json(layout.summary(cell["id"], 1), summary)
    write_json(layout.summary("damaged", 1), [])
    estimates = {cell["hash"]: {"ranks": []} for cell in (ok, full, new)}
    marked = mark_measured(estimates, layout)
    assert [found["measured"] for found in marked.values()] == [True, False, False]


def test_an_estimate_stands_beside_the_measured_memory(tmp_path):
    cell = plan_cell(make_timed_cell("ddp", **GPT)) | {"estimated_mib": 123.456}
    other = plan_cell(make_timed_cell("fsdp", **GPT))
    layout = write_plan(tmp_path, [cell, other])
    for one in (cell, other):
        write_launches(layout, one, rate=500)
    write_tables(layout)
    table = pd.read_csv(layout.table("csv")).set_index("strategy")
    assert table.estimated_memory_mib["ddp"] == 123.5
    assert math.isnan(table.estimated_memory_mib["fsdp"])
    assert "estimated (GiB)" in layout.table("md").read_text()


def test_rows_have_mfu_with_the_name_of_its_formula(tmp_path):
    """HFU stands beside it where forward is computed again."""
    plain = make_timed_cell("ddp", **GPT)
    again = make_timed_cell("ddp", **GPT, checkpointing="full")
    planned = [plan_cell(plain), plan_cell(again, suffix=".checkpointing=full")]
    layout = write_plan(tmp_path, planned)
    model = {
        "parameters": 1000,
        "parameter_bytes": 4000,
        "flops_per_sample": 1e9,
        "flops_by_formula": 2e9,
        "flops_again": {"full": 0.5e9, "selective": None},
    }
    for one in planned:
        write_launches(layout, one, rate=500, model=model)
    plan = read_json(layout.plan)
    write_json(layout.plan, plan | {"site": {"peak_tflops": {"fp32": 4.0}}})
    document = write_tables(layout)
    (made,) = [one for one in document.rest if one.section.name == "models"]
    first, second = made.content.rows
    assert first["flops_by"] == FORMULA
    assert first["parameters"] == 1000
    # 500 sequences/s of 2 GFLOP are 1 TFLOP/s.
    assert first["tflop_s"] == pytest.approx(1.0, rel=0.01)
    assert first["mfu_pct"] == pytest.approx(25, rel=0.01)
    assert "hfu_pct" not in first
    assert second["hfu_pct"] == pytest.approx(25 * 1.25, rel=0.01)
