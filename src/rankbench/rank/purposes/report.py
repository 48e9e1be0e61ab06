"""Writes a rank's report for the record: facts as JSON, steps as plain arrays."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rankbench.environ import step_id
from rankbench.rank.facts import host as facts
from rankbench.rank.facts.host import identify_gpu
from rankbench.rank.purposes import Duty
from rankbench.rank.training.loop import Measurement

# With fewer steps, none can be told to stand out.
FEWEST_STEPS = 20

# Beginnings of the variables that configure a backend.
_TRANSPORTS = (
    *("GLOO_", "NCCL_", "TP_", "UCX_", "FI_", "OMPI_MCA_", "CCL_", "HOROVOD_"),
)


def describe_rank(
    duty: Duty,
    devices: Sequence[torch.device],
    measured: Measurement,
    *,
    seconds: dict[str, float],
    memory: dict[str, Any],
    phases: list[str],
    steps_per_epoch: int,
    samples_seen: int,
    model: dict[str, Any] | None,
    details: dict[str, Any] | None = None,
    marks: Sequence[str] = (),
) -> dict[str, Any]:
    """Write `rankN.npz` into the launch's work folder; return the report `rankN.json`.

    Args:
        devices: of this rank, the main one first.
        seconds: stage of this rank -> duration in seconds.
        memory: peak memory of this rank in the timed window, see `usage.read_peaks`.
        samples_seen: number of samples of this rank, those of the warm-up as well.
        details: see `Strategy.details`.
        marks: of this rank, which its row gets.
        model: size of the model, see `models.describe_model`; None except on
            rank 0.
    """
    place, warmup = duty.place, duty.spec.cell.warmup
    np.savez(
        duty.spec.work / f"rank{place.rank}.npz",
        seconds=measured.seconds,
        warmup=measured.warmup,
        host_start=measured.host_start,
        loss=measured.loss,
    )
    steps = measured.seconds.sum(axis=1)
    # Of few steps, each is a large part of the window; a short one ends within a blink.
    has_room = len(steps) >= FEWEST_STEPS and measured.surroundings is not None
    longest = np.sort(steps)[-2:] if has_room else np.zeros(2)
    epochs = len(steps) // steps_per_epoch
    steps = steps[: epochs * steps_per_epoch].reshape(epochs, steps_per_epoch)
    loss = None
    if measured.knows_loss:
        ends = {"first": float(measured.loss[warmup]), "last": float(measured.loss[-1])}
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
        "device": str(devices[0]),
        "gpus": [
            identify_gpu(device.index) for device in devices if device.type == "cuda"
        ],
        # The CPUs that this rank was bound to.
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "window_s": measured.window_s,
        # What the longest step took longer than any other.
        "stall_s": float(longest[1] - longest[0]),
        "samples": measured.samples,
        "samples_seen": samples_seen,
        "memory": {**memory, "setup": measured.setup_memory},
        "details": details or {},
        # As a fraction of one core: 2.0 means that two cores were always busy.
        "cpu_utilisation": measured.cpu.own / measured.window_s,
        "loader_utilisation": measured.cpu.loaders / measured.window_s,
        # Python's collections of garbage within the window.
        "collections": measured.collected,
        "energy": measured.energy,
        # Of each complete epoch within the timed window.
        "epochs_s": [float(seconds) for seconds in steps.sum(axis=1)],
    }
    return {
        "rank": rank,
        "surroundings": measured.surroundings,
        "phases": phases,
        "steps": len(measured.seconds),
        "steps_per_epoch": steps_per_epoch,
        "warmup": warmup,
        # Of the first and the last timed step; None for a loss that is not finite.
        "loss": loss,
        # Of the whole model, on the rank that evaluates it.
        "accuracy": None,
        "model": model,
        "host": facts.describe_host(),
        "software": facts.describe_software(),
        "transport": transport,
        # See `collectives.sweep`; None if no sweep was requested.
        "collectives": None,
        "step_id": step_id(),
        "marks": list(marks),
    }
