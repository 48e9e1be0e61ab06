"""Under one precision, strategies multiply, normalise and add in the same dtypes."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
from equipment import STRATEGIES
from ranks import PRELOADED

from factories import make_cell
from rankbench.matrix.candidate import shape_of

pytestmark = pytest.mark.contract

# All layers are alike.
MODELS = {
    "gpt": {"layers": 1, "width": 32, "heads": 4, "mlp": "swiglu"},
    "llama": {"layers": 1, "width": 32, "heads": 4, "experts": 4},
}
# Matrix products, norms and sums, by the beginnings of their names.
COMPUTING = ("mm", "bmm", "addmm", "add.", "native_layer_norm", "_fused_rms_norm")
OTHERS: list[tuple[str, dict[str, int]]] = [
    ("ddp", {}),
    ("zero1", {}),
    ("local_sgd", {}),
    ("fsdp", {}),
    ("pipeline", {}),
    ("mesh", {}),
    ("mesh", {"tensor": 2}),
    ("mesh", {"context": 2}),
    ("mesh", {"pipe": 2, "microbatches": 2}),
    ("mesh", {"expert": 2}),
]


def trace(asked: tuple[str, dict[str, int], str, str]) -> set[str]:
    """Operations within blocks, with the dtypes of what they read; on a fake rank."""
    strategy, options, model, precision = asked
    from rankbench.rank.models.gpt import DecoderBlock
    from rankbench.rank.purposes import estimate

    seen: set[str] = set()
    depth = 0

    class Recorder(estimate.Ledger):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = super().__torch_dispatch__(func, types, args, kwargs)
            if depth and func.__name__.startswith(COMPUTING):
                # Shapes are found on the meta device, in float32.
                read = [x for x in args if isinstance(x, torch.Tensor) and x.is_cpu]
                if read:
                    seen.add(" ".join([func.__name__, *(str(x.dtype) for x in read)]))
            return out

    forward = DecoderBlock.forward

    def run(block: Any, tokens: torch.Tensor) -> torch.Tensor:
        nonlocal depth
        depth += 1
        try:
            return forward(block, tokens)
        finally:
            depth -= 1

    DecoderBlock.forward = run  # type: ignore[method-assign]
    estimate.Ledger = Recorder  # type: ignore[misc]
    facts = STRATEGIES[strategy]
    defaults = {name: rule["default"] for name, rule in facts["options"].items()}
    cell = make_cell(
        strategy=strategy,
        options={**defaults, **options},
        topology="1x1" if strategy == "single" else "1x2",
        model=model,
        model_options=MODELS[model],
        data="tokens",
        context=16,
        batch_size=4,
        precision=precision,
    )
    estimate.estimate(cell, shape_of(cell, facts), 0)
    return seen


@pytest.fixture(scope="module")
def traced() -> dict[tuple[str, str], set[str]]:
    """What each strategy does, by its name with options and the model."""
    asked = [
        (strategy, options, model, "bf16")
        for strategy, options in (("single", {}), *OTHERS)
        for model in MODELS
        if "expert" not in options or model == "llama"
    ]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    # Each in a process of its own, because a rank remains what it is.
    with ProcessPoolExecutor(2, context, max_tasks_per_child=1) as pool:
        found = [*pool.map(trace, asked)]
    return {
        (f"{s} {o}", m): seen for (s, o, m, _), seen in zip(asked, found, strict=True)
    }


@pytest.mark.parametrize(
    ("strategy", "options"), OTHERS, ids=[f"{name} {o}" for name, o in OTHERS]
)
def test_strategies_compute_in_the_same_dtypes(strategy, options, traced):
    for (name, model), seen in traced.items():
        if name == f"{strategy} {options}":
            assert seen == traced["single {}", model], model
            assert any(one.startswith("mm") for one in seen)
            # Products and norms; the router of experts counts in float32.
            assert not any("float32" in one for one in seen), model
