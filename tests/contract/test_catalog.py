"""The two sides that find variants by their files find the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankbench.launch.launchers import find_launcher
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.declarations import STRATEGY_DEFAULTS
from rankbench.rank import variants
from rankbench.rank.strategies import find_strategy

pytestmark = pytest.mark.contract


def test_names_are_those_that_ranks_find() -> None:
    catalog = load_catalog()
    assert sorted(catalog.models) == variants.names("model")
    assert sorted(catalog.data) == variants.names("data")
    for name in catalog.launchers:
        assert Path(find_launcher(name).__file__ or "").stem == name


@pytest.mark.parametrize("name", load_catalog().strategies)
def test_strategy_is_read_as_it_is(name: str) -> None:
    facts, strategy = load_catalog().strategies[name], find_strategy(name)
    assert {**STRATEGY_DEFAULTS, **strategy.needs} == facts.needs
    assert strategy.options == facts.options
    assert ["load", "transfer", *strategy.phases] == facts.phases


@pytest.mark.parametrize("name", load_catalog().strategies)
def test_strategy_declares_what_the_plan_knows(name: str) -> None:
    facts = load_catalog().strategies[name]
    assert facts.needs["ranks"] in ("one", "device", "node")
    assert facts.needs["replicas"] in ("one", "rank", "device")
    assert set(facts.needs["device"]) <= {"cpu", "cuda"}
    assert set(facts.needs["backends"]) <= {"gloo", "mpi", "nccl", "ccl"}
    assert len(set(facts.phases)) == len(facts.phases)


@pytest.mark.parametrize("name", load_catalog().data)
def test_data_is_read_as_it_is(name: str) -> None:
    module = variants.load("data", name)
    expected = {**module.SHAPE, "prepared": module.PREPARED}
    assert load_catalog().data[name] == expected
