"""Public scripts come in many forms, and run as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts_ranks import RANKS, STEPS, Launch, run_by, run_script

from rankbench.rank.purposes.script import copy_folder
from rankbench.record import OTHER_SAMPLES

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
def test_backwards_of_a_step_are_counted(tmp_path, pairs):
    script = write(tmp_path / "own/train.py", pairs=pairs)
    found = details(run_script(tmp_path / "launch", script))
    assert found.get("backwards_per_step") == (None if pairs == 1 else 2.0)


FIXED = """
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "{port}"
dist.init_process_group("gloo", {url} rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]))
"""


@pytest.mark.parametrize(
    ("launcher", "port", "url"),
    [
        pytest.param(
            ["torch.distributed.run", "--standalone", "--nproc-per-node=2"],
            *(12355, ""),
            marks=pytest.mark.further,
        ),
        (["rankbench.rank.world.spawn"], 12357, '"tcp://127.0.0.1:23456",'),
    ],
    ids=["torchrun", "spawn"],
)
def test_a_fixed_port(tmp_path, launcher, port, url):
    last = MODULE if launcher[1:] else (f"--ranks={RANKS}",)
    script = write(tmp_path / "own/train.py", FIXED.format(port=port, url=url))
    details(run_by([*launcher, *last], tmp_path / "launch", script))


IF_LAUNCHED = """
if int(os.environ.get("RANK", -1)) != -1:
    dist.init_process_group("nonsense")
"""


# The second form leaves it to a library to look for a launcher.
@pytest.mark.parametrize("before", [IF_LAUNCHED, ""])
def test_the_base_of_a_script_is_started_plainly(tmp_path, before):
    before += '\nassert "MASTER_PORT" not in os.environ'
    script = write(tmp_path / "own/train.py", before)
    launch = run_script(tmp_path / "launch", script, ranks=1)
    assert details(launch)["optimizer"]


def test_a_script_that_needs_its_place_gets_it(tmp_path):
    before = f"print(os.environ.get('RANK'), flush=True)\n{JOIN}"
    script = write(tmp_path / "own/train.py", before)
    launch = run_script(tmp_path / "launch", script, ranks=1)
    assert details(launch)["optimizer"]
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


def test_what_a_script_downloads_stays_for_other_launches(tmp_path):
    (tmp_path / "own").mkdir()
    for name in ("first", "second"):
        folder = tmp_path / name / "script"
        folder.parent.mkdir()
        copy_folder(tmp_path / "own", folder, tmp_path / "kept")
        (folder / f"data/of-{name}.txt").touch()
        (folder / f"../data/{name}.txt").touch()
        (folder / "result.txt").touch()
    found = {path.name for path in (tmp_path / "kept").iterdir()}
    assert found == {"of-first.txt", "first.txt", "of-second.txt", "second.txt"}
    assert (tmp_path / "second/script/data/first.txt").exists()
    # Data that belongs to the script is its own.
    (tmp_path / "own/data").mkdir()
    copy_folder(tmp_path / "own", tmp_path / "third", tmp_path / "kept")
    assert not list((tmp_path / "third/data").iterdir())


PROBE = """
dist.init_process_group("gloo")
probe = nn.Linear(4, 4)
probing = torch.optim.Adam(probe.parameters())
probe(torch.ones(2, 4)).sum().backward()
probing.step()
"""


def test_two_optimizers_are_refused_with_the_remedy(tmp_path):
    script = write(tmp_path / "own/train.py", PROBE)
    reason = run_script(tmp_path / "launch", script).reason
    assert reason is not None
    assert "Adam of 20 weights at learning rate 0.001 and SGD of 4,160" in reason
    assert "call rankbench.hooks.step()" in reason


@pytest.mark.parametrize(("batch", "is_marked"), [(25, False), (16, True)])
def test_batches_that_are_not_those_of_the_plan_are_marked(tmp_path, batch, is_marked):
    """The plan says 50 samples of both ranks."""
    script = write(tmp_path / "own/train.py")
    script.write_text(script.read_text().replace("randn(16", f"randn({batch}"))
    record = run_script(tmp_path / "launch", script).record
    assert (OTHER_SAMPLES in record["marks"]) is is_marked
    counted = record["ranks"][0]["details"].get("counted")
    assert counted == ({"inputs": 12 * 16, "planned": 12 * 25} if is_marked else None)


FORKED = """
import multiprocessing
dist.init_process_group("gloo")
def search():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(40):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
for trial in range(2):
    process = multiprocessing.get_context("fork").Process(target=search)
    process.start()
    process.join()
"""


def test_what_a_script_forks_is_not_measured(tmp_path):
    script = write(tmp_path / "own/train.py", FORKED)
    assert details(run_script(tmp_path / "launch", script))["optimizer"].startswith(
        "SGD"
    )
