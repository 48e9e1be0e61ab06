"""Phases and exposed communication of a trace, against a computation by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rankbench.rank.purposes.profile import find_spans, subtract

pytestmark = pytest.mark.unit

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def host(name: str, ts: float, dur: float = 1.0) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": ts, "dur": dur}


class Gpu:
    """Writes a trace as torch.profiler does with CUDA: launches and their kernels."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def run(
        self, name: str, *, launched: float, ts: float, dur: float, stream: int = 7
    ) -> None:
        args = {"correlation": len(self.events)}
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel"}
        kernel = {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur}
        self.events += [
            {**launch, "ts": launched, "dur": 2.0, "args": args},
            {**kernel, "args": {**args, "device": 0, "stream": stream}},
        ]


def trace_of(rank: int) -> list[dict[str, Any]]:
    """One step of DDP. The host marks everything within 100 us; the GPU needs 1000.

    Forward runs from 50 to 250 us. Backward runs from 250 to 750. The first bucket is
    reduced from 400 to 600, all of it below backward. The second one is reduced from
    700 to 900 (rank 1: 950): 50 us of it below backward. The optimizer runs from then
    on, for 100 us.
    """
    gpu = Gpu()
    late = 50.0 * rank
    gpu.run("forward_kernel", launched=10, ts=50, dur=200)
    gpu.run("backward_kernel", launched=30, ts=250, dur=300)
    gpu.run("backward_kernel", launched=35, ts=550, dur=200)
    gpu.run(ALL_REDUCE, launched=40, ts=400, dur=200, stream=20)
    gpu.run(ALL_REDUCE, launched=45, ts=700, dur=200 + late, stream=20)
    gpu.run("adam_kernel", launched=60, ts=900 + late, dur=100)
    return [
        host("step 0", 0, 100),
        host("end of load", 5),
        host("end of forward", 20),
        host("end of backward", 50),
        host("end of update", 80),
        # The same collective operation as its host and its stream show it.
        host("nccl:all_reduce", 40, 3),
        {**host("nccl:all_reduce", 400, 200), "cat": "gpu_user_annotation"},
        {**host("end of backward", 990), "cat": "gpu_user_annotation"},
        *gpu.events,
    ]


def total(spans: list[dict[str, Any]], kind: str) -> float:
    return sum(span["ms"] for span in spans if span["kind"] == kind)


@pytest.mark.parametrize(("rank", "exposed"), [(0, 0.15), (1, 0.2)])
def test_phases_and_exposed_communication_of_a_gpu(rank, exposed):
    """The host is done after 0.1 ms, and the GPU works until 1 ms."""
    spans = find_spans(trace_of(rank))
    late = 0.05 * rank
    phases = {s["name"]: s["ms"] for s in spans if s["kind"] == "phase"}
    # The host loads for 5 us, and the stream is idle until the first kernel.
    assert phases == pytest.approx(
        {"load": 0.005, "forward": 0.245, "backward": 0.5, "update": 0.25 + late},
        rel=0.01,
    )
    end = max(s["start_ms"] + s["ms"] for s in spans)
    assert end == pytest.approx(1.0 + late, rel=0.01)
    sent = [span for span in spans if span["kind"] == "communication"]
    # Each operation counts once, by its kernel.
    assert [(s["name"], s["start_ms"]) for s in sent] == [
        (ALL_REDUCE, pytest.approx(0.4)),
        (ALL_REDUCE, pytest.approx(0.7)),
    ]
    assert total(spans, "communication") == pytest.approx(0.4 + late, rel=0.01)
    # What no other kernel covers.
    assert total(spans, "exposed") == pytest.approx(exposed, rel=0.01)


def test_a_second_step_begins_when_the_first_one_ends_on_the_gpu():
    first = trace_of(0)
    gpu = Gpu()
    gpu.events = [dict(event) for event in first if event["cat"] != "user_annotation"]
    gpu.run("forward_kernel", launched=110, ts=1000, dur=300)
    second = [host("step 1", 101, 50), host("end of forward", 120)]
    marks = [event for event in first if event["cat"] == "user_annotation"]
    spans = find_spans([*marks, *second, *gpu.events])
    last = [span for span in spans if span["kind"] == "phase"][-1]
    assert (last["name"], last["start_ms"]) == ("forward", pytest.approx(1.0))
    assert last["ms"] == pytest.approx(0.3)


def test_without_a_gpu_the_clock_is_that_of_the_host():
    marks = [host("end of forward", 1030), host("end of backward", 1080)]
    events = [host("step 0", 1000, 100), *marks, host("gloo:all_reduce", 1060, 30)]
    spans = find_spans(events)
    assert [(s["kind"], s["name"], s["start_ms"], s["ms"]) for s in spans] == [
        ("phase", "forward", 0.0, 0.03),
        ("phase", "backward", 0.03, 0.05),
        ("communication", "gloo:all_reduce", 0.06, 0.03),
    ]
    assert find_spans([host("aten::mm", 5)]) == []


def test_subtract():
    for covers, left in (
        ([], [(0, 10), (20, 30)]),
        ([(5, 25)], [(0, 5), (25, 30)]),
        ([(-5, 3), (2, 4), (22, 23)], [(4, 10), (20, 22), (23, 30)]),
        ([(0, 30)], []),
    ):
        assert subtract([(0, 6), (5, 10), (20, 30)], covers) == left
