"""What one rank of a cell will hold and send, found without running it.

``python -m rankbench.rank.purposes.estimate`` reads a list for `estimate_all` from
standard input as JSON, and writes a line of JSON for each cell.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from rankbench.cell import Cell, Shape
from rankbench.decoder import split_evenly, stages_of_rank
from rankbench.environ import Place
from rankbench.rank import models, variants
from rankbench.rank.facts.fake_ranks import (
    GATHERED,
    GRADIENTS,
    HOST,
    OPTIMIZER,
    WEIGHTS,
    Ledger,
    join_fake_ranks,
)
from rankbench.rank.purposes.setup import (
    draw_model,
    make_world,
    set_up_strategy,
    sizes_of_data,
)
from rankbench.rank.strategies import find_strategy, runtime_of
from rankbench.rank.strategies.base import Strategy, World
from rankbench.record import first_line

CPU = torch.device("cpu")


class CannotBeEstimated(Exception):
    """The message says why, in words of a user."""


def estimate(
    cell: Cell, shape: Shape, rank: int, device: torch.device = CPU
) -> dict[str, Any]:
    """What a rank needs; for which a process of its own is needed.

    Args:
        cell: the cell; files of the user's own are in `variants.own`.
        shape: of the cell.
        rank: which rank.
        device: where its tensors seem to be; another than the CPU needs a torch that
            knows such devices.

    Returns:
        rank; setup and step: bytes of all tensors at the peak of set-up with the first
        steps, and of a later step; parts: what the latter consists of, kind -> bytes;
        sent: for each operation of a step operation, group (ranks), dtype, calls and
        bytes (of the whole tensors; the mean over a strategy's period); waits: how
        often the host waits for the device in a step, except to read how many tokens
        each expert gets, which are expected to be equally many; declared: what the
        strategy declares to send; strays: operations on tensors of other devices.

    Raises:
        CannotBeEstimated: it cannot be known without running.
    """
    if cell.script is not None:
        raise CannotBeEstimated("a script is not taken apart")
    runtime = runtime_of(cell.strategy)
    if runtime != "process_group":
        raise CannotBeEstimated(
            f"{cell.strategy} communicates outside of torch ({runtime})"
        )
    if cell.device == "cuda" and shape.devices_per_rank > 1:
        raise CannotBeEstimated(f"one process of {cell.strategy} drives several GPUs")
    if cell.device == "cuda" and cell.options.get("offload") == "cpu":
        raise CannotBeEstimated("offload divides tensors between host and GPU")
    # CUDA's allocator gives memory in blocks of 512 bytes.
    ledger = Ledger(device, unit=512 if cell.device == "cuda" else 1)
    place = Place.of(rank, shape.ranks, shape.ranks_per_node)
    os.environ |= {**place.export(), "DS_ACCELERATOR": device.type}
    world = make_world(cell, shape, place, (device,) * shape.devices_per_rank)
    try:
        join_fake_ranks(rank, shape.ranks, ledger)
        if cell.device == "cuda":
            nn.RMSNorm.forward = _normalise  # type: ignore[assignment, method-assign]
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, ledger:
            return _run(cell, shape, world, ledger, fake)
    except (DataDependentOutputException, NotImplementedError) as error:
        raise CannotBeEstimated(first_line(str(error))) from error


class _RmsNorm(torch.autograd.Function):
    """What CUDA's fused kernel keeps: the input, and a number of each token.

    On a CPU the same is many operations, which keep several copies in float32.
    """

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        scales = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        context.save_for_backward(x, weight, scales)
        return torch.empty_like(x)

    @staticmethod
    def backward(context: Any, *_: Any) -> tuple[Tensor, Tensor]:
        x, weight, _scales = context.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def _normalise(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    normed: Tensor = _RmsNorm.apply(x, norm.weight)
    return normed


def _run(
    cell: Cell, shape: Shape, world: World, ledger: Ledger, fake: FakeTensorMode
) -> dict[str, Any]:
    sizes = sizes_of_data(cell)
    # Fake tensors cannot be compiled. Layers of float8 keep what those of bf16 keep.
    cell = replace(
        cell,
        options=_balance(cell, shape, sizes),
        compile=False,
        precision="bf16" if cell.precision.startswith("fp8") else cell.precision,
    )
    with unset_fake_temporarily():
        blueprint = draw_model(cell, sizes)
    for module in blueprint.model.modules():
        for own in (module._parameters, module._buffers):
            for name, value in own.items():
                if value is not None:
                    # Of the same tensor it always makes the same.
                    setattr(module, name, fake.from_tensor(value, static_shapes=True))
    models.expect_balance(blueprint.model)
    strategy = set_up_strategy(
        cell,
        world,
        blueprint,
        replica_ranks=shape.replica_ranks,
        load=blueprint.allocate,
    )
    period, strategy.period = strategy.period, 1
    with world.device:
        inputs = models.example_inputs(sizes, shape.rank_batch)
        labels = torch.zeros(shape.rank_batch, dtype=torch.int64)
    batch = (inputs, torch.zeros_like(inputs) if "context" in sizes else labels)
    last = strategy.phases[-2]
    host = HOST if cell.options.get("offload") is True else None

    def mark(phase: str) -> None:
        if phase == last:
            gradients = [weight.grad for weight in _parameters(strategy)]
            ledger.label(gradients, host or GRADIENTS)

    for _ in range(strategy.settled_after):
        strategy.step(batch, mark)
    # Say what the tensors that outlive a step are for.
    ledger.label_rest(GATHERED)
    groups = strategy.optimizer.param_groups
    ledger.label((p for group in groups for p in group["params"]), host or OPTIMIZER)
    for state in strategy.optimizer_state():
        ledger.label(tree_leaves(state), host or OPTIMIZER)
    ledger.label(_parameters(strategy), host or WEIGHTS)
    setup = sum(ledger.parts().values())
    ledger.turn_page()
    strategy.step(batch, mark)
    strategy.period = period
    parts = ledger.parts()
    return {
        "rank": world.rank,
        "setup": setup,
        "step": sum(parts.values()),
        "parts": parts,
        "sent": [
            _describe(*traffic, size / period) | {"calls": ledger.calls[traffic]}
            for traffic, size in ledger.sent.items()
        ],
        "declared": [
            _describe(
                operation.name, operation.ranks(world), operation.dtype, operation.bytes
            )
            for operation in strategy.operations()
            if operation.ranks(world) > 1
        ],
        "waits": ledger.waits,
        "strays": sorted(ledger.strays),
    }


def _describe(
    operation: str, group: int, dtype: torch.dtype, size: float | None
) -> dict[str, Any]:
    return {
        "operation": operation,
        "group": group,
        "dtype": str(dtype).removeprefix("torch."),
        "bytes": size,
    }


def _balance(cell: Cell, shape: Shape, sizes: Mapping[str, int]) -> Mapping[str, Any]:
    """The options of the cell; stages get parts of about equal arithmetic.

    What stages are balanced by in a launch may be measured, which takes real parts.
    """
    options = dict(cell.options)
    if options.get("balance") != "measured":
        return options
    stages = options.get("pipe", shape.replica_ranks) * shape.devices_per_rank
    needs = find_strategy(cell.strategy).needs
    stages *= stages_of_rank(options, needs.get("schedules", {}))
    with unset_fake_temporarily(), torch.device("meta"):
        model = models.build(cell.model, **sizes, options=cell.model_options)
        models.expect_balance(model)
        x, costs = models.example_inputs(sizes, 2), []
        for part in model.children():
            with FlopCounterMode(display=False) as counter:
                x = part(x)
            # A part without any arithmetic is not for nothing.
            costs.append(1.0 + counter.get_total_flops())
    counts = split_evenly(costs, stages)
    return options | {"balance": ",".join(map(str, counts))}


def _parameters(strategy: Strategy) -> list[nn.Parameter]:
    engine = getattr(strategy, "engine", None)
    return list((engine.module if engine else strategy.model).parameters())


def estimate_all(
    asked: Sequence[Mapping[str, Any]], device: torch.device = CPU
) -> Iterator[dict[str, Any]]:
    """For each cell {"ranks": what `estimate` finds} or {"unknown": why it cannot.

    Args:
        asked: cell and shape as they are in a plan, own (kind -> file), ranks.
        device: see `estimate`.
    """
    os.environ["DS_ACCELERATOR"] = device.type
    for name in {cell["cell"]["strategy"] for cell in asked if not cell["own"]}:
        # Once for all processes.
        for package in find_strategy(name).needs.get("packages", ()):
            with contextlib.suppress(ImportError):
                importlib.import_module(package)
    # Each in a process of its own, because libraries keep their groups of ranks.
    processes = len(os.sched_getaffinity(0))
    with multiprocessing.get_context("fork").Pool(processes, None, (), 1) as pool:
        jobs = [[(cell, rank, device) for rank in cell["ranks"]] for cell in asked]
        for job in [pool.map_async(_estimate, job, chunksize=1) for job in jobs]:
            found = job.get()
            unknown = [rank for rank in found if "unknown" in rank]
            yield unknown[0] if unknown else {"ranks": found}


def _estimate(job: tuple[Mapping[str, Any], int, torch.device]) -> dict[str, Any]:
    asked, rank, device = job
    # Libraries warn of what they find here.
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cell = Cell.from_dict(asked["cell"])
    for kind, file in asked["own"].items():
        variants.own[kind, getattr(cell, kind)] = Path(file)
    try:
        return estimate(cell, Shape(**asked["shape"]), rank, device)
    except CannotBeEstimated as error:
        return {"unknown": str(error)}
    except Exception as error:
        return {"unknown": f"{type(error).__name__}: {first_line(str(error))}"}


def main() -> None:
    asked = json.load(sys.stdin)
    # Libraries print what they like.
    answers, sys.stdout = sys.stdout, sys.stderr
    for answer in estimate_all(asked):
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
