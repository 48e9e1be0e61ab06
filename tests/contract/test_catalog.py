"""The two sides that find variants by their files find the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankbench.launch.launchers import find_launcher
from rankbench.matrix.catalog import load_catalog
from rankbench.rank import variants

pytestmark = pytest.mark.contract


def test_names_are_those_that_ranks_find():
    catalog = load_catalog()
    assert sorted(catalog.models) == variants.names("model")
    assert sorted(catalog.data) == variants.names("data")
    for name in catalog.launchers:
        assert Path(find_launcher(name).__file__ or "").stem == name


@pytest.mark.parametrize("name", load_catalog().data)
def test_data_is_read_as_it_is(name):
    module = variants.load("data", name)
    expected = {**module.SHAPE, "prepared": module.PREPARED}
    assert load_catalog().data[name] == expected
