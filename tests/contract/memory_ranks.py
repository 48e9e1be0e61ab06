"""Real ranks that note the peaks of their tensors: imported by children."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import tempfile
import warnings
from pathlib import Path

import torch
from ranks import start_ranks
from torch.profiler import ProfilerActivity, profile, record_function

from rankbench.cell import Cell, Shape
from rankbench.environ import Place
from rankbench.rank.purposes.setup import (
    draw_model,
    make_world,
    set_up_strategy,
    sizes_of_data,
)
from rankbench.rank.world import process_group

WARM_UP, LAST = "warm-up", "last step"


def measure(cell: Cell, shape: Shape) -> list[dict[str, int]]:
    """Peak of the tensors of each rank: set-up with the first step, and a later one."""
    with tempfile.TemporaryDirectory() as folder:
        start_ranks(_be_rank, (cell, shape, Path(folder)), shape.ranks)
        return [
            json.loads(Path(folder, f"rank{rank}.json").read_text())
            for rank in range(shape.ranks)
        ]


def _be_rank(rank: int, cell: Cell, shape: Shape, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    _count_in_all_threads()
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"}
    cpu, place = torch.device("cpu"), Place.of(rank, shape.ranks, shape.ranks)
    process_group.join("gloo", place, f"file://{folder}/store", cpu)
    world, sizes = make_world(cell, shape, place, (cpu,)), sizes_of_data(cell)
    ids = torch.zeros(shape.rank_batch, sizes["context"], dtype=torch.int64)
    blueprint = draw_model(cell, sizes)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced,
    ):
        strategy = set_up_strategy(
            cell, world, blueprint, replica_ranks=shape.replica_ranks
        )
        for name in ("first step", WARM_UP, LAST):
            with record_function(name):
                strategy.step((ids, ids), lambda phase: None)
    trace = folder / f"trace{rank}.json"
    traced.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    begun = {e["name"]: e["ts"] for e in events if e.get("name") in (WARM_UP, LAST)}
    held = [
        (event["ts"], event["args"]["Total Allocated"])
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == 0
    ]
    peaks = {
        "setup": max(size for time, size in held if time < begun[WARM_UP]),
        "step": max(size for time, size in held if time >= begun[LAST]),
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(peaks))
    process_group.leave()


def _count_in_all_threads() -> None:
    """Let torch's allocator count what a thread frees that is not profiled, too.

    A thread of gloo may be the last to let go of a tensor, such as that of all weights
    which DDP sends at first. Such a tensor would count as held for good.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libc10.so"))
    name = "FLAGS_caffe2_report_cpu_memory_usage"
    ctypes.c_bool.in_dll(library, name).value = True
