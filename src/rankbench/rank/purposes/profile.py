"""A profile: a separate, untimed launch with a few steps under torch.profiler."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from rankbench.launch_spec import TRAINING
from rankbench.rank.purposes.setup import finish, set_up
from rankbench.rank.world.lifeline import Duty

# Enough to show complete steps; more would make a trace too large for a browser.
STEPS = 3
TOP = 30


def run(duty: Duty) -> None:
    """Write a trace and a list of the longest operators.

    Rank N writes its trace to `traceN.json.gz` in the folder of the launch, in the
    format of Chrome's trace viewer.
    """
    course, *_ = set_up(duty)
    ranges = Ranges()
    duty.progress.enter(TRAINING)
    course.take_steps(max(2, min(course.cell.warmup, 5)), ranges)
    ranges.finish()
    course.wait()
    activities = [ProfilerActivity.CPU]
    if course.strategy.world.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=False) as profiler:
        course.take_steps(STEPS, ranges)
        ranges.finish()
        course.wait()
    plain = duty.spec.work / f"trace{duty.place.rank}.json"
    profiler.export_chrome_trace(str(plain))
    trace = json.loads(plain.read_text())
    spans = find_spans(trace["traceEvents"])
    # The viewer shows each kind of span in its own row.
    trace["traceEvents"] += [
        {
            "ph": "X",
            "cat": "rankbench",
            "name": span["name"],
            "pid": f"rank {duty.place.rank}",
            "tid": span["kind"],
            "ts": span["start_ms"] * 1e3,
            "dur": span["ms"] * 1e3,
        }
        for span in spans
    ]
    target = duty.spec.directory / f"trace{duty.place.rank}.json.gz"
    with gzip.open(target, "wt", encoding="utf-8") as file:
        json.dump(trace, file)
    report = {
        "rank": duty.place.rank,
        "steps": STEPS,
        "operators": top_operators(profiler),
        "spans": spans,
    }
    finish(duty, course.runtime, {"profile": report})


class Ranges:
    """Makes ranges in a trace: one of each step, and one where a phase ends."""

    def __init__(self) -> None:
        self._step = ExitStack()

    def begin(self, step: int) -> None:
        self.finish()
        self._step.enter_context(record_function(f"{STEP}{step}"))

    def mark(self, phase: str) -> None:
        with record_function(f"{END}{phase}"):
            pass

    def finish(self) -> None:
        """End the last step."""
        self._step.close()


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


# Names of our own ranges: a step, and the moment at which a phase ends.
END, STEP = "end of ", "step "

_HOST_COMMUNICATION = re.compile(r"(gloo|mpi|ccl):")
_DEVICE_COMMUNICATION = re.compile(r"ncclDevKernel|ncclKernel")

Event = Mapping[str, Any]
# Start and end, in microseconds.
Interval = tuple[float, float]


def find_spans(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Phases and communication of the profiled steps.

    If the trace has kernels of a GPU, all times are those of the GPU: a phase ends when
    the work ends that was started before its mark, as a CUDA event would tell. There,
    communication is exposed while its kernels run and no other kernel does.

    Args:
        events: of a trace in Chrome's format; ts and dur in microseconds.

    Returns:
        For each: kind (``phase``, ``communication`` or ``exposed``), name, start_ms
        (after the start of the first step) and ms (its duration).
    """
    timed = sorted((e for e in events if "dur" in e), key=lambda e: e["ts"])
    # Some versions of torch show our ranges on the GPU as well.
    host = [e for e in timed if not str(e.get("cat", "")).startswith("gpu_")]
    steps = [e for e in host if e["name"].startswith(STEP)]
    if not steps:
        return []
    kernels = [e for e in timed if e.get("cat") == "kernel"]
    queue = _Queue(timed, kernels) if kernels else None
    zero = queue.reaches(steps[0]["ts"]) if queue else steps[0]["ts"]

    def span(kind: str, name: str, start: float, end: float) -> dict[str, Any]:
        begun, lasted = (start - zero) / 1e3, (end - start) / 1e3
        return {"kind": kind, "name": name, "start_ms": begun, "ms": lasted}

    spans = []
    start = end = zero
    for step in steps:
        start = max(end, queue.reaches(step["ts"])) if queue else step["ts"]
        for phase, marked in _find_ends(host, step):
            end = max(start, queue.reaches(marked)) if queue else marked
            spans.append(span("phase", phase, start, end))
            start = end
    if queue is None:
        end = steps[-1]["ts"] + steps[-1]["dur"]
        sent = [e for e in host if _HOST_COMMUNICATION.match(e["name"])]
    else:
        sent = [e for e in kernels if _DEVICE_COMMUNICATION.match(e["name"])]
    sent = [e for e in sent if zero <= e["ts"] <= end]
    spans += [span("communication", e["name"], *_interval(e)) for e in sent]
    if queue:
        others = [e for e in kernels if not _DEVICE_COMMUNICATION.match(e["name"])]
        alone = subtract(map(_interval, sent), map(_interval, others))
        spans += [span("exposed", "communication", *interval) for interval in alone]
    return spans


def _find_ends(events: Sequence[Event], step: Event) -> list[tuple[str, float]]:
    """The phases of a step in their order, each with the time of its last mark."""
    ends: dict[str, float] = {}
    for event in events:
        inside = step["ts"] <= event["ts"] <= step["ts"] + step["dur"]
        if inside and event["name"].startswith(END):
            ends[event["name"].removeprefix(END)] = event["ts"]
    return sorted(ends.items(), key=lambda item: item[1])


def subtract(
    intervals: Iterable[Interval], covers: Iterable[Interval]
) -> list[Interval]:
    """The parts of the union of some intervals that no cover overlaps, in order."""
    left = _union(intervals)
    for low, high in _union(covers):
        left = [
            part
            for start, end in left
            for part in ((start, min(end, low)), (max(start, high), end))
            if part[0] < part[1]
        ]
    return left


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same moments as intervals that do not touch, in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


class _Queue:
    """The stream of a GPU on which a rank computes."""

    def __init__(self, events: Sequence[Event], kernels: Sequence[Event]) -> None:
        busy: dict[Any, float] = defaultdict(float)
        for kernel in kernels:
            if not _DEVICE_COMMUNICATION.match(kernel["name"]):
                busy[_stream(kernel)] += kernel["dur"]
        stream = max(busy, key=lambda stream: busy[stream], default=None)
        begun = {
            e["args"].get("correlation"): e["ts"]
            for e in events
            if e.get("cat") in ("cuda_runtime", "cuda_driver")
        }
        # When the host started each piece of work, and when the GPU finished it.
        self._work = [
            (begun[e["args"]["correlation"]], e["ts"] + e["dur"])
            for e in events
            if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
            and _stream(e) == stream
            and e["args"].get("correlation") in begun
        ]

    def reaches(self, moment: float) -> float:
        """When the GPU has finished what the host had started by this moment."""
        ends = (end for started, end in self._work if started <= moment)
        return float(max((moment, *ends)))


def _stream(event: Event) -> Any:
    return event["args"].get("device"), event["args"].get("stream")


def _interval(event: Event) -> Interval:
    return event["ts"], event["ts"] + event["dur"]
