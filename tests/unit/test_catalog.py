"""Planning reads the declarations of strategies, models and data sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.declarations import STRATEGY_DEFAULTS, describe_strategy, literals
from rankbench.rank.strategies.ddp import Ddp

pytestmark = pytest.mark.unit

STRATEGY = """
from torch import nn
DEVICE = nn.Linear(1, 1)
class Mine(Base):
    needs: ClassVar[dict] = {needs}
    phases = ["forward", "update"]
"""


def make_package(folder: Path, needs: str) -> Path:
    for room in ("rank/strategies", "rank/models", "rank/data", "launch/launchers"):
        (folder / room).mkdir(parents=True)
    strategies = folder / "rank" / "strategies"
    (strategies / "mine.py").write_text(STRATEGY.replace("{needs}", needs))
    for helper in ("__init__", "_shared", "base"):
        (strategies / f"{helper}.py").write_text("")
    return folder


def test_torch_is_not_imported():
    code = (
        "import sys; from rankbench.matrix.catalog import load_catalog;"
        "assert load_catalog().strategies; heavy = {'torch', 'pandas', 'numpy'};"
        "sys.exit(' '.join(heavy & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_a_file_is_a_strategy(tmp_path):
    catalog = load_catalog(make_package(tmp_path, '{"ranks": "node"}'))
    assert [*catalog.strategies] == ["mine"]
    facts = catalog.strategies["mine"]
    assert facts["needs"] == {**STRATEGY_DEFAULTS, "ranks": "node"}
    assert facts["options"] == {}


def test_literals(tmp_path):
    path = tmp_path / "some.py"
    path.write_text(
        "A = 1\nB: int = 2\nC: int\nD = E = [3]\nF = len('x')\n(G, H) = 1, 2\n"
        "def f():\n    I = 1\nclass K:\n    L = {'m': None}\n"
    )
    assert literals(path) == {"A": 1, "B": 2, "D": [3], "E": [3], "L": {"m": None}}


def test_a_strategy_may_be_like_another(tmp_path):
    path = tmp_path / "second.py"
    path.write_text(
        "class Second(Zero1):\n    like = 'zero1'\n    needs = {'max_nodes': 3}\n"
        "    options = {'bucket_mb': {'default': 1}}\n    conditions = [3]\n"
    )
    base = load_catalog().strategies["zero1"]
    found = describe_strategy(path)
    assert found["needs"] == base["needs"] | {"max_nodes": 3}
    assert found["options"] == base["options"] | {"bucket_mb": {"default": 1}}
    assert found["conditions"] == [*base["conditions"], 3]
    path.write_text("class Second:\n    like = 'zero2'\n")
    with pytest.raises(ValueError, match=r"'zero2' is not one of .*mean 'fsdp'"):
        describe_strategy(path)
    with pytest.raises(TypeError, match=r"derives from Ddp.*like = 'ddp'"):
        type("Mine", (Ddp,), {})


OPTION = "options = {'period': {'type': 'integer', 'default': 1}}"


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ("{'backend': []}", "mine.py: needs: unknown key 'backend'; .* 'backends'"),
        ("{'compiles': 'no'}", "needs: compiles: expected boolean, .* 'false'"),
        ("{}; approximate = {'perod': ['high']}", "approximate: .* mean 'period'"),
        ("{}; approximate = {'period': 'high'}", "period: expected array or not def"),
        ("{}; approximate = {'period': 4}", "period: expected array or not default"),
        ("['x']; like = 'zero1'", "mine.py: needs: expected a dictionary"),
        ("{}; conditions = {}", "mine.py: conditions: expected list"),
        ("{}; on_meta = 3", "mine.py: on_meta: expected bool, got 3"),
        ("{}; options = ['x']", "mine.py: options: expected a dictionary"),
        ("{}; options = {'x': 3}", "mine.py: options: x: expected object, got integer"),
    ],
)
def test_wrong_declarations_are_refused(tmp_path, needs, said):
    package = make_package(tmp_path, f"{{}}; {OPTION}; needs = {needs}")
    with pytest.raises(ValueError, match=said):
        load_catalog(package)
