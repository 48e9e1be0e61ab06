"""Values that no path, shell or Snakefile can hold reach a cell as written."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from factories import read_experiment, read_plan_of
from rankbench.cell import LONGEST_ID, safe_name
from rankbench.invocation import read_invocation, snakemake_argv
from rankbench.plan import read_plan
from rankbench.record import Layout

pytestmark = pytest.mark.unit

CASES = Path(__file__).parent / "cases"
PIECES = [*json.loads((CASES / "pieces.json").read_text()), "a" * 300, "ab" * 40]
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=+,~-]*")


def make_values(count: int = 2000) -> list[str]:
    chance = random.Random(7)
    found = dict.fromkeys(PIECES)
    while len(found) < count:
        found["".join(chance.choices(PIECES, k=chance.randint(1, 4)))] = None
    return list(found)


def is_safe(name: str, longest: int) -> bool:
    periodic = re.search(r"(.+)\1{19}$", name)
    return bool(SAFE.fullmatch(name)) and len(name) <= longest and not periodic


def test_hostile_values_are_planned(tmp_path):
    values = make_values()
    (tmp_path / "net.py").write_text(
        "def build(act='relu', **sizes):\n    return act\n"
    )
    text = (
        "name: hostile\nstrategy: single\nlaunches: 1\n"
        f"model: {{./net.py: {{act: {json.dumps(values, ensure_ascii=False)}}}}}\n"
    )
    plan = read_plan_of(tmp_path, text)
    path = tmp_path / "plan.json"
    path.write_bytes(plan.to_json())
    assert read_plan(path) == plan
    assert [one.cell.model_options["act"] for one in plan.cells.values()] == values
    layout = Layout(tmp_path / "results")
    for name in plan.cells:
        assert is_safe(name, LONGEST_ID)
        places = (layout.summary(name, 1), layout.job(name), layout.launch(name, 1, 1))
        assert all(layout.root in place.resolve().parents for place in places)


def test_safe_names_are_short_stable_and_different():
    values = make_values()
    names = [safe_name(value, 40) for value in values]
    assert all(is_safe(name, 40) for name in names)
    assert len(set(names)) == len(values)
    assert names == [safe_name(value, 40) for value in values]
    assert safe_name("ddp.gloo.1x2") == "ddp.gloo.1x2"


@pytest.mark.parametrize("name", ["a" * 100, "-".join(["ab"] * 40)])
def test_an_experiment_of_any_length_has_a_short_name(tmp_path, name):
    text = f"name: {name}\nstrategy: single\noverrides: {{07: {{seed: 1}}}}\n"
    assert is_safe(read_experiment(tmp_path, text).name, 64)


@pytest.mark.parametrize(
    "value", ["08", "1e3", "run #2.yaml", "x: y.yaml", "{x}", "a=b"]
)
def test_snakemake_gets_values_as_they_are_written(value):
    given = {"experiment": value, "override": value}
    argv = snakemake_argv(given, "local_profile")
    config = read_invocation(argv[3:]).config
    assert config == given
