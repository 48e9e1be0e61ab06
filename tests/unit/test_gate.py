"""The judgement of the gate on the reports of the ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from factories import make_cell, make_shape
from rankbench.cell import Shape
from rankbench.decoder import describe_decoder
from rankbench.launch.process.classify import judge_gate
from rankbench.rank.models import complete
from rankbench.rank.models.llama import PRESETS
from rankbench.rank.purposes.gate import (
    EXACT_STEPS,
    MOST_SAMPLES,
    compare,
    independent_of_the_split,
    shrink,
)
from rankbench.rank.purposes.setup import sizes_of_data

pytestmark = pytest.mark.unit


def check_of(
    losses: list[float | None] | None,
    *,
    weights_error: float | None = 1e-15,
    **changes: Any,
) -> dict[str, Any]:
    """A report of rank 0; the losses of its reference are 2 and 1."""
    check = {
        "seed": 3,
        "dtype": "float64",
        "lossy": False,
        "steps": 2,
        "samples": 8,
        "losses": losses,
        "reference": {
            "losses": [2.0, 1.0],
            "weights_error": weights_error,
            "worst": "0.weight",
        },
    }
    return {**check, **changes}


def judge(*ranks: dict[str, Any]) -> tuple[str, str | None, dict[str, Any]]:
    outcome, numbers = judge_gate([{"gate": [rank]} for rank in ranks])
    return outcome.status, outcome.reason, numbers


LOSSY = {"weights_error": 0.5, "lossy": True, "dtype": "float32"}


@pytest.mark.parametrize(
    ("ranks", "status"),
    [
        ([check_of([2.0, 1.0])], "ok"),
        # The loss is the mean over the ranks that know it.
        ([check_of([1.0, 0.5]), check_of([3.0, 1.5])], "ok"),
        ([check_of(None), check_of([2.0, 1.0])], "ok"),
        ([check_of([2.0, 1.0]), check_of([2.0, 1.1])], "mismatch"),
        ([check_of([2.0, 1.001])], "mismatch"),
        ([check_of([2.0, None])], "mismatch"),
        # Single precision has a tolerance of its own.
        ([check_of([2.0, 1.001], weights_error=1e-3, dtype="float32")], "ok"),
        # A lossy option is judged by its loss.
        ([check_of([2.0, 1.15], **LOSSY)], "ok"),
        ([check_of([2.0, 1.5], **LOSSY)], "mismatch"),
    ],
)
def test_losses_are_near_those_of_one_process(ranks, status):
    assert judge(*ranks)[0] == status


@pytest.mark.parametrize("weights_error", [1e-5, 0.9, None])
def test_weights_that_are_off_are_refused(weights_error):
    status, reason, _ = judge(check_of([2.0, 1.0], weights_error=weights_error))
    assert status == "mismatch"
    assert "0.weight is off by" in str(reason)
    assert "(seed 3)" in str(reason)


@pytest.mark.parametrize(
    ("last", "status"),
    # Training lowered the loss of one process from 2 to 1.
    [(1.4, "ok"), (1.6, "mismatch"), (2.0, "mismatch"), (None, "mismatch")],
)
def test_arithmetic_in_few_bits_is_judged_by_what_it_learns(last, status):
    trend = check_of([2.0, last], dtype="bfloat16", weights_error=0.5)
    found = judge(check_of([2.0, 1.0], trend=trend))
    assert found[0] == status
    assert found[2]["trend"]["dtype"] == "bfloat16"
    assert (status == "ok") == (found[1] is None)
    # The exact comparison comes first.
    assert "trend" not in judge(check_of([2.0, 1.1], trend=trend))[2]


def test_one_bad_seed_is_enough():
    good, bad = check_of([2.0, 1.0]), check_of([2.0, 1.5], seed=7)
    outcome, numbers = judge_gate([{"gate": [good, bad, good]}])
    assert outcome.status == "mismatch"
    assert "(seed 7)" in str(outcome.reason)
    assert numbers["seeds"] == 3


def test_there_is_no_judgement_without_a_reference():
    diverged = check_of([2.0, 1.0])
    diverged["reference"]["losses"] = [2.0, None]
    with pytest.raises(ValueError, match="does not learn"):
        judge(diverged)


def test_distance_is_in_units_of_what_training_moved():
    start = {"a": torch.zeros(4), "b": torch.zeros(4), "n": torch.tensor(1)}
    reference = {**start, "a": torch.ones(4), "b": 2 * torch.ones(4)}
    weights = {**reference, "b": 2.2 * torch.ones(4)}
    found = compare(weights, reference, start)
    assert found["worst"] == "b"
    assert found["weights_error"] == pytest.approx(0.1)


def test_a_parameter_that_does_not_move_is_judged_by_the_others():
    start = {"a": torch.zeros(100), "b": torch.zeros(1)}
    reference = {"a": torch.ones(100), "b": torch.zeros(1)}
    rounding = {"a": torch.ones(100), "b": torch.full((1,), 1e-9)}
    assert compare(rounding, reference, start)["weights_error"] < 1e-6
    wrong = {"a": torch.ones(100), "b": torch.ones(1)}
    assert compare(wrong, reference, start)["weights_error"] > 1
    # What is no number has no distance.
    lost = {"a": torch.full((100,), torch.nan), "b": torch.zeros(1)}
    found = compare(lost, reference, start)
    assert (found["weights_error"], found["worst"]) == (None, "a")


def test_weights_with_other_names_are_an_error():
    with pytest.raises(ValueError, match=r"module\.a"):
        compare({"module.a": torch.ones(1)}, {"a": torch.ones(1)}, {})


def test_normalisation_does_not_depend_on_who_sees_which_sample():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    names = {name for name, _ in block.named_parameters()}
    model = independent_of_the_split(nn.Sequential(block, nn.ReLU()))
    images = torch.randn(6, 3, 5, 5)
    torch.testing.assert_close(
        model(images), torch.cat([model(half) for half in images.split(3)])
    )
    assert {name for name, _ in block.named_parameters()} == names


@pytest.mark.parametrize(
    ("strategy", "options", "replica_ranks", "layers"),
    [
        ("fsdp", {}, 1, 2),
        # Each of the stages has at least a layer.
        ("pipeline", {"virtual_stages": 2, "balance": "measured"}, 4, 8),
        ("pipeline", {"balance": "measured"}, 64, 32),
        ("pipeline", {"balance": "20,15"}, 2, 32),
        ("mesh", {"pipe": 4, "tensor": 2, "virtual_stages": 1}, 8, 4),
    ],
)
def test_a_decoder_is_checked_with_few_layers_of_a_narrow_width(
    strategy, options, replica_ranks, layers
):
    given = PRESETS["8b"]
    cell = make_cell(
        strategy=strategy,
        model="llama",
        model_options=given,
        options=options,
        data="tokens",
        context=8192,
    )
    small = shrink(cell, shape_of_64(replica_ranks))
    chosen = {"layers": layers, "width": 128, "mlp_width": 128, "heads": 32}
    assert small.model_options == {
        **complete("llama", given),
        **chosen,
        "vocabulary": 512,
    }
    assert small.context == 64


def test_what_ranks_share_remains_a_multiple_of_their_number():
    given = {"width": 768, "heads": 12, "kv_heads": 6, "mlp_width": 3072}
    cell = make_cell(
        strategy="mesh",
        options={"pipe": 1, "tensor": 6},
        model="llama",
        model_options=given,
        data="tokens",
    )
    small = shrink(cell, shape_of_64(6, ranks=6))
    chosen = {"width": 48, "mlp_width": 48, "vocabulary": 516}
    assert small.model_options.items() >= chosen.items()
    assert small.context == 66
    # Other models are checked as they are.
    assert shrink(make_cell(), shape_of_64(1)) == make_cell()


@pytest.mark.parametrize("ranks", [8, 128, 512])
@pytest.mark.parametrize("preset", ["1b", "8b", "70b", "8x7b"])
def test_one_process_can_check_any_llama(preset, ranks):
    """The reference takes 4 GiB and 30 s of a CPU at most."""
    cell = make_cell(
        strategy="fsdp",
        model="llama",
        model_options=PRESETS[preset],
        data="tokens",
        context=8192,
        batch_size=2,
    )
    small = shrink(cell, shape_of_64(1, ranks=ranks))
    sizes = sizes_of_data(small)
    decoder = describe_decoder(small.model_options, **sizes)
    # In float64: weights, gradients, two moments, the first weights, and a copy.
    assert 48 * decoder.parameters < 0.5 * 2**30
    samples = min(MOST_SAMPLES, 2 * ranks)
    tokens = samples * sizes["context"]
    width, options = small.model_options["width"], small.model_options
    scores = samples * options["heads"] * sizes["context"] ** 2
    # Some copies of each activation, and of the logits.
    held = 8 * (options["layers"] * (40 * tokens * width + 4 * scores))
    assert held + 8 * 4 * tokens * sizes["vocabulary"] < 2 * 2**30
    # A CPU core does 2e10 of these operations in a second, with all that is around.
    assert EXACT_STEPS * 2 * ranks * decoder.flops < 30 * 2e10


def shape_of_64(replica_ranks: int, ranks: int = 64) -> Shape:
    return make_shape(
        ranks, replica_ranks=replica_ranks, replicas=ranks // replica_ranks
    )
