"""Which steps of optimizers are training steps."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from rankbench.rank.scripts.observing import (
    RootSearch,
    ScriptError,
    StepCounter,
    count_trained,
    digest_values,
    leading_sizes,
    watch,
)

pytestmark = pytest.mark.unit


class Counted(StepCounter):
    """Counts training steps, and other steps of optimizers."""

    def __init__(self) -> None:
        self.steps = self.updates = self.backwards = 0
        super().__init__(
            on_step=lambda: self._add("steps"),
            on_update=lambda: self._add("updates"),
            on_backward=lambda: self._add("backwards"),
        )
        self.search = RootSearch()

    def _add(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)


@pytest.fixture
def counter() -> Iterator[Counted]:
    made = Counted()
    made.install()
    made.search.begin()
    yield made
    made.search.end()
    made.remove()


def learn(model: nn.Module) -> None:
    model(torch.ones(2, 3)).sum().backward()


def make(lr: float = 0.1) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def test_each_iteration_is_a_step(counter):
    model, optimizer = make()
    for _ in range(3):
        learn(model)
        optimizer.step()
    assert (counter.steps, counter.seen, counter.backwards) == (3, 3, 3)
    assert counter.optimizer is optimizer


def test_accumulated_gradients_are_one_step(counter):
    model, optimizer = make()
    for _ in range(2):
        for _ in range(4):
            learn(model)
        optimizer.step()
    assert (counter.steps, counter.backwards) == (2, 8)


class Wrapper(torch.optim.SGD):
    """An optimizer that steps by another one, as Horovod's does."""

    def step(self, closure=None):
        return super().step(closure)


class Outer(torch.optim.SGD):
    """An optimizer with another one inside."""

    def step(self, closure=None):
        weights = self.param_groups[0]["params"]
        return torch.optim.Adam(weights).step(closure)


@pytest.mark.parametrize("kind", [Wrapper, Outer])
def test_only_the_outermost_of_nested_optimizers_steps(counter, kind):
    model = nn.Linear(3, 1)
    outer = kind(model.parameters(), lr=0.1)
    learn(model)
    outer.step()
    assert (counter.steps, counter.optimizer) == (1, outer)


@pytest.mark.parametrize("may_differ", [True, False])
def test_two_optimizers_make_no_step_unless_it_is_marked(counter, may_differ):
    """Such as Muon and AdamW, or those of a generator and a discriminator."""
    counter.may_differ = may_differ
    model, one = make()
    learn(model)
    one.step()
    other = torch.optim.Adam(model.parameters(), lr=0.5)
    learn(model)
    if may_differ:
        other.step()
        assert (counter.steps, counter.updates) == (1, 1)
        assert counter.optimizer is one
        return
    with pytest.raises(ScriptError) as error:
        other.step()
    assert "SGD of 4 weights at learning rate 0.1 and Adam of 4" in str(error.value)
    assert "call rankbench.hooks.step()" in str(error.value)


def test_a_step_within_backward_ends_with_it(counter):
    """A hook on the last gradient steps, so that no gradients need be kept."""
    model, optimizer = make()
    weight = model.weight
    weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    for number in range(3):
        learn(model)
        assert (counter.steps, counter.backwards) == (number + 1, number + 1)


def test_an_optimizer_that_is_gone_is_replaced(counter):
    model, optimizer = make()
    for _ in range(2):
        learn(model)
        optimizer.step()
        del optimizer
        gc.collect()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learn(model)
    optimizer.step()
    assert counter.steps == 3


def test_a_step_that_computes_nothing_does_not_count(counter):
    model, optimizer = make()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert (counter.steps, counter.seen, counter.optimizer) == (0, 1, None)
    learn(model)
    optimizer.step()
    optimizer.step()
    assert (counter.steps, counter.seen) == (1, 3)


def test_a_closure_computes_within_the_step(counter):
    model, _ = make()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(torch.ones(2, 3)) - 1).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert counter.steps == 2


def test_tensors_without_a_module_make_steps(counter):
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    for _ in range(2):
        (weight * 2).sum().backward()
        optimizer.step()
    assert counter.steps == 2


def test_a_step_that_the_scaler_skips_counts(counter):
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = model.weight.clone()
    for factor in (float("inf"), 1.0):
        scaler.scale(model(torch.ones(2, 3)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert (counter.steps, counter.seen) == (2, 2)
    assert counter.optimizer is optimizer
    assert torch.isfinite(model.weight).all()
    assert not torch.equal(model.weight, before)


def test_a_step_that_raises_does_not_count_and_spoils_nothing(counter):
    model, optimizer = make()

    def closure() -> float:
        raise MemoryError

    learn(model)
    with pytest.raises(MemoryError):
        optimizer.step(closure)
    optimizer.step()
    assert (counter.steps, counter.seen) == (1, 1)


def test_after_removal_nothing_counts():
    plain = torch.autograd.backward, torch.amp.GradScaler.step, nn.Module.__call__
    counter = Counted()
    counter.install()
    counter.search.begin()
    counter.remove()
    assert counter.search.end() is None
    model, optimizer = make()
    learn(model)
    optimizer.step()
    assert counter.seen == 0
    now = torch.autograd.backward, torch.amp.GradScaler.step, nn.Module.__call__
    assert now == plain


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def find_root(run) -> nn.Module | None:
    search = RootSearch()
    search.begin()
    try:
        run()
    finally:
        found = search.end()
    return found


def test_the_root_is_the_module_that_is_called_from_outside():
    model, teacher, frozen = Pair(), Pair(), Pair().requires_grad_(False)

    def run() -> None:
        with torch.no_grad():
            teacher(torch.ones(2, 3))
        frozen(torch.ones(2, 3))
        for _ in range(2):
            nn.MSELoss()(model(torch.ones(2, 3)), torch.zeros(2, 1)).backward()

    assert find_root(run) is model


def test_of_several_modules_none_is_the_root():
    model = Pair()
    batch = torch.ones(2, 3)
    assert find_root(lambda: model.second(model.first(batch))) is None


def test_a_forward_that_raises_does_not_end_the_search():
    model = Pair()

    def run() -> None:
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 9))
        model(torch.ones(2, 3))

    assert find_root(run) is model


@pytest.mark.parametrize("compiled", [False, True])
def test_a_watched_root_tells_its_forwards_and_can_be_copied(compiled):
    told: list[str] = []
    model = Pair()
    if compiled:
        model.compile(backend="eager")
    end = watch(model, lambda given: told.append("begin"), lambda: told.append("end"))
    model(torch.ones(2, 3))
    with torch.no_grad():
        model(torch.ones(2, 3))
    assert told == ["begin", "end"]
    copy.deepcopy(model)
    pickle.loads(pickle.dumps(model))  # noqa: S301
    end()
    model(torch.ones(2, 3))
    assert told == ["begin", "end"]


def test_compiled_models_are_compiled_once(counter):
    from torch._dynamo.testing import CompileCounter

    backend = CompileCounter()
    model, optimizer = make()
    module = torch.compile(model, backend=backend)
    learn(module)
    optimizer.step()
    found = counter.search.end()
    end = watch(found, lambda given: None, lambda: None)
    for _ in range(2):
        learn(module)
        optimizer.step()
    end()
    assert found is module
    assert (counter.steps, backend.frame_count) == (3, 1)


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
