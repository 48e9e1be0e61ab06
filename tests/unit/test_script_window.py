"""The timed window of a script, the phases of its steps, and how it runs and ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rankbench import hooks
from rankbench.environ import Place
from rankbench.launch.process.reports import collapse_phases
from rankbench.rank.purposes.script import (
    ScriptError,
    copy_folder,
    find_device,
    place_variables,
    run_file,
)
from rankbench.rank.scripts import session as sessions
from rankbench.rank.scripts.session import PHASES, ScriptSession
from rankbench.rank.world.lifeline import Progress

pytestmark = pytest.mark.unit

WARMUP, STEPS = 2, 3


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptSession]:
    # Its thread would end this process.
    monkeypatch.setattr(sessions, "GRACE", 1e6)
    made = ScriptSession(
        warmup=WARMUP,
        steps=STEPS,
        local_rank=1,
        progress=Progress(tmp_path, 0),
        find_device=lambda session: torch.device("cpu"),
        finish=lambda session: None,
    )
    made.begin()
    yield made
    made.end()


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Linear(3, 1)
        self.other = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def forward(self, model: nn.Module | None = None) -> torch.Tensor:
        return (model or self.model)(torch.ones(2, 3)).sum()

    def step(self) -> None:
        self.forward().backward()
        self.optimizer.step()


def test_the_script_ends_after_the_first_step_the_warmup_and_the_window(session):
    trainer = Trainer()
    for _ in range(WARMUP + STEPS):
        trainer.step()
    assert (session.root, session.ended) == (trainer.model, WARMUP + STEPS)
    with pytest.raises(SystemExit) as raised:
        trainer.step()
    assert (raised.value.code, session.is_complete) == (0, True)
    assert session.window.phases == PHASES
    found = session.window
    assert found.seconds.shape == (STEPS, 4)
    assert found.warmup.shape == (WARMUP, 4)
    assert (found.seconds > 0).all()
    assert found.seconds.sum() == pytest.approx(found.window_s, rel=0.2)
    assert (found.samples, found.loss) == (0, None)
    trainer.step()  # is not observed any more


def train_to_the_end(session: ScriptSession, iterate) -> None:
    def train() -> None:
        for number in range(20):
            iterate(number)

    with pytest.raises(SystemExit):
        train()
    assert session.ended == 1 + WARMUP + STEPS


def test_parts_of_an_accumulated_step_add_up(session):
    trainer = Trainer()

    def iterate(number: int) -> None:
        trainer.forward().backward()
        trainer.step()

    train_to_the_end(session, iterate)
    assert session.window.phases == PHASES


@pytest.mark.parametrize("number_of_change", [0, 2, 4])
def test_steps_that_differ_have_one_phase(session, number_of_change):
    """A second module from the first step on; in the warm-up; in the window."""
    trainer = Trainer()

    def iterate(number: int) -> None:
        trainer.forward(trainer.other).backward()
        if number == number_of_change:
            if not number:
                trainer.forward()
            trainer.optimizer.step()
        else:
            trainer.step()

    trainer.optimizer.add_param_group({"params": trainer.other.parameters()})
    train_to_the_end(session, iterate)
    assert session.window.phases == ("step",)
    found = session.window
    assert (found.seconds.shape, found.warmup.shape) == ((STEPS, 1), (WARMUP, 1))
    assert found.seconds.sum() == pytest.approx(found.window_s, rel=0.2)


def test_an_evaluation_is_part_of_load(session):
    trainer = Trainer()

    def iterate(number: int) -> None:
        with torch.no_grad():
            trainer.forward()
        trainer.step()

    train_to_the_end(session, iterate)
    assert session.window.phases == PHASES


def test_marks_define_the_steps(session):
    trainer = Trainer()
    losses = []

    def iterate(number: int) -> None:
        for _ in range(3):
            trainer.step()
        losses.append(torch.tensor([float(number)]))
        hooks.step(loss=losses[-1], samples=10 + number)
        losses[-1].zero_()

    train_to_the_end(session, iterate)
    assert len(losses) == 1 + WARMUP + STEPS
    found = session.window
    # The first mark is where the first step begins.
    assert found.loss.tolist() == [1, 2, 3, 4, 5]
    assert found.samples == 13 + 14 + 15


def test_marks_without_rankbench_do_nothing():
    hooks.step(loss=1.0)


def test_a_failure_of_ours_is_kept_if_it_is_caught(session):
    def find_device(session: ScriptSession) -> torch.device:
        raise RuntimeError("no GPU")

    session.find_device = find_device
    trainer = Trainer()
    with pytest.raises(RuntimeError, match="no GPU"):
        trainer.step()
    assert str(session.failure) == "no GPU"
    trainer.step()


PLACE = Place(rank=3, size=4, local_rank=1, local_size=2, node=1)


@pytest.mark.parametrize(
    ("url", "meeting"),
    [
        ("env://", {}),
        (
            "tcp://node1:2345",
            {
                **{"MASTER_ADDR": "node1", "MASTER_PORT": "2345"},
                "TORCHELASTIC_USE_AGENT_STORE": "False",
            },
        ),
    ],
)
def test_scripts_find_their_place_in_the_environment(url, meeting):
    place = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert place_variables(PLACE, url) == {**place, "GROUP_RANK": "1", **meeting}


def test_a_file_tells_where_rank_0_is(tmp_path):
    alone = Place(rank=0, size=1, local_rank=0, local_size=1, node=0)
    found = place_variables(alone, f"file://{tmp_path}/meeting")
    assert found["MASTER_ADDR"] == "127.0.0.1"
    assert int(found["MASTER_PORT"]) > 1024


def test_the_folder_of_a_script_is_copied_once(tmp_path):
    frozen = tmp_path / "frozen"
    (frozen / "package").mkdir(parents=True)
    (frozen / "package/module.py").write_text("a = 1")
    (frozen / "package/module.py").chmod(0o444)
    for _ in range(2):
        copy_folder(frozen, tmp_path / "copy", tmp_path / "kept")
    (tmp_path / "copy/package/module.py").write_text("a = 2")
    assert (frozen / "package/module.py").read_text() == "a = 1"
    (tmp_path / "copy/data/downloaded").touch()
    (tmp_path / "data/too").touch()
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        "downloaded",
        "too",
    }
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"copy", "frozen", "kept", "data"}


def test_a_script_runs_as_python_runs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    monkeypatch.chdir(Path.cwd())
    (tmp_path / "beside_it.py").write_text("word = 'found'")
    (tmp_path / "train.py").write_text(
        "import os, sys, beside_it\n"
        "assert __name__ == '__main__'\n"
        "here = os.path.dirname(os.path.abspath(__file__))\n"
        "assert os.getcwd() == sys.path[0] == here, sys.path\n"
        "raise SystemExit(f'{beside_it.word} {sys.argv[1:]}')\n"
    )
    with pytest.raises(SystemExit, match=r"found \['--size', 'a b'\]"):
        run_file(tmp_path, "train.py", ["--size", "a b"])


def test_a_script_on_cuda_has_to_use_a_gpu():
    assert find_device("cpu") == torch.device("cpu")
    if not torch.cuda.is_initialized():
        with pytest.raises(ScriptError, match="uses no GPU"):
            find_device("cuda")


def test_ranks_that_tell_different_phases_have_one(tmp_path):
    reports = []
    for rank, phases in enumerate((["load", "forward"], ["step"])):
        table = np.full((3, len(phases)), 2.0 / len(phases))
        np.savez(tmp_path / f"rank{rank}.npz", seconds=table, warmup=table[:1])
        reports.append({"rank": {"rank": rank}, "phases": phases})
    collapse_phases(tmp_path, reports)
    assert [report["phases"] for report in reports] == [["step"], ["step"]]
    for rank in range(2):
        with np.load(tmp_path / f"rank{rank}.npz") as file:
            assert file["seconds"].tolist() == [[2.0]] * 3
            assert file["warmup"].tolist() == [[2.0]]
