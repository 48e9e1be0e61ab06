"""Writes a rank's report for the record: facts as JSON, steps as plain arrays."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankbench.cell import Cell
from rankbench.environ import Place, step_id
from rankbench.rank.facts import host as facts
from rankbench.rank.facts.host import identify_gpu
from rankbench.rank.strategies.base import World
from rankbench.rank.training.loop import Measured
from rankbench.record import write_json


def write_report(
    work: Path,
    cell: Cell,
    place: Place,
    world: World,
    measured: Measured,
    *,
    seconds: dict[str, float],
    memory: dict[str, Any],
    accuracy: dict[str, Any] | None,
    phases: list[str],
    steps_per_epoch: int,
    samples_seen: int,
    details: dict[str, Any],
    collectives: list[dict[str, Any]] | None,
    model: dict[str, Any] | None,
) -> None:
    """Write `rankN.npz` and `rankN.json` into the launch's work folder.

    Args:
        seconds: stage of this rank -> duration in seconds.
        memory: peak memory of this rank, see `usage.read_peaks`.
        samples_seen: number of samples of this rank, those of the warm-up as well.
        accuracy: accuracy of the whole model; None on ranks that did not evaluate it.
        details: see `Strategy.details`.
        collectives: see `collectives.sweep`; None if no sweep was requested.
        model: size of the model, see `models.describe_model`; None except on
            rank 0.
    """
    np.savez(
        work / f"rank{place.rank}.npz",
        seconds=measured.seconds,
        warmup=measured.warmup,
        host_start=measured.host_start,
        loss=measured.loss,
    )
    rank = {
        "rank": place.rank,
        "local_rank": place.local_rank,
        "node": place.node,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "device": str(world.device),
        "gpus": [
            identify_gpu(one.index) for one in world.devices if one.type == "cuda"
        ],
        # The CPUs that this rank was bound to.
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "window_s": measured.window_s,
        "samples": measured.samples,
        "samples_seen": samples_seen,
        "memory": memory,
        "details": details,
        # As a fraction of one core: 2.0 means that two cores were always busy.
        "cpu_utilisation": measured.cpu.own / measured.window_s,
        "loader_utilisation": measured.cpu.loaders / measured.window_s,
        "energy": measured.energy,
        "epochs_s": epoch_seconds(measured.seconds, steps_per_epoch),
    }
    report = {
        "rank": rank,
        "phases": phases,
        "steps": len(measured.seconds),
        "steps_per_epoch": steps_per_epoch,
        "warmup": cell.warmup,
        "loss": loss_ends(measured, cell.warmup) if measured.knows_loss else None,
        "accuracy": accuracy,
        "model": model,
        "host": facts.describe_host(),
        "software": facts.describe_software(),
        "transport": describe_transport(world),
        "collectives": collectives,
        "step_id": step_id(),
    }
    write_json(work / f"rank{place.rank}.json", report)


def epoch_seconds(seconds: np.ndarray, steps_per_epoch: int) -> list[float]:
    """Duration of each complete epoch within the timed window, in seconds."""
    steps = seconds.sum(axis=1)
    whole = len(steps) // steps_per_epoch
    epochs = steps[: whole * steps_per_epoch].reshape(whole, steps_per_epoch)
    return [float(value) for value in epochs.sum(axis=1)]


def loss_ends(measured: Measured, warmup: int) -> dict[str, float | None]:
    """Loss of the first and the last timed step; None for a loss that is not finite."""
    window = measured.loss[warmup:]
    ends = {"first": float(window[0]), "last": float(window[-1])}
    return {end: loss if math.isfinite(loss) else None for end, loss in ends.items()}


def describe_transport(world: World) -> dict[str, Any] | None:
    """The backend and the variables that configure it; None without a backend."""
    if world.backend == "none":
        return None
    prefixes = ("GLOO_", "NCCL_", "TP_", "UCX_", "FI_", "OMPI_MCA_", "CCL_", "HOROVOD_")
    asked = {k: v for k, v in os.environ.items() if k.startswith(prefixes)}
    return {"backend": world.backend, "asked": dict(sorted(asked.items()))}
