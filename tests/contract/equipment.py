"""Strategies that need packages beside torch: their tests need them, too."""

from __future__ import annotations

import importlib.util

import pytest

from rankbench.matrix.catalog import load_catalog

STRATEGIES = load_catalog().strategies
ON_CPU = [name for name, s in STRATEGIES.items() if "cpu" in s["needs"]["device"]]

# Options of a small llama.
EXPERTS = {"layers": 2, "width": 16, "heads": 2, "experts": 4}


def backend_of(strategy: str) -> str:
    """The first backend that a strategy can use."""
    needs = STRATEGIES[strategy]["needs"]
    return str(needs["backends"][0] if needs["backends"] else needs["own_backend"])


def fitting_model(strategy: str) -> dict[str, object]:
    """Fields of a small cell whose model a strategy can share out to ranks."""
    if STRATEGIES[strategy]["needs"]["axes"]:
        return {"model": "gpt", "data": "tokens", "context": 16, "batch_size": 8}
    return {"model": "lenet"}


def case(strategy: str, *more: object):
    """Return the parameters of one test case, marked by what the strategy needs."""
    needs = STRATEGIES[strategy]["needs"]["packages"]
    return pytest.param(strategy, *more, marks=[pytest.mark.equipment] if needs else [])


def require_packages(strategy: str) -> None:
    """Skip the test if a package that the strategy needs is not installed."""
    for package in STRATEGIES[strategy]["needs"]["packages"]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make extras")
