"""Bundles of earlier versions can still be verified."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rankbench.results.bundle import verify_bundle

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).resolve().parents[1] / "bundles"

# These files must never be regenerated: a new bundle would prove nothing.
FROZEN = {
    "quickstart-2026-11.tar.zst": (
        "45d093680ac51392e569176eaebf2e5c0055b03617aefe70dc029001b58daf0e"
    ),
}

# Bundle -> sections whose method has changed since, or that are no more; all others are
# derived again.
CHANGED: dict[str, set[str]] = {
    "quickstart-2026-11.tar.zst": {*("bounds", "table", "reports", "plots/efficiency")}
}


def test_every_frozen_bundle_is_listed_and_unchanged() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FOLDER.glob("*.tar.zst")
    }
    assert found == FROZEN


@pytest.mark.parametrize("name", FROZEN)
def test_a_frozen_bundle_verifies(name: str) -> None:
    found = verify_bundle(FOLDER / name)
    assert found.findings == []
    assert {one.name for one in found.sections if not one.rederived} == CHANGED[name]
    assert found.rederived > 0
