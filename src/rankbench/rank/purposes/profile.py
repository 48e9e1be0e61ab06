"""A profile: a separate, untimed launch with a few steps under torch.profiler."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from rankbench.rank.purposes.duty import Duty
from rankbench.rank.purposes.setup import (
    join_others,
    load_material,
    make_batches,
    set_up_strategy,
)
from rankbench.rank.purposes.trace import END, STEP, find_spans
from rankbench.rank.training.loop import move
from rankbench.rank.training.recipe import memory_format_of
from rankbench.rank.world.devices import leave_world, wait_for_all
from rankbench.rank.world.lifeline import THE_END, TRAINING
from rankbench.record import write_json

# Enough to show complete steps; more would make a trace too large for a browser.
STEPS = 3
TOP = 30


def run(duty: Duty) -> None:
    """Write a trace and a list of the longest operators.

    Rank N writes its trace to `traceN.json.gz` in the folder of the launch, in the
    format of Chrome's trace viewer.
    """
    cell = duty.cell
    runtime, world = join_others(duty, precision=cell.precision)
    material = load_material(cell, duty.data_dir)
    strategy = set_up_strategy(
        cell,
        world,
        material.build_model().to(world.device),
        replica_ranks=duty.shape.replica_ranks,
    )
    batches = iter(make_batches(duty, cell, material, duty.shape.rank_batch))

    def step() -> None:
        batch = next(batches)
        mark("load")
        batch = move(
            batch,
            world.device,
            non_blocking=cell.non_blocking,
            memory_format=memory_format_of(cell),
        )
        mark("transfer")
        strategy.step(batch, mark)

    duty.progress.enter(TRAINING)
    for _ in range(max(2, min(cell.warmup, 5))):
        step()
    wait_for_all(runtime, world.devices)
    activities = [ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=False) as profiler:
        for number in range(STEPS):
            with record_function(f"{STEP}{number}"):
                step()
        wait_for_all(runtime, world.devices)
    plain = duty.work / f"trace{duty.place.rank}.json"
    profiler.export_chrome_trace(str(plain))
    trace = json.loads(plain.read_text())
    spans = find_spans(trace["traceEvents"])
    trace["traceEvents"] += [_as_event(span, duty.place.rank) for span in spans]
    target = duty.work.parent / f"trace{duty.place.rank}.json.gz"
    with gzip.open(target, "wt", encoding="utf-8") as file:
        json.dump(trace, file)
    report = {
        "rank": duty.place.rank,
        "steps": STEPS,
        "operators": top_operators(profiler),
        "spans": spans,
    }
    write_json(duty.work / f"rank{duty.place.rank}.json", {"profile": report})
    duty.progress.enter(THE_END)
    leave_world(runtime)


def mark(phase: str) -> None:
    """Mark the end of a phase in the trace."""
    with record_function(f"{END}{phase}"):
        pass


def top_operators(profiler: profile) -> list[dict[str, Any]]:
    """The operators with the longest self time, longest first.

    Returns:
        For each: name, calls, cpu_ms and device_ms. Times are sums over all steps,
        without the operators that this one calls.
    """
    found = [
        {
            "name": event.key,
            "calls": event.count,
            "cpu_ms": event.self_cpu_time_total / 1e3,
            "device_ms": event.self_device_time_total / 1e3,
        }
        for event in profiler.key_averages()
        if not event.key.startswith((END, STEP))
    ]
    return sorted(found, key=lambda o: -(o["cpu_ms"] + o["device_ms"]))[:TOP]


def _as_event(span: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """A span as a trace event; the viewer shows each kind of span in its own row."""
    return {
        "ph": "X",
        "cat": "rankbench",
        "name": span["name"],
        "pid": f"rank {rank}",
        "tid": span["kind"],
        "ts": span["start_ms"] * 1e3,
        "dur": span["ms"] * 1e3,
    }
