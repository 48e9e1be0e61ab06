"""Which steps of a script are measured, with which phases, and how it runs and ends."""

from __future__ import annotations

import copy
import pickle
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from factories import make_cell
from rankbench import hooks
from rankbench.environ import Place
from rankbench.launch.process.reports import collapse_phases
from rankbench.rank.purposes.script import (
    ScriptError,
    copy_folder,
    find_device,
    place_variables,
)
from rankbench.rank.scripts import session as sessions
from rankbench.rank.scripts.observing import (
    count_trained,
    digest_values,
    leading_sizes,
)
from rankbench.rank.scripts.session import PHASES, WHOLE, ScriptSession
from rankbench.rank.world.lifeline import Progress

pytestmark = pytest.mark.unit

WARMUP, STEPS = 2, 3
ALL = 1 + WARMUP + STEPS
OBSERVED = (
    (torch.autograd, "backward"),
    (torch.amp.GradScaler, "step"),
    (nn.Module, "__call__"),
)


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


class Wrapper(torch.optim.SGD):
    """An optimizer that steps by another one, as Horovod's does."""

    def step(self, closure=None):
        return super().step(closure)


class Outer(torch.optim.SGD):
    """An optimizer with another one inside."""

    def step(self, closure=None):
        return torch.optim.Adam(self.param_groups[0]["params"]).step(closure)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Trainer:
    """Trains a module, and has another one."""

    kind: type[torch.optim.Optimizer] = torch.optim.SGD

    def __init__(self) -> None:
        self.model: nn.Module = Pair()
        self.other = Pair()
        self.number = 0
        self.optimizer: torch.optim.Optimizer = self.make_optimizer()

    def make_optimizer(self) -> torch.optim.Optimizer:
        return self.kind(self.model.parameters(), lr=0.1)

    def loss(self, model: nn.Module | None = None) -> torch.Tensor:
        return (model or self.model)(torch.ones(2, 3)).square().sum()

    def learn(self) -> None:
        self.loss().backward()

    def iterate(self) -> None:
        self.learn()
        self.optimizer.step()


class Accumulation(Trainer):
    def learn(self) -> None:
        for _ in range(2):
            super().learn()


class NestedByInheritance(Trainer):
    kind = Wrapper


class NestedByCall(Trainer):
    kind = Outer


class Closure(Trainer):
    """Computes within the step, once or several times."""

    kind = torch.optim.LBFGS

    def iterate(self) -> None:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        self.optimizer.step(closure)


class WithinBackward(Trainer):
    """A hook on the last gradient steps, so that no gradients need be kept."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        made = super().make_optimizer()
        weight = self.model.first.weight
        weight.register_post_accumulate_grad_hook(lambda _: made.step())
        return made

    iterate = Trainer.learn


class ReplacedOptimizer(Trainer):
    def iterate(self) -> None:
        super().iterate()
        self.optimizer = self.make_optimizer()


class Scaler(Trainer):
    """Gradients of each second iteration are infinite: the scaler skips the step."""

    def iterate(self) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        factor = float("inf") if self.number % 2 else 1.0
        scaler.scale(self.loss() * factor).backward()
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad()
        assert torch.isfinite(self.model.second.weight).all()


class EmptySteps(Trainer):
    """Steps that compute nothing, such as those that broadcast an optimizer."""

    def iterate(self) -> None:
        self.optimizer.step()
        super().iterate()
        self.optimizer.step()


class Failures(Trainer):
    """A step and a forward that raise an exception, which the script catches."""

    def iterate(self) -> None:
        def closure() -> float:
            raise MemoryError

        self.learn()
        with pytest.raises(MemoryError):
            self.optimizer.step(closure)
        with pytest.raises(RuntimeError):
            self.model(torch.ones(2, 9))
        self.optimizer.step()


class Others(Trainer):
    """Evaluates, asks a teacher, and copies its model with our hooks."""

    def iterate(self) -> None:
        with torch.no_grad():
            self.loss(), self.loss(self.other)
        self.loss(copy.deepcopy(self.other).requires_grad_(False))
        copy.deepcopy(self.model)
        pickle.loads(pickle.dumps(self.model))  # noqa: S301
        super().iterate()


class Compiled(Trainer):
    def __init__(self) -> None:
        from torch._dynamo.testing import CompileCounter

        super().__init__()
        self.backend = CompileCounter()
        self.model = torch.compile(self.model, backend=self.backend)

    def iterate(self) -> None:
        super().iterate()
        assert self.backend.frame_count == 1


class CompiledInPlace(Trainer):
    def __init__(self) -> None:
        super().__init__()
        self.model.compile(backend="eager")


class NoModule(Trainer):
    def loss(self, model: nn.Module | None = None) -> torch.Tensor:
        return self.model.second.weight.square().sum()


class TwoModules(Trainer):
    """Calls the parts of its model one by one."""

    def loss(self, model: nn.Module | None = None) -> torch.Tensor:
        return self.model.second(self.model.first(torch.ones(2, 3))).sum()


class ChangesIn(Trainer):
    """Trains its model in one iteration only, and another module in all."""

    changes = 0

    def iterate(self) -> None:
        if self.number == 0 or self.number != self.changes:
            self.loss()
        self.loss(self.other).backward()
        self.optimizer.step()


class ChangesLater(Trainer):
    """One step lacks the forward of the model."""

    lacks = WARMUP

    def learn(self) -> None:
        self.loss(self.other if self.number == self.lacks else None).backward()


class ChangesLast(ChangesLater):
    lacks = WARMUP + 2


def train(session: ScriptSession, trainer: Trainer) -> None:
    """Iterate until the session ends the script."""

    def iterate() -> None:
        for trainer.number in range(3 * ALL):
            trainer.iterate()

    with pytest.raises(SystemExit) as raised:
        iterate()
    assert (raised.value.code, session.is_complete) == (0, True)


@pytest.mark.parametrize(
    ("kind", "phases"),
    [
        *((kind, PHASES) for kind in (Trainer, Accumulation, Closure, WithinBackward)),
        *((kind, PHASES) for kind in (NestedByInheritance, NestedByCall, Scaler)),
        *((kind, PHASES) for kind in (ReplacedOptimizer, EmptySteps, Failures, Others)),
        *((kind, PHASES) for kind in (Compiled, CompiledInPlace)),
        *((kind, WHOLE) for kind in (NoModule, TwoModules, ChangesIn)),
        *((kind, WHOLE) for kind in (ChangesLater, ChangesLast)),
    ],
)
def test_each_iteration_is_a_step_and_its_phases_are_told_apart(session, kind, phases):
    """The first step, the warm-up and the window, and nothing after them."""
    trainer = kind()
    train(session, trainer)
    assert (trainer.number, session.ended) == (ALL - 1, ALL)
    found = session.window
    assert found.phases == phases
    assert found.seconds.shape == (STEPS, len(phases))
    assert found.warmup.shape == (WARMUP, len(phases))
    assert (found.seconds >= 0).all()
    # The rest lies between the steps.
    assert found.seconds.sum() <= found.window_s
    assert (found.samples, found.loss) == (0, None)
    if phases is PHASES:
        assert session.root is trainer.model
    trainer.iterate()  # is not observed any more


def test_a_batch_counts_as_often_as_the_model_reads_it(session):
    train(session, Accumulation())
    assert session.window.counted == (2 * STEPS * 2, 2 * STEPS * 2 * 3)


@pytest.mark.parametrize("may_differ", [True, False])
def test_two_optimizers_make_no_step_unless_steps_are_marked(session, may_differ):
    """Such as Muon and AdamW, or those of a generator and a discriminator."""
    session.counter.may_differ = may_differ
    trainer = Trainer()
    trainer.iterate()
    other = torch.optim.Adam(trainer.other.parameters(), lr=0.5)
    trainer.loss(trainer.other).backward()
    if may_differ:
        other.step()
        assert (session.ended, session.counter.seen) == (1, 2)
        assert session.counter.optimizer is trainer.optimizer
        return
    with pytest.raises(ScriptError) as error:
        other.step()
    assert "SGD of 16 weights at learning rate 0.1 and Adam of 16" in str(error.value)
    assert "call rankbench.hooks.step()" in str(error.value)


def test_nothing_is_observed_before_and_after(session):
    observed = [getattr(*one) for one in OBSERVED]
    session.end()
    assert not {*observed} & {getattr(*one) for one in OBSERVED}
    Trainer().iterate()
    hooks.step(loss=1.0)
    assert (session.counter.seen, session.ended) == (0, 0)


def test_a_process_ends_even_if_its_stdout_cannot_be_flushed(session, monkeypatch):
    ends = threading.Event()
    monkeypatch.setattr(sessions, "_end_process", ends.set)
    monkeypatch.setattr("sys.stdout", object())
    with pytest.raises(AttributeError):
        deque(iter(Trainer().iterate, "never"))
    assert session.is_complete
    assert ends.wait(60)


class Marked(Trainer):
    def iterate(self) -> None:
        for _ in range(3):
            super().iterate()
        loss = torch.tensor([float(self.number)])
        hooks.step(loss=loss, samples=10 + self.number)
        loss.zero_()


def test_marks_define_the_steps(session):
    """The first mark is where the first step begins."""
    trainer = Marked()
    train(session, trainer)
    assert trainer.number == ALL - 1
    assert session.window.loss.tolist() == [1, 2, 3, 4, 5]
    assert session.window.samples == 13 + 14 + 15


def test_a_failure_of_ours_is_kept_if_it_is_caught(session):
    def fail(session: ScriptSession) -> torch.device:
        raise RuntimeError("no GPU")

    session.find_device = fail
    trainer = Trainer()
    with pytest.raises(RuntimeError, match="no GPU"):
        trainer.iterate()
    assert str(session.failure) == "no GPU"
    trainer.iterate()


def test_frozen_weights_are_not_trained():
    pair = Pair()
    pair.first.requires_grad_(False)
    assert count_trained(torch.optim.SGD(pair.parameters(), lr=0.1)) == 4


def test_inputs_are_told_apart():
    inputs = torch.arange(10_000.0).reshape(100, 100)
    digest = digest_values([(inputs,), {"mask": inputs > 3}])
    assert digest is not None
    assert digest == digest_values([(inputs.clone(),), {"mask": inputs > 3}])
    others = [inputs + 1, inputs.double(), inputs.bfloat16(), inputs.to_sparse()]
    others += [inputs.to("meta"), torch.empty(0), inputs.bool()]
    assert digest not in {digest_values([(one,), {}]) for one in others}
    assert digest_values([("text", 3, None), {}]) is None


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ([(torch.ones(4, 3, 2), torch.ones(9)), {}], (4, 12, 24)),
        ([(), {"input_ids": torch.ones(8, 16), "mask": None}], (8, 128)),
        ([({"x": [torch.ones(5)]},), {}], (5,)),
        ([("text",), {}], ()),
    ],
)
def test_what_a_batch_counts(given, sizes):
    assert leading_sizes(given) == sizes


PLACE = Place(rank=3, size=4, local_rank=1, local_size=2, node=1)
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
MEETING = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


@pytest.mark.parametrize(
    ("url", "meeting"),
    [("env://", ()), ("tcp://node1:2345", ("node1", "2345", "False"))],
)
def test_scripts_find_their_place_in_the_environment(url, meeting):
    place = dict(zip(NAMES, "34121", strict=True))
    assert place_variables(PLACE, url) == {**place, **dict(zip(MEETING, meeting))}  # noqa: B905


def test_a_file_says_where_rank_0_is(tmp_path):
    alone = Place(rank=0, size=1, local_rank=0, local_size=1, node=0)
    found = place_variables(alone, f"file://{tmp_path}/meeting")
    assert found["MASTER_ADDR"] == "127.0.0.1"
    assert int(found["MASTER_PORT"]) > 1024


def test_a_launch_has_a_copy_and_what_it_downloads_stays_for_others(tmp_path):
    own = tmp_path / "own"
    (own / "package").mkdir(parents=True)
    (own / "package/module.py").write_text("a = 1")
    (own / "package/module.py").chmod(0o444)
    for name in ("first", "second"):
        folder = tmp_path / name / "script"
        folder.parent.mkdir()
        for _ in range(2):  # ranks of one host
            copy_folder(own, folder, tmp_path / "kept")
        assert {path.name for path in folder.parent.iterdir()} == {"script", "data"}
        (folder / "package/module.py").write_text("a = 2")
        (folder / f"data/of-{name}.txt").touch()
        (folder / f"../data/{name}.txt").touch()
    assert (own / "package/module.py").read_text() == "a = 1"
    found = {path.name for path in (tmp_path / "kept").iterdir()}
    assert found == {"of-first.txt", "first.txt", "of-second.txt", "second.txt"}
    assert (tmp_path / "second/script/data/first.txt").exists()
    # Data that belongs to the script is its own.
    (own / "data").mkdir()
    copy_folder(own, tmp_path / "third", tmp_path / "kept")
    assert not list((tmp_path / "third/data").iterdir())


def test_a_script_on_cuda_has_to_use_a_gpu(session):
    def device_of(kind: str) -> torch.device:
        spec, place = SimpleNamespace(cell=make_cell(device=kind)), Place.of(0, 1, 1)
        return find_device(SimpleNamespace(spec=spec, place=place), session)

    assert device_of("cpu") == torch.device("cpu")
    if not torch.cuda.is_initialized():
        with pytest.raises(ScriptError, match="uses no GPU"):
            device_of("cuda")


def test_ranks_that_see_different_phases_have_one(tmp_path):
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
