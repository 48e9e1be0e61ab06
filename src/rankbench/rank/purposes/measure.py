"""A measuring launch on one rank: set up, train, evaluate, write the report."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from rankbench.environ import Place, step_id
from rankbench.launch_spec import COLLECTIVES, EVALUATION
from rankbench.rank.facts import usage
from rankbench.rank.facts.collectives import sweep
from rankbench.rank.facts.host import describe_host, describe_software, identify_gpu
from rankbench.rank.models import describe_model, find_kernels, routed_rows
from rankbench.rank.purposes.setup import build_model, finish, set_up
from rankbench.rank.training.loop import Window, train
from rankbench.rank.world.devices import gpus_among
from rankbench.rank.world.lifeline import Duty
from rankbench.record import write_json

# With fewer steps, none can be told to stand out.
FEWEST_STEPS = 20

# Beginnings of the variables that configure a backend.
_TRANSPORTS = (
    *("GLOO_", "NCCL_", "TP_", "UCX_", "FI_", "OMPI_MCA_", "CCL_", "HOROVOD_"),
)


def run(duty: Duty) -> None:
    """Measure the cell and write this rank's report."""
    spec, cell, clock = duty.spec, duty.spec.cell, usage.process_age
    imported = clock()
    course, material, blueprint, steps_per_epoch = set_up(duty)
    strategy, world = course.strategy, course.strategy.world
    ready = clock()
    steps = cell.steps or (cell.epochs or 0) * steps_per_epoch
    window = train(course, warmup=cell.warmup, steps=steps)
    trained = clock()
    duty.progress.enter(COLLECTIVES)
    report = describe_rank(duty, window, steps_per_epoch, imported, ready)
    of_rank, seconds = report["rank"], report["rank"]["seconds"]
    of_rank["memory"]["optimizer_mib"] = usage.size_of_state(strategy.optimizer_state())
    seconds |= {"collectives": 0.0, "evaluate": 0.0}
    if world.rank == 0:
        report["model"] = describe_model(cell.model, material.sizes, cell.model_options)
    # What follows may need more memory than there is.
    write_json(spec.work / f"measured{world.rank}.json", report, durable=False)
    if spec.options.collectives and world.size > 1:
        report["collectives"] = sweep(
            strategy.operations(), course.runtime, world, strategy.weight_bytes
        )
    swept = clock()
    duty.progress.enter(EVALUATION)
    if cell.evaluate or spec.options.save_model != "none":
        weights = strategy.state_dict()
        save_model(spec.directory, spec.options.save_model, duty.place, weights)
        if cell.evaluate and world.rank == 0:
            torch.manual_seed(cell.seed)
            model = build_model(cell, material.sizes).to(world.device)
            model.load_state_dict(weights)
            report["accuracy"] = evaluate(
                model, material.test, classes=material.classes, device=world.device
            )
    seconds |= {"collectives": swept - trained, "evaluate": clock() - swept}
    dtype = strategy.low_dtype or torch.float32
    of_rank["details"] = {
        **strategy.details(),
        **find_kernels(blueprint.model, dtype, world.device),
    }
    if routed := routed_rows(blueprint.model):
        of_rank["details"]["routed"] = routed
    finish(duty, course.runtime, report)


def describe_rank(
    duty: Duty, window: Window, steps_per_epoch: int, imported: float, ready: float
) -> dict[str, Any]:
    """Write `rankN.npz` into the launch's work folder; return the report `rankN.json`.

    Args:
        imported, ready: age of the process when its set-up began and ended, in seconds.
    """
    place, warmup = duty.place, duty.spec.cell.warmup
    unknown = np.full(len(window.warmup) + len(window.seconds), np.nan, np.float32)
    np.savez(
        duty.spec.work / f"rank{place.rank}.npz",
        seconds=window.seconds,
        warmup=window.warmup,
        loss=unknown if window.loss is None else window.loss,
    )
    steps = window.seconds.sum(axis=1)
    # Of few steps, each is a large part of the window; a short one ends within a blink.
    has_room = len(steps) >= FEWEST_STEPS and window.surroundings is not None
    longest = np.sort(steps)[-2:] if has_room else np.zeros(2)
    epochs = len(steps) // steps_per_epoch
    steps = steps[: epochs * steps_per_epoch].reshape(epochs, steps_per_epoch)
    loss = None
    if window.loss is not None:
        ends = {"first": float(window.loss[warmup]), "last": float(window.loss[-1])}
        loss = {
            end: value if math.isfinite(value) else None for end, value in ends.items()
        }
    transport = None
    backend = duty.spec.cell.backend
    if backend != "none":
        asked = {k: v for k, v in os.environ.items() if k.startswith(_TRANSPORTS)}
        transport = {"backend": backend, "asked": dict(sorted(asked.items()))}
    rank = {
        "rank": place.rank,
        "local_rank": place.local_rank,
        "node": place.node,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "device": str(window.devices[0]),
        "gpus": [identify_gpu(gpu.index) for gpu in gpus_among(window.devices)],
        # The CPUs that this rank was bound to.
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "seconds": {
            "startup": imported,
            "setup": ready - imported,
            "warmup": window.warmup_s,
            "train": window.window_s,
        },
        "window_s": window.window_s,
        # What the longest step took longer than any other.
        "stall_s": float(longest[1] - longest[0]),
        "samples": window.samples,
        "memory": {
            **usage.read_peaks(window.devices),
            "setup": window.setup_memory,
        },
        "details": {},
        # As a fraction of one core: 2.0 means that two cores were always busy.
        "cpu_utilisation": window.cpu.own / window.window_s,
        "loader_utilisation": window.cpu.loaders / window.window_s,
        "energy": window.energy,
        # Of each complete epoch within the timed window.
        "epochs_s": [float(seconds) for seconds in steps.sum(axis=1)],
    }
    return {
        "rank": rank,
        "surroundings": window.surroundings,
        "phases": list(window.phases),
        "steps": len(window.seconds),
        "steps_per_epoch": steps_per_epoch,
        "warmup": warmup,
        # Of the first and the last timed step; None for a loss that is not finite.
        "loss": loss,
        # Of the whole model, on the rank that evaluates it.
        "accuracy": None,
        # See `models.describe_model`; only on rank 0.
        "model": None,
        "host": describe_host(),
        "software": describe_software(),
        "transport": transport,
        # See `collectives.sweep`; None if no sweep was requested.
        "collectives": None,
        "step_id": step_id(),
        "marks": [],
    }


def save_model(
    folder: Path, how: str, place: Place, weights: Mapping[str, Tensor]
) -> None:
    """Save the weights of a rank after training.

    Args:
        folder: the folder of the launch.
        how: ``consolidated``: only rank 0 writes, to `model.pt`; ``per_rank``: each
            rank writes `model_rankN.pt`; ``none``: nothing is written.
        place: place of this rank among all.
        weights: weights under the names of the unwrapped model.
    """
    on_cpu = {name: value.detach().cpu() for name, value in weights.items()}
    if how == "per_rank":
        torch.save(on_cpu, folder / f"model_rank{place.rank}.pt")
    elif how == "consolidated" and place.rank == 0:
        torch.save(on_cpu, folder / "model.pt")


BATCH = 256

# Outputs for tokens are large: at most so many numbers at a time.
OUTPUTS = 2**26


@torch.no_grad()
def evaluate(
    model: nn.Module, dataset: Dataset, *, classes: int, device: torch.device
) -> dict[str, Any]:
    """Accuracy of a model on a data set.

    Returns:
        overall (a fraction), per_class (a fraction for each class; None for a class
        without samples; empty for tokens), samples (number of samples; of tokens, for
        tokens).
    """
    model.eval()
    of_tokens = dataset[0][0].dim() == 1
    outputs = len(dataset[0][0]) * classes if of_tokens else classes
    right = torch.zeros(classes, dtype=torch.int64)
    total = torch.zeros(classes, dtype=torch.int64)
    batch_size = max(1, min(BATCH, OUTPUTS // outputs))
    for inputs, targets in DataLoader(dataset, batch_size=batch_size):
        guesses = model(inputs.to(device)).argmax(dim=-1).cpu().flatten()
        labels = targets.flatten()
        right += torch.bincount(labels[guesses == labels], minlength=classes)
        total += torch.bincount(labels, minlength=classes)
    per_class = [
        r / t if t else None
        for r, t in zip(right.tolist(), total.tolist(), strict=True)
    ]
    return {
        "overall": int(right.sum()) / int(total.sum()),
        "per_class": [] if of_tokens else per_class,
        "samples": int(total.sum()),
    }
