"""The estimate of memory, beside arithmetic by hand and what real ranks hold.

`benchmarks/memory.py` has more strategies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from memory_ranks import measure
from test_fake_ranks import Case, estimate

pytestmark = pytest.mark.contract

LAYERS, WIDTH, HEADS, INNER, WORDS = 6, 512, 8, 2048, 8192
CONTEXT, BATCH = 512, 4
TOKENS = CONTEXT * BATCH
BLOCK = 4 * WIDTH**2 + 3 * WIDTH * INNER + 2 * WIDTH
TABLE = WORDS * WIDTH
WEIGHTS = LAYERS * BLOCK + WIDTH + 2 * TABLE

# Numbers that a block keeps of a token for backward. Those between layers: its input,
# and the sum after attention. Those that layers read: two norms; queries, keys, values
# and the result of attention, as heads and as tokens; gate, its silu, up, and product.
BETWEEN, NORMED, ATTENDED, GATED = 2 * WIDTH, 2 * WIDTH, 5 * WIDTH, 4 * INNER
OF_BLOCK = BETWEEN + NORMED + ATTENDED + GATED
# AdamW: a weight and its two moments, in float32.
KEPT = 3 * 4


@dataclass
class Shape:
    """A case, the rank, and its bytes at the peak, which is when backward begins."""

    strategy: str
    precision: str
    topology: str
    by_hand: float
    options: dict[str, Any] = field(default_factory=dict)


# Of the loss: the shares of words, and gradients of both of its steps, in float32.
LOSS = 3 * 4 * WORDS * TOKENS
SHAPES = {
    "single": Shape(
        *("single", "fp32", "1x1"),
        KEPT * WEIGHTS + 4 * TOKENS * (LAYERS * OF_BLOCK + 2 * WIDTH) + LOSS,
    ),
    # The head is gathered; activations are in bf16.
    "fsdp": Shape(
        *("fsdp", "bf16", "1x8"),
        KEPT * WEIGHTS / 8
        + 2 * TOKENS * (LAYERS * OF_BLOCK + 2 * WIDTH)
        + 2 * TABLE
        + LOSS,
    ),
    # Two ranks share the tokens between layers, and all that layers compute, but each
    # has all tokens that layers read. The logits are there in bf16 and float32, beside
    # the shares.
    "tensor": Shape(
        *("mesh", "bf16", "1x8"),
        KEPT * WEIGHTS / 8
        + 2 * TOKENS * LAYERS * (NORMED + (BETWEEN + ATTENDED + GATED) / 2)
        + 2 * TOKENS * 1.5 * WIDTH
        + 2 * TABLE / 2
        + (2 + 4 + 4) * WORDS / 2 * TOKENS,
        {"tensor": 2, "shard": 4},
    ),
    # The first stage has the embedding and half of the blocks, of which FSDP keeps a
    # copy, and both micro-batches in flight. Of one, the MLP of the last block goes
    # backwards: gradients of its output, of gate and up, and of one matrix.
    "pipe": Shape(
        *("mesh", "fp32", "1x2"),
        (KEPT + 4) * (TABLE + LAYERS // 2 * BLOCK)
        + 4 * TOKENS * (LAYERS // 2 * OF_BLOCK + WIDTH)
        + 4 * TOKENS / 2 * (WIDTH + 2 * INNER)
        + 4 * WIDTH * INNER,
        {"pipe": 2, "microbatches": 2},
    ),
}


def test_an_estimate_is_within_three_percent_of_arithmetic_by_hand():
    sizes = {"layers": LAYERS, "width": WIDTH, "heads": HEADS}
    cell = {
        "model": "llama",
        "model_options": {**sizes, "mlp_width": INNER, "vocabulary": WORDS},
        "context": CONTEXT,
        "batch_size": BATCH,
        "optimizer": "adamw",
        "fused_optimizer": True,
        "device": "cuda",
    }
    cases = {
        name: Case(
            shape.strategy,
            shape.options,
            {**cell, "precision": shape.precision, "topology": shape.topology},
        )
        for name, shape in SHAPES.items()
    }
    found = estimate([*cases.values()])
    for name, case in cases.items():
        ratio = found[case.name]["ranks"][0]["step"] / SHAPES[name].by_hand
        print(f"{name}: estimate over arithmetic by hand: {ratio:.4f}")
        assert ratio == pytest.approx(1, abs=0.03), name


SMALL = {
    "topology": "1x2",
    "model_options": {"layers": 4, "width": 256, "heads": 8},
    "context": 128,
    "optimizer": "adamw",
}
MEASURED = [
    Case("ddp", {}, SMALL),
    Case("ddp", {}, {**SMALL, "precision": "bf16"}),
    Case("mesh", {"tensor": 2}, SMALL),
]


def test_an_estimate_is_within_five_percent_of_what_ranks_hold():
    found = estimate(MEASURED)
    for case in MEASURED:
        (rank,) = found[case.name]["ranks"]
        for held in measure(case.make(), case.candidate().shape):
            ratios = {kind: rank[kind] / held[kind] for kind in ("setup", "step")}
            print(f"{case.name}: estimate over what a rank holds: {ratios}")
            assert ratios == pytest.approx({"setup": 1, "step": 1}, abs=0.05)
