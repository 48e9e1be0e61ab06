"""Models that are saved, and the tensors in which two of them differ."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from rankbench.environ import Place
from rankbench.rank.purposes.measure import save_model
from rankbench.rank.training.saving import (
    TensorDifference,
    compare_models,
    find_models,
    load_model,
)

pytestmark = pytest.mark.unit


def place(rank: int) -> Place:
    return Place(rank=rank, size=2, local_rank=rank, local_size=2, node=0)


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).state_dict()


def test_what_is_loaded_is_what_was_saved(tmp_path):
    save_model(tmp_path, "consolidated", place(0), weights())
    assert compare_models(load_model(tmp_path / "model.pt"), weights()) == []


def test_differences_are_named_and_measured():
    first, second = weights(), weights()
    second["1.running_mean"] = second["1.running_mean"] + 0.5
    second["0.bias"] = second["0.bias"][:2]
    second["0.weight"] = second["0.weight"].double()
    del second["1.weight"]
    second["2.weight"] = torch.zeros(1)
    assert compare_models(first, second) == [
        TensorDifference("0.weight", "type"),
        TensorDifference("0.bias", "shape"),
        TensorDifference("1.weight", "second"),
        TensorDifference("1.running_mean", "values", 0.5, float("inf")),
        TensorDifference("2.weight", "first"),
    ]


def test_a_tolerance_hides_no_nan():
    first, second = weights(), weights()
    first["0.bias"] = first["0.bias"] + 1e-6
    assert [one.name for one in compare_models(first, second)] == ["0.bias"]
    assert compare_models(first, second, tolerance=1e-3) == []
    first["0.bias"][0] = torch.nan
    (found,) = compare_models(first, second, tolerance=1e-3)
    assert found.name == "0.bias"


def test_a_file_that_could_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "model.pt").write_bytes(pickle.dumps({"a": Evil()}))
    with pytest.raises(ValueError, match=r"model\.pt is not a saved model"):
        load_model(tmp_path / "model.pt")
    torch.save({"a": Evil()}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"model\.pt is not a saved model"):
        load_model(tmp_path / "model.pt")
    assert not (tmp_path / "ran").exists()
    for value in ([1, 2], {"a": 1}):
        torch.save(value, tmp_path / "other.pt")
        with pytest.raises(ValueError, match="must map names to tensors"):
            load_model(tmp_path / "other.pt")


def test_models_of_a_launch(tmp_path):
    with pytest.raises(ValueError, match="save_model: per_rank"):
        find_models(tmp_path)
    for rank in (10, 9):
        torch.save(weights(), tmp_path / f"model_rank{rank}.pt")
    names = [path.name for path in find_models(tmp_path)]
    assert names == ["model_rank9.pt", "model_rank10.pt"]
    (tmp_path / "record.json").touch()
    assert find_models(tmp_path / "record.json") == find_models(tmp_path)


def test_the_command_tells_which_differ(tmp_path, cli):
    other = weights()
    other["1.running_var"] = other["1.running_var"] * 2
    save_model(tmp_path, "per_rank", place(0), weights())
    save_model(tmp_path, "per_rank", place(1), other)
    said = cli("compare", "--models", tmp_path, status=1).out
    assert "  1.running_var: up to 1, relative 1\n" in said
    assert "7 tensors, 1 differ" in said
    one = str(tmp_path / "model_rank0.pt")
    cli("compare", one, one, "--models")
    assert "give another one" in cli("compare", one, "--models", status=2).err
