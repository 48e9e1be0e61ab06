"""What holds for every launcher, and what each says of a rank that died."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from factories import make_shape
from logs import MANUAL_KILLED, SPAWN_KILLED, SPAWN_RAISED, TORCHRUN_KILLED
from rankbench.launch.launchers import Launcher, Start, find_launcher
from rankbench.matrix.catalog import load_catalog

pytestmark = pytest.mark.contract

NAMES = load_catalog().launchers
SPEC = Path("/results/work/launch.json")


def argv_of(name: str, ranks: int, init_method: str = "env") -> list[str]:
    return find_launcher(name).build_argv(
        Start("/venv/python", make_shape(ranks), init_method, SPEC)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_command(name: str, ranks: int) -> None:
    argv = argv_of(name, ranks)
    assert isinstance(argv, list)
    assert all(isinstance(word, str) and word for word in argv)
    assert argv[-1] == str(SPEC)
    assert argv == argv_of(name, ranks)


@pytest.mark.parametrize("name", NAMES)
def test_command_tells_the_number_of_ranks(name: str) -> None:
    assert argv_of(name, 2) != argv_of(name, 3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("log", ["", "all is well\n", "rank 1 ended\nexitcode: 1\n"])
def test_a_log_without_a_failure_has_no_exits(name: str, log: str) -> None:
    assert dict(find_launcher(name).read_exits(log)) == {}


@pytest.mark.parametrize("name", NAMES)
def test_functions_are_those_of_the_interface(name: str) -> None:
    launcher = find_launcher(name)
    for function in ("build_argv", "read_exits"):
        wanted = list(inspect.signature(getattr(Launcher, function)).parameters)[1:]
        found = inspect.signature(getattr(launcher, function)).parameters
        assert list(found) == wanted


@pytest.mark.parametrize(
    ("name", "ranks", "argv"),
    [
        (
            "torchrun",
            ranks,
            "-m torch.distributed.run --standalone --local-addr=127.0.0.1 "
            f"--nproc-per-node={ranks} --max-restarts=0 "
            "--log-dir=/results/work/elastic --module rankbench.rank",
        )
        for ranks in (1, 2)
    ]
    + [
        (
            "torch_launch",
            ranks,
            "-m torch.distributed.launch --use-env --standalone "
            f"--local-addr=127.0.0.1 --nproc-per-node={ranks} --max-restarts=0 "
            "--log-dir=/results/work/elastic --module rankbench.rank",
        )
        for ranks in (1, 2)
    ]
    + [("spawn", ranks, f"-m rankbench.rank.spawn --ranks={ranks}") for ranks in (1, 2)]
    + [
        ("manual", ranks, f"-m rankbench.rank.manual --ranks={ranks} --init-method=env")
        for ranks in (1, 2)
    ],
)
def test_golden_command(name: str, ranks: int, argv: str) -> None:
    assert argv_of(name, ranks) == ["/venv/python", *argv.split(), str(SPEC)]


@pytest.mark.parametrize("method", ["env", "tcp", "file"])
def test_ranks_by_hand_meet_as_asked(method: str) -> None:
    assert f"--init-method={method}" in argv_of("manual", 2, method)


@pytest.mark.parametrize(
    ("name", "log", "exits"),
    [
        ("torchrun", TORCHRUN_KILLED, {0: -15, 1: -9}),
        ("torch_launch", TORCHRUN_KILLED, {0: -15, 1: -9}),
        ("spawn", SPAWN_KILLED, {0: -15, 1: -9}),
        ("manual", MANUAL_KILLED, {1: -9}),
        ("spawn", SPAWN_RAISED, {}),
    ],
)
def test_exits_in_real_logs(name: str, log: str, exits: dict[int, int]) -> None:
    assert dict(find_launcher(name).read_exits(log)) == exits
