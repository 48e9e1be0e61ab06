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

from rankbench.record import NO_EXCHANGE, OTHER_SAMPLES, SAME_DATA

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
    assert launch.record["ranks"][0]["details"]["backwards_per_step"] == 3
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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("around", "after", "said"),
    [
        (
            "except SystemExit:\n        pass",
            "    print('still here', flush=True)\n    dist.recv(torch.ones(1))\n",
            "still here",
        ),
        ("finally:\n        1 / 0", "", "ZeroDivisionError"),
    ],
    ids=["goes on", "fails"],
)
def test_what_a_script_does_after_its_window_changes_nothing(
    tmp_path, around, after, said
):
    text = TRAINING.read_text()
    text = text.replace("    main()", f"    try:\n        main()\n    {around}") + after
    launch = run_script(tmp_path / "launch", write(tmp_path / "own/train.py", text))
    check(launch, PHASES)
    assert said in launch.log(0)


LOOP = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

{before}
torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
model = nn.Linear(64, 64)
{wrap}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
seen = 0
while True:
    loss = model(torch.randn({batch}, 64)).square().mean()
    loss.backward()
    seen += 1
    {send}
    optimizer.step()
    optimizer.zero_grad()
"""
JOIN = 'dist.init_process_group("gloo")'
DDP = "model = DistributedDataParallel(model)"


def write_loop(
    path: Path, before: str = JOIN, wrap: str = DDP, send: str = "", batch: int = 25
) -> Path:
    text = LOOP.format(before=before, wrap=wrap, send=send, batch=batch)
    return write(path, text)


MARKED_ALONE = """
import torch
from rankbench import hooks

weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight])
weight.sum().backward()
optimizer.step()
hooks.step()
"""
PROBE = f"""
{JOIN}
probe = nn.Linear(4, 4)
probing = torch.optim.Adam(probe.parameters())
probe(torch.ones(2, 4)).sum().backward()
probing.step()
"""


WORKED = TRAINING.read_text()
BUSY = "while __import__('time').process_time() < 2: pass"
REFUSED = {
    "short": (WORKED, "--epochs=1", ["train.py ended after 10 of 17 training steps"]),
    "never": (
        "print('nothing to do')",
        "",
        [
            "train.py ended before its first training step: this process saw no step",
            "call rankbench.hooks.step()",
            "it printed: nothing to do",
        ],
    ),
    "well": (
        "import sys; print('this needs 2 GPUs'); sys.exit()",
        "",
        ["ended before its first training step: ", "it printed: this needs 2 GPUs"],
    ),
    "arguments": (
        WORKED,
        "--batch=3 --nonsense",
        [
            "exited with status 2; it printed: usage: train.py [-h] [--batch-size",
            "train.py: error: unrecognized arguments: --nonsense",
        ],
    ),
    "words": (
        "raise SystemExit('no licence')",
        "",
        ["train.py ended before its first training step: no licence"],
    ),
    "raises": (
        WORKED.replace("loss.backward()", "raise ValueError('two\\nlines')"),
        "",
        ["ValueError: two / lines; at train.py:", "raise ValueError('two"],
    ),
    "programs": (
        f"import subprocess, sys; subprocess.call([sys.executable, '-c', {BUSY!r}])",
        "",
        ["and programs that it started, which worked for ", "are not measured; "],
    ),
    "exit": (
        "import os; print('bye', flush=True); os._exit(0)",
        "",
        ["nothing from rank 0: bye"],
    ),
    "alone": (
        WORKED.replace("dist.init", "0 and dist.init")
        .replace("DistributedDataParallel(model)", "model")
        .replace("DistributedSampler(data)", "DistributedSampler(data, 2, 0)"),
        "",
        ["the script trains 2 models, one on each rank: it does not join its ranks"],
    ),
    "marked": (MARKED_ALONE, "", ["the script trains 2 models, one on each rank"]),
    "two": (
        LOOP.format(before=PROBE, wrap=DDP, send="", batch=25),
        "",
        [
            "Adam of 20 weights at learning rate 0.001 and SGD of 4,160",
            "call rankbench.hooks.step()",
        ],
    ),
}


@pytest.mark.parametrize("form", REFUSED)
def test_a_script_that_cannot_be_measured_says_why_and_quotes_it(tmp_path, form):
    text, arguments, words = REFUSED[form]
    script = write(tmp_path / "own/train.py", text)
    reason = run_script(tmp_path / "launch", script, *arguments.split()).reason
    assert reason is not None
    for said in words:
        assert said in reason
    assert "execution_trace" not in reason  # the words of our own look


def test_a_script_over_another_backend_is_refused(tmp_path):
    launch = run_script(tmp_path, TRAINING, backend="mpi")
    assert launch.reason.replace("rank 1: ", "rank 0: ").startswith(
        "rank 0: ScriptError: the script joins its ranks over gloo, but this cell "
        "measures mpi"
    )


SHARDED = "from torch.distributed.fsdp import fully_shard; fully_shard(model)"
BY_HAND = "[dist.all_reduce(weight.grad) for weight in model.parameters()]"
# A large part is frozen, as when a model is tuned to new data.
FROZEN = f"""
model = nn.Sequential(nn.Linear(64, 4096).requires_grad_(False), nn.Linear(4096, 1))
{DDP}
"""


@pytest.mark.parametrize(
    ("form", "marks"),
    [
        # Without a warm-up as well, which is where the look belongs.
        ({"wrap": "", "warmup": 0}, [NO_EXCHANGE]),
        ({"wrap": "", "send": "dist.all_reduce(loss.detach())"}, [NO_EXCHANGE]),
        ({"wrap": f"{DDP}.module"}, [NO_EXCHANGE]),
        ({"warmup": 0}, []),
        ({"wrap": SHARDED}, []),
        ({"wrap": "", "send": BY_HAND}, []),
        ({"wrap": "", "send": f"if seen % 3 == 2: {BY_HAND}"}, []),
        ({"wrap": FROZEN}, []),
        ({"wrap": f"{DDP}; torch.manual_seed(0)"}, [SAME_DATA]),
        ({"batch": 16}, [OTHER_SAMPLES]),
    ],
    ids=[
        *("alone", "loss", "unwrapped", "ddp", "fsdp2", "hand", "third", "frozen"),
        *("same samples", "other batch"),
    ],
)
def test_rows_that_are_not_what_they_seem_are_marked(tmp_path, form, marks):
    """The plan says 50 samples of both ranks."""
    warmup = form.pop("warmup", WARMUP)
    script = write_loop(tmp_path / "own/train.py", **form)
    launch = run_script(tmp_path / "launch", script, warmup=warmup)
    record = launch.record
    assert record["marks"] == marks
    assert len(launch.steps(0)["seconds"]) == STEPS
    details = record["ranks"][0]["details"]
    assert details["exchange"]["trains"] is (NO_EXCHANGE not in marks)
    assert details["optimizer"].startswith("SGD of ")
    if OTHER_SAMPLES in marks:
        assert details["counted"] == {"inputs": 12 * 16, "planned": 12 * 25}
