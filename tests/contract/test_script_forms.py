"""Public scripts come in many forms, and run as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts_ranks import RANKS, STEPS, Launch, run_by, run_script

pytestmark = pytest.mark.contract

MODULE = ("--module", "rankbench.rank")
LOOP = """
import os, sys, torch, torch.distributed as dist
from torch import nn

{before}
model = nn.Linear(64, 64)
if dist.is_initialized():
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for _ in range({pairs}):
        model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
JOIN = 'dist.init_process_group("gloo")'


def write(path: Path, before: str = JOIN, pairs: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(LOOP.format(before=before, pairs=pairs))
    return path


def details(launch: Launch) -> dict:
    assert launch.record["steps"] == STEPS
    return launch.record["ranks"][0]["details"]


@pytest.mark.parametrize("pairs", [1, 2])
def test_timers_of_ddp_are_of_whole_steps(tmp_path, pairs):
    script = write(tmp_path / "own/train.py", pairs=pairs)
    found = details(run_script(tmp_path / "launch", script))
    assert ("ddp_timers" in found) == (pairs == 1)
    assert found.get("backwards_per_step") == (None if pairs == 1 else 2.0)


FIXED = """
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "{port}"
dist.init_process_group("gloo", {url} rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]))
"""


@pytest.mark.parametrize("url", ["", '"tcp://127.0.0.1:23456",'])
@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_fixed_port(tmp_path, launcher, url):
    commands = {
        "torchrun": ("torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        "spawn": ("rankbench.rank.world.spawn", f"--ranks={RANKS}"),
    }
    argv = [*commands[launcher], *(MODULE if launcher == "torchrun" else ())]
    port = 12355 if launcher == "torchrun" else 12357
    script = write(tmp_path / "own/train.py", FIXED.format(port=port, url=url))
    details(run_by(argv, tmp_path / "launch", script))


IF_LAUNCHED = """
if int(os.environ.get("RANK", -1)) != -1:
    dist.init_process_group("nonsense")
assert "MASTER_PORT" not in os.environ
"""


def test_the_base_of_a_script_is_started_plainly(tmp_path):
    script = write(tmp_path / "own/train.py", IF_LAUNCHED)
    launch = run_script(tmp_path / "launch", script, ranks=1)
    assert "ddp_timers" not in details(launch)


def test_a_script_that_needs_its_place_gets_it(tmp_path):
    before = f"print(os.environ.get('RANK'), flush=True)\n{JOIN}"
    script = write(tmp_path / "own/train.py", before)
    launch = run_script(tmp_path / "launch", script, ranks=1)
    assert "ddp_timers" in details(launch)
    said = launch.log(0)
    assert said.index("None\n") < said.index("rankbench starts the script again")
    assert "\n0\n" in said


def test_arguments_are_of_a_rank(tmp_path):
    before = f"{JOIN}\nassert sys.argv[1:] == [f'--local_rank={{dist.get_rank()}}']"
    script = write(tmp_path / "own/train.py", before)
    template = "--local_rank={local_rank}"
    details(run_script(tmp_path / "launch", script, template=template))


BESIDE = f"import lib.words\nassert lib.words.WORD == 'found'\n{JOIN}"


@pytest.mark.parametrize(
    ("name", "own", "before"),
    [
        ("tools/train.py", {}, BESIDE),
        ("tools/train.py", {}, f"sys.path.insert(0, '..')\n{BESIDE}"),
        ("pkg/train.py", {"module": "pkg.train"}, "from . import other\n" + BESIDE),
        ("pkg/__main__.py", {"module": "pkg"}, "from . import other\n" + BESIDE),
        ("train v2.py", {}, BESIDE),
    ],
    ids=["tools", "path", "module", "main", "name"],
)
def test_layouts_of_repositories(tmp_path, name, own, before):
    root = tmp_path / "own"
    script = write(root / name, before)
    for place in ("lib/words.py", "pkg/__init__.py", "pkg/other.py"):
        (root / place).parent.mkdir(exist_ok=True)
        (root / place).write_text("WORD = 'found'\n")
    details(run_script(tmp_path / "launch", script, own={"file": name, **own}))
