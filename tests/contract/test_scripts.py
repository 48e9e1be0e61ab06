"""Training scripts in the forms that users have, measured on two ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scripts_ranks import (
    GLOBAL_BATCH,
    RANKS,
    SCRIPTS,
    STEPS,
    WARMUP,
    Launch,
    run_by,
    run_script,
)

from rankbench.record import NO_EXCHANGE, SAME_DATA

pytestmark = pytest.mark.contract

PHASES = ["load", "forward", "backward", "update"]
MODULE = ("--module", "rankbench.rank")
TRAINING = SCRIPTS / "data_parallel.py"


def check(launch: Launch, phases: list[str]) -> None:
    """What holds for every script that was measured."""
    record = launch.record
    assert record["phases"] == phases
    assert (record["steps"], record["warmup"]) == (STEPS, WARMUP)
    for rank in range(RANKS):
        steps = launch.steps(rank)
        assert steps["seconds"].shape == (STEPS, len(phases))
        assert steps["warmup"].shape == (WARMUP, len(phases))
        assert steps["loss"].shape == (WARMUP + STEPS,)
        assert (steps["seconds"].sum(axis=1) > 0).all()
        window = record["ranks"][rank]["window_s"]
        # A rank of a busy machine also waits between its steps.
        assert window / 2 < steps["seconds"].sum() < window * 1.01


def test_a_tutorial_of_ddp(tmp_path):
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", *MODULE]
    launch = run_by(torchrun, tmp_path, TRAINING, "--batch-size", "32")
    check(launch, PHASES)
    record = launch.record
    assert record["samples"] == GLOBAL_BATCH * STEPS
    assert record["loss"] == {"first": None, "last": None}
    assert record["model"]["parameters"] == 21 * 64 + 65 * 10
    assert record["ranks"][0]["memory"]["optimizer_mib"] > 0
    assert "epoch 0: loss" in launch.log(0)


def test_a_language_model_with_accumulation_and_checkpoints(tmp_path):
    script = SCRIPTS / "language_model/train.py"
    launch = run_script(tmp_path, script, "--accumulation=3", "--evaluate_every=2")
    check(launch, PHASES)
    assert (launch.folder / "checkpoint.pt").exists()
    assert not (script.parent / "checkpoint.pt").exists()
    # The script ends within the step after those of warm-up and window.
    assert f"iteration {WARMUP + STEPS}: loss" in launch.log(0)
    assert f"iteration {WARMUP + STEPS + 2}: loss" not in launch.log(0)


def test_marks_of_the_script(tmp_path):
    launch = run_script(tmp_path, SCRIPTS / "marked.py", "100")
    check(launch, ["step"])
    # The first mark does not end a step, and the warm-up has an even number of steps.
    assert launch.record["samples"] == RANKS * (16 + 17) * STEPS // 2
    losses = launch.steps(0)["loss"]
    assert np.isfinite(losses).all()
    assert losses[0] > losses[-1]
    assert launch.record["loss"]["first"] > launch.record["loss"]["last"]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_a_script_that_goes_on_after_its_window_is_ended(tmp_path):
    caught = "try:\n        main()\n    except SystemExit:\n        pass"
    more = "    print('still here', flush=True)\n    dist.recv(torch.ones(1))\n"
    text = TRAINING.read_text().replace("    main()", f"    {caught}") + more
    script = write(tmp_path / "own/train.py", text)
    launch = run_script(tmp_path / "launch", script)
    check(launch, PHASES)
    assert "still here" in launch.log(0)


def test_a_failure_after_the_measurement_is_none(tmp_path):
    text = TRAINING.read_text().replace("    main()", "    try:\n        main()\n")
    script = write(tmp_path / "own/train.py", text + "    finally:\n        1 / 0\n")
    launch = run_script(tmp_path / "launch", script)
    check(launch, PHASES)
    assert "ZeroDivisionError" in launch.log(0)


MARKED_ALONE = """
import torch
from rankbench import hooks

weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight])
weight.sum().backward()
optimizer.step()
hooks.step()
"""


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (
            TRAINING.read_text(),
            ["--epochs=1", "--batch-size=64"],
            ("train.py ended after 5 of 17 training steps",),
        ),
        (
            "print('nothing to do')",
            [],
            (
                "train.py ended without a training step: this process saw no step of a "
                "torch optimizer; call rankbench.hooks.step()",
                "it printed: nothing to do",
            ),
        ),
        (
            TRAINING.read_text(),
            ["--batch=3", "--nonsense"],
            (
                "exited with status 2; it printed: usage: train.py [-h] [--batch-size",
                "train.py: error: unrecognized arguments: --nonsense",
            ),
        ),
        (
            TRAINING.read_text().replace(
                "loss.backward()", "raise ValueError('two\\nlines')"
            ),
            [],
            ("ValueError: two / lines; at train.py:", "raise ValueError('two"),
        ),
        (
            "import sys; print('no data here'); sys.exit(3)",
            [],
            ("exited with status 3; it printed: no data here",),
        ),
        (
            "import sys; print('this needs 2 GPUs'); sys.exit()",
            [],
            ("exited with status 0; it printed: this needs 2 GPUs",),
        ),
        (
            "import os; print('bye', flush=True); os._exit(0)",
            [],
            ("nothing from rank 0: bye",),
        ),
        (
            "raise SystemExit('no licence')",
            [],
            ("train.py ended before its first training step: no licence",),
        ),
        (
            TRAINING.read_text()
            .replace("dist.init", "0 and dist.init")
            .replace("DistributedDataParallel(model)", "model")
            .replace("DistributedSampler(data)", "DistributedSampler(data, 2, 0)"),
            [],
            (
                "the script trains 2 models, one on each rank: it does not join its "
                "ranks by torch.distributed, Horovod or MPI",
            ),
        ),
        (
            MARKED_ALONE,
            [],
            ("the script trains 2 models, one on each rank",),
        ),
        (
            "import nowhere",
            [],
            ("ModuleNotFoundError: No module named 'nowhere'; at train.py:1 in ",),
        ),
    ],
    ids=[
        *("short", "never", "arguments", "raises", "status", "well", "exit", "words"),
        *("alone", "marked", "import"),
    ],
)
def test_a_script_that_cannot_be_measured_says_why_and_quotes_it(
    tmp_path, text, arguments, words
):
    script = write(tmp_path / "own/train.py", text)
    launch = run_script(tmp_path / "launch", script, *arguments)
    assert launch.reason is not None
    for said in words:
        assert said in launch.reason


def test_a_script_over_another_backend_is_refused(tmp_path):
    launch = run_script(tmp_path, TRAINING, backend="mpi")
    assert launch.reason.replace("rank 1: ", "rank 0: ").startswith(
        "rank 0: ScriptError: the script joins its ranks over gloo, but this cell "
        "measures mpi"
    )


LOOP = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = nn.Linear(64, 64)
{wrap}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
seen = 0
while True:
    loss = model(torch.randn(25, 64)).square().mean()
    loss.backward()
    seen += 1
    {send}
    optimizer.step()
    optimizer.zero_grad()
"""
SHARDED = "from torch.distributed.fsdp import fully_shard; fully_shard(model)"
BY_HAND = "[dist.all_reduce(weight.grad) for weight in model.parameters()]"
# A large part is frozen, as when a model is tuned to new data.
FROZEN = """
model = nn.Sequential(nn.Linear(64, 4096).requires_grad_(False), nn.Linear(4096, 1))
model = DistributedDataParallel(model)
"""


@pytest.mark.parametrize(
    ("wrap", "send", "is_marked"),
    [
        ("", "", True),
        ("", "dist.all_reduce(loss.detach())", True),
        ("model = DistributedDataParallel(model).module", "", True),
        ("model = DistributedDataParallel(model)", "", False),
        (SHARDED, "", False),
        ("", BY_HAND, False),
        ("", f"if seen % 3 == 2: {BY_HAND}", False),
        (FROZEN, "", False),
    ],
    ids=["alone", "loss", "unwrapped", "ddp", "fsdp2", "hand", "third", "frozen"],
)
def test_ranks_that_exchange_no_gradients_are_marked(tmp_path, wrap, send, is_marked):
    script = write(tmp_path / "own/train.py", LOOP.format(wrap=wrap, send=send))
    # Without a warm-up as well, which is where the look belongs.
    warmup = 0 if wrap == "" else WARMUP
    launch = run_script(tmp_path / "launch", script, warmup=warmup)
    record = launch.record
    assert record["marks"] == ([NO_EXCHANGE] if is_marked else [])
    assert len(launch.steps(0)["seconds"]) == STEPS
    details = record["ranks"][0]["details"]
    assert details["exchange"]["trains"] is not is_marked
    assert details["optimizer"].startswith("SGD of ")


@pytest.mark.parametrize("seed", ["0", "dist.get_rank()"])
def test_ranks_that_train_on_the_same_samples_are_marked(tmp_path, seed):
    wrap = f"model = DistributedDataParallel(model)\ntorch.manual_seed({seed})"
    script = write(tmp_path / "own/train.py", LOOP.format(wrap=wrap, send=""))
    marks = run_script(tmp_path / "launch", script).record["marks"]
    assert marks == ([SAME_DATA] if seed == "0" else [])
