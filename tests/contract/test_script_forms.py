"""Public scripts come in many forms, and run as they are."""

from __future__ import annotations

import pytest
from scripts_ranks import RANKS, STEPS, Launch, run_by, run_script
from test_scripts import DDP, JOIN, MODULE, write_loop

pytestmark = pytest.mark.contract

FIXED = """
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "{port}"
dist.init_process_group("gloo", {url} rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]))
"""


def check(launch: Launch) -> None:
    assert launch.record["steps"] == STEPS
    optimizer = launch.record["ranks"][0]["details"]["optimizer"]
    assert optimizer == "SGD of 4,160 weights at learning rate 0.01"


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
    script = write_loop(tmp_path / "own/train.py", FIXED.format(port=port, url=url))
    check(run_by([*launcher, *last], tmp_path / "launch", script))


IF_LAUNCHED = """
if int(os.environ.get("RANK", -1)) != -1:
    dist.init_process_group("nonsense")
"""
PLAIN = '\nassert "MASTER_PORT" not in os.environ'


@pytest.mark.parametrize(
    ("before", "wrap", "said"),
    [
        (IF_LAUNCHED + PLAIN, "", ""),
        # It leaves it to a library to look for a launcher.
        (PLAIN, "", ""),
        (
            f"print(os.environ.get('RANK'), flush=True)\n{JOIN}",
            DDP,
            "rankbench starts the script again",
        ),
    ],
    ids=["asks", "library", "needs"],
)
def test_the_base_of_a_script_is_started_plainly_if_it_can(
    tmp_path, before, wrap, said
):
    script = write_loop(tmp_path / "own/train.py", before, wrap)
    launch = run_script(tmp_path / "launch", script, ranks=1)
    check(launch)
    if said:
        log = launch.log(0)
        assert log.index("None\n") < log.index(said) < log.index("\n0\n")


ARGUMENTS = f"{JOIN}\nassert sys.argv[1:] == [f'--local_rank={{dist.get_rank()}}']"
# Of what a script forks, nothing is measured.
FORKS = f"""
import multiprocessing
{JOIN}
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
BESIDE = f"import lib.words\nassert lib.words.WORD == 'found'\n{JOIN}"
RELATIVE = f"from . import other\n{BESIDE}"


@pytest.mark.parametrize(
    ("name", "own", "before"),
    [
        ("train.py", {"template": "--local_rank={local_rank}"}, ARGUMENTS),
        ("train.py", {}, FORKS),
        ("tools/train.py", {}, BESIDE),
        ("tools/train.py", {}, f"sys.path.insert(0, '..')\n{BESIDE}"),
        ("pkg/train.py", {"module": "pkg.train"}, RELATIVE),
        ("pkg/__main__.py", {"module": "pkg"}, RELATIVE),
        ("train v2.py", {}, BESIDE),
    ],
    ids=["arguments", "forks", "tools", "path", "module", "main", "name"],
)
def test_a_script_runs_as_python_runs_it(tmp_path, name, own, before):
    root = tmp_path / "own"
    script = write_loop(root / name, before)
    for place in ("lib/words.py", "pkg/__init__.py", "pkg/other.py"):
        (root / place).parent.mkdir(exist_ok=True)
        (root / place).write_text("WORD = 'found'\n")
    template = own.pop("template", "")
    about = {"file": name, **own}
    check(run_script(tmp_path / "launch", script, own=about, template=template))
