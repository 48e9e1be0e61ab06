"""The judgement of the gate on the reports of the ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from factories import make_cell
from rankbench.cell import Shape
from rankbench.launch.process.classify import judge_gate
from rankbench.rank.models import complete
from rankbench.rank.models.gpt import PRESETS
from rankbench.rank.purposes.gate import (
    choose_layers,
    compare,
    independent_of_the_split,
)

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


def test_equal_is_well():
    status, reason, numbers = judge(check_of([2.0, 1.0]))
    assert (status, reason) == ("ok", None)
    assert (numbers["loss_error"], numbers["tolerance"]) == (0.0, 1e-6)


def test_the_loss_is_the_mean_over_the_ranks_that_know_it():
    assert judge(check_of([1.0, 0.5]), check_of([3.0, 1.5]))[0] == "ok"
    assert judge(check_of(None), check_of([2.0, 1.0]))[0] == "ok"
    assert judge(check_of([2.0, 1.0]), check_of([2.0, 1.1]))[0] == "mismatch"


@pytest.mark.parametrize("weights_error", [1e-5, 0.9, None])
def test_weights_that_are_off_are_refused(weights_error):
    status, reason, _ = judge(check_of([2.0, 1.0], weights_error=weights_error))
    assert status == "mismatch"
    assert "0.weight is off by" in str(reason)
    assert "(seed 3)" in str(reason)


@pytest.mark.parametrize("losses", [[2.0, 1.001], [2.0, None]])
def test_a_loss_that_is_off_is_refused(losses):
    assert judge(check_of(losses))[0] == "mismatch"


def test_single_precision_has_a_tolerance_of_its_own():
    off = check_of([2.0, 1.001], weights_error=1e-3, dtype="float32")
    assert judge(off)[0] == "ok"


@pytest.mark.parametrize(("last", "status"), [(1.15, "ok"), (1.5, "mismatch")])
def test_a_lossy_option_is_judged_by_its_loss(last, status):
    lossy = check_of([2.0, last], weights_error=0.5, lossy=True, dtype="float32")
    assert judge(lossy)[0] == status


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


def test_weights_that_are_no_numbers_have_no_distance():
    start = {"a": torch.zeros(2), "b": torch.zeros(2)}
    reference = {"a": torch.ones(2), "b": torch.ones(2)}
    found = compare({**reference, "a": torch.full((2,), torch.nan)}, reference, start)
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
    ("preset", "replica_ranks", "options", "layers"),
    [
        ("125m", 1, {}, 12),
        ("1.3b", 1, {}, 2),
        ("7b", 1, {}, 2),
        # Each of the stages has at least a layer.
        ("7b", 4, {"virtual_stages": 2, "balance": "measured"}, 8),
        ("7b", 64, {"balance": "measured"}, 32),
        ("7b", 2, {"balance": "20,15"}, 32),
    ],
)
def test_a_large_decoder_is_checked_with_few_layers(
    preset, replica_ranks, options, layers
):
    sizes = {"vocabulary": 512, "context": 2048}
    given = complete("gpt", PRESETS[preset])
    cell = make_cell(model="gpt", model_options=given, options=options)
    shape = Shape(
        nodes=8,
        ranks=64,
        ranks_per_node=8,
        devices_per_rank=1,
        cores_per_rank=0,
        replicas=64 // replica_ranks,
        replica_ranks=replica_ranks,
        global_batch=128,
        rank_batch=2,
    )
    assert choose_layers(cell, sizes, shape) == {**given, "layers": layers}
