"""What a launch is reaches its file and its ranks, whoever added a field."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from factories import make_cell, make_shape, make_spec
from rankbench import launch_spec
from rankbench.launch_spec import LaunchOptions, LaunchSpec

pytestmark = pytest.mark.unit


def test_its_file_says_all_of_it(tmp_path):
    spec = make_spec(
        directory=tmp_path,
        cell=make_cell(options={"bucket_mb": 1}, own_files={"data": {"file": "a.py"}}),
        shape=make_shape(2),
        options=LaunchOptions(save_model="per_rank", collectives=True),
        hosts=("node1", "node2"),
        scratch=Path("/scratch/1"),
        binds=(Path("/opt/efa"),),
        image={"name": "gloo-cpu", "file": "i.sif", "recipe": "r", "sha256": None},
        own={"data": Path("/own/a.py")},
        seeds=[1, 2],
        about={"round": {"seed": 1, "number": 2, "position": 3}},
    )
    spec.write()
    assert LaunchSpec.read(spec.file) == spec
    fields = {field.name for field in dataclasses.fields(LaunchSpec)}
    assert json.loads(spec.file.read_text()).keys() == fields


def test_a_new_option_reaches_the_ranks(tmp_path, monkeypatch):
    """A key of the experiment and a field: no other code names an option."""

    @dataclass(frozen=True, kw_only=True)
    class Extended(LaunchOptions):
        dummy: int = 0

    monkeypatch.setattr(launch_spec, "LaunchOptions", Extended)
    values = {field.name: None for field in dataclasses.fields(LaunchOptions)}
    options = Extended.choose({**values, "dummy": 7, "description": "no option"})
    spec = make_spec(directory=tmp_path, options=options)
    spec.write()
    assert LaunchSpec.read(spec.file).options == options
