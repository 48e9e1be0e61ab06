"""Uses the first eight minutes on a GPU well, and writes down what it finds.

    python tests/gpu/campaign.py one --out DIR              on one GPU
    python tests/gpu/campaign.py one --out DIR --dry-run    the same way on CPUs, tiny

It goes from part to part (see PARTS). Each part is a process with a budget of seconds.
Whatever a part finds is written at once into DIR/PART.json, and DIR/summary.json is
written anew after each part. It exits with 1 if something failed. It needs torch and
the packages in wheels.txt, no network and no installation of rankbench.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = ("src", "tests", "tests/gpu", "tests/contract", "benchmarks")
sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]

Found = dict[str, Any]


class Part:
    """What a part has found, and how much time it has left."""

    def __init__(self, path: Path, seconds: float, *, dry: bool) -> None:
        self.dry = dry
        self.device = "cpu" if dry else "cuda"
        self.backend = "gloo" if dry else "nccl"
        self._path = path
        self._deadline = time.monotonic() + seconds
        self.found: Found = {"failed": [], "left_out": []}
        self.write()

    def write(self) -> None:
        self._path.write_text(json.dumps(self.found, indent=1))

    def note(self, name: str, value: Any) -> None:
        self.found[name] = value
        self.write()

    def fail(self, text: str) -> None:
        self.found["failed"].append(text)
        self.write()

    @contextlib.contextmanager
    def trying(self, name: str) -> Iterator[None]:
        """What fails within is noted, and what comes after is tried as well."""
        try:
            yield
        except Exception as error:
            said = str(error).strip().splitlines() or [""]
            print(f"{name}:", *said, sep="\n", flush=True)  # all ranks
            self.fail(f"{name}: {type(error).__name__}: {' | '.join(said[-3:])[:500]}")

    def has_time(self, name: str, seconds: float) -> bool:
        """Whether so much time is left; otherwise this is noted as left out."""
        if self.dry or self._deadline - time.monotonic() > seconds:
            return True
        self.found["left_out"].append(f"{name}: no time")
        self.write()
        return False


# --- what the GPU can do --------------------------------------------------------------


def ceilings(part: Part) -> None:
    """Rates of matrix products and copies, and which kernels attention has."""
    import torch

    side, megabytes = (64, 1) if part.dry else (8192, 1024)

    def rate(work: Callable[[], Any], amount: float) -> float:
        """How much of this amount in a second; the median of five times."""
        seconds = [_seconds(work) for _ in range(7)][2:]
        return amount / statistics.median(seconds)

    for name, dtype in (("bf16", torch.bfloat16), ("tf32", torch.float32)):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        matrix = torch.randn(side, side, device=part.device, dtype=dtype)
        tflops = rate(partial(torch.mm, matrix, matrix), 2 * side**3) / 1e12
        part.note(f"matmul_{name}_tflop_s", tflops)
    torch.backends.cuda.matmul.allow_tf32 = False
    held = torch.empty(megabytes * 2**20, dtype=torch.uint8, device=part.device)
    host = torch.empty_like(held, device="cpu", pin_memory=not part.dry)
    part.note("copy_device_gb_s", rate(held.clone, 2 * held.nbytes) / 1e9)
    copy = partial(held.copy_, host)
    part.note("copy_to_device_gb_s", rate(copy, held.nbytes) / 1e9)
    del held, host, copy
    for width in (64, 128):
        for dtype in (torch.bfloat16, torch.float32):
            for shared in (False, True):
                of = f"d{width} {str(dtype)[6:]}{' gqa' if shared else ''}"
                with part.trying(f"attention {of}"):
                    part.note(f"attention {of}", _attention(part, width, dtype, shared))


def _attention(part: Part, width: int, dtype: Any, shared: bool) -> Found:
    """The kernel that torch chooses; time and memory of each that it has."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    heads, tokens = (4, 32) if part.dry else (32, 4096)
    few = heads // 4 if shared else heads
    query, key, value = (
        torch.randn(
            (1, n, tokens, width), device=part.device, dtype=dtype, requires_grad=True
        )
        for n in (heads, few, few)
    )

    def attend() -> None:
        scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=shared
        ).sum().backward()

    with torch.profiler.profile() as profiler:
        attend()
    chosen = {e.key for e in profiler.key_averages() if "_scaled_dot_product" in e.key}
    found: Found = {"chosen": sorted(name.removeprefix("aten::") for name in chosen)}
    kinds = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    for kind in kinds:
        try:
            with sdpa_kernel(getattr(SDPBackend, kind)):
                attend()
                _restart_peak(part)
                milliseconds = 1e3 * min(_seconds(attend) for _ in range(3))
        except RuntimeError:
            found[kind.lower()] = None
            continue
        held = 0 if part.dry else torch.cuda.memory_allocated()
        mib = (_restart_peak(part) - held) / 2**20
        found[kind.lower()] = {"ms": milliseconds, "mib": mib}
    return found


def _restart_peak(part: Part) -> int:
    """The peak of allocated bytes since the last call."""
    import torch

    if part.dry:
        return 0
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak


def _seconds(work: Callable[[], Any]) -> float:
    """How long the work takes, and the device until it has finished it."""
    _wait()
    begun = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - begun


def _wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


# --- language models in a world of one rank -------------------------------------------

# 8b: the width of Llama 3.1 8B.
MODELS: dict[str, Found] = {"1b": {"preset": "1b"}, "8b": {"preset": "8b", "layers": 4}}
LLAMA = {"layers": 2, "width": 256, "heads": 8, "kv_heads": 4}


@dataclass(frozen=True)
class Row:
    """A cell of `cells`."""

    name: str
    strategy: str = "single"
    model: str = "1b"
    context: int = 8192
    precision: str = "bf16"
    checkpointing: str = "none"
    compile: bool = False

    def lines(self, part: Part) -> list[str]:
        """The lines of its experiment, without the strategy."""
        model, context = MODELS[self.model], self.context
        if part.dry:
            model, context = LLAMA, 32
        return [
            f"device: {part.device}",
            *([f"backend: {part.backend}"] if self.strategy != "single" else []),
            f"model: {{llama: {json.dumps(model)}}}",
            f"data: tokens\ncontext: {context}\nbatch_size: 1",
            f"precision: {self.precision}\ncheckpointing: {self.checkpointing}",
            f"compile: {json.dumps(self.compile)}",
            f"optimizer: adamw\nfused_optimizer: {json.dumps(not part.dry)}",
        ]


MESH = "mesh"
ROWS = (
    Row("single, compiled", compile=True),
    Row("single"),
    Row("ddp, compiled", "ddp", compile=True),
    Row("fsdp", "fsdp"),
    Row("fsdp, compiled", "fsdp", compile=True),
    Row("fsdp, full, compiled", "fsdp", checkpointing="full", compile=True),
    Row("fsdp, selective, compiled", "fsdp", checkpointing="selective", compile=True),
    Row("mesh", MESH),
    Row("8b single, compiled", model="8b", compile=True),
    Row("8b fsdp, compiled", "fsdp", "8b", compile=True),
    Row("8b fsdp, fp8, compiled", "fsdp", "8b", precision="fp8", compile=True),
    Row(
        *("8b fsdp, fp8 per row, compiled", "fsdp", "8b"),
        precision="fp8_rowwise",
        compile=True,
    ),
    Row("8b fsdp, full", "fsdp", "8b", checkpointing="full"),
    # Without flash attention: scores are tokens x tokens.
    Row("8b single, fp32", model="8b", context=4096, precision="fp32"),
)


def estimates(part: Part) -> None:
    """What `rankbench run -n --memory` says of the same cells; it uses no GPU."""
    from harness import make_cell

    from rankbench.matrix.candidate import shape_of
    from rankbench.matrix.catalog import load_catalog
    from rankbench.rank.purposes.estimate import estimate_all

    facts = load_catalog().strategies
    asked = []
    for row in ROWS:
        cell = make_cell(row.strategy, 1, row.lines(part))
        shape = shape_of(cell, facts[cell.strategy])
        asked.append(
            {"cell": cell.to_dict(), "shape": shape.to_dict(), "own": {}, "ranks": [0]}
        )
    for row, found in zip(ROWS, estimate_all(asked), strict=True):
        if "unknown" in found:
            part.fail(f"{row.name}: {found['unknown']}")
        else:
            (rank,) = found["ranks"]
            part.note(row.name, {"gib": rank["step"] / 2**30, "parts": rank["parts"]})


def cells(part: Part) -> None:
    """Rates, peaks and waits of a dozen cells, in one process."""
    import torch
    from torch import distributed

    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        distributed.init_process_group(
            part.backend, init_method=store, rank=0, world_size=1
        )
        for row in ROWS:
            if row.precision[:3] == "fp8" and not importlib.util.find_spec("torchao"):
                part.found["left_out"].append(f"{row.name}: torchao is not installed")
            elif part.has_time(row.name, 30 if row.compile else 12):
                with part.trying(row.name):
                    part.note(row.name, _train(part, row))
                gc.collect()
                torch.cuda.empty_cache()
        distributed.destroy_process_group()


def _train(part: Part, row: Row) -> Found:
    """Three steps, then seven timed ones, then one that must not wait."""
    import torch
    from harness import make_cell
    from torch._dynamo.utils import counters

    from rankbench.decoder import describe_decoder
    from rankbench.rank.models import complete
    from rankbench.rank.purposes.setup import (
        draw_model,
        set_up_strategy,
        sizes_of_data,
    )
    from rankbench.rank.strategies.base import World
    from rankbench.rank.training.recipe import set_arithmetic
    from rankbench.results.numbers.hardware import find_peak

    cell = make_cell(row.strategy, 1, row.lines(part))
    sizes = sizes_of_data(cell)
    device = torch.device(part.device, *(() if part.dry else (0,)))
    world = World(0, 1, 0, device, (device,), cell.backend, cell.batch_size)
    set_arithmetic(cell.precision, cudnn_benchmark=False)
    torch._dynamo.reset()
    counters.clear()
    blueprint = draw_model(cell, sizes)

    def load(module: Any, place: Any) -> None:
        """Memory, and any values: to draw the right ones takes long."""
        blueprint.allocate(module, place)
        with torch.no_grad():
            for weight in module.parameters():
                own = weight.to_local() if hasattr(weight, "to_local") else weight
                own.fill_(1) if weight.dim() == 1 else own.normal_(std=0.02)

    strategy = set_up_strategy(
        cell,
        world,
        blueprint,
        replica_ranks=1,
        load=load,
        compiler="aot_eager" if part.dry else "inductor",
    )
    ids = torch.randint(0, 512, (cell.batch_size, sizes["context"] + 1), device=device)
    batch = (ids[:, :-1].contiguous(), ids[:, 1:].contiguous())

    def step() -> Any:
        return strategy.step(batch, lambda phase: None)

    losses = [step() for _ in range(3)]
    _wait()
    _restart_peak(part)
    seconds = _seconds(lambda: losses.extend(step() for _ in range(7))) / 7
    peak = _restart_peak(part)
    decoder = describe_decoder(complete(cell.model, cell.model_options), **sizes)
    tflops = decoder.flops * cell.batch_size / seconds / 1e12
    gpu = None if part.dry else torch.cuda.get_device_name(0)
    most = find_peak(gpu, cell.precision) if gpu else None
    found: Found = {
        "tokens_s": cell.batch_size * sizes["context"] / seconds,
        "tflop_s": tflops,
        "mfu_pct": 100 * tflops / most if most else None,
        "peak_gib": peak / 2**30,
        "reserved_gib": None if part.dry else torch.cuda.max_memory_reserved() / 2**30,
        "graphs": counters["stats"].get("unique_graphs", 0),
        "breaks": sum(counters["graph_break"].values()),
        "loss": [float(losses[0]), float(losses[-1])],
    }
    # The mode knows CUDA only.
    if not part.dry:
        torch.cuda.set_sync_debug_mode("error")
    try:
        step()
        found["waits"] = None
    except RuntimeError as error:
        found["waits"] = str(error).splitlines()[0]
    finally:
        if not part.dry:
            torch.cuda.set_sync_debug_mode("default")
    if found["waits"]:
        part.fail(f"{row.name}: it says that it never waits, but: {found['waits']}")
    if found["breaks"]:
        part.fail(f"{row.name}: {found['breaks']} breaks of graphs")
    return found


# --- gates of ranks that share the GPU ------------------------------------------------

# Strategy, its options, ranks.
GATES: tuple[tuple[str, Mapping[str, Any], int], ...] = (
    ("fsdp", {}, 2),
    ("mesh", {"tensor": 2, "shard": 2}, 4),
    ("mesh", {"pipe": 2, "tensor": 2, "microbatches": 2}, 4),
    ("mesh", {"pipe": 2, "shard": 2, "microbatches": 2}, 4),
    ("mesh", {"tensor": 2}, 2),
    ("mesh", {"context": 2}, 2),
    ("mesh", {"expert": 2}, 2),
    ("pipeline", {"schedule": "1f1b"}, 2),
    ("pipeline", {"schedule": "zbv"}, 2),
    ("local_sgd", {"period": 2}, 2),
    ("ddp", {}, 2),
    ("zero1", {}, 2),
    ("deepspeed", {}, 2),
    ("horovod", {}, 2),
)


def gates(part: Part) -> None:
    """Gates of a small llama in bf16: exact in float64, then the trend in bf16."""
    import ranks
    import torch
    from gate_ranks import run_gate

    from rankbench.matrix.catalog import load_catalog

    ranks.PATIENCE = 60.0
    variables = {}
    if not part.dry and torch.cuda.nccl.version() >= (2, 30):
        variables = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
    elif not part.dry:
        # NCCL takes the ranks for ones of different hosts.
        variables = {"NCCL_HOSTID": "rank{rank}", "NCCL_SOCKET_IFNAME": "lo"}
    facts = load_catalog().strategies

    def check(gate: tuple[str, Mapping[str, Any], int]) -> None:
        strategy, options, count = gate
        name = " ".join([strategy, *(f"{k}={v}" for k, v in options.items())])
        missing = [
            package
            for package in facts[strategy]["needs"]["packages"]
            if importlib.util.find_spec(package) is None
        ]
        if missing:
            part.found["left_out"].append(f"{name}: {missing[0]} is not installed")
        elif part.has_time(name, 20):
            with part.trying(name), tempfile.TemporaryDirectory() as folder:
                begun = time.monotonic()
                experts = {"experts": 4} if "expert" in options else {}
                needs = facts[strategy]["needs"]
                shared = part.backend in needs["backends"]
                gate_of = partial(
                    run_gate,
                    variables=variables,
                    strategy=strategy,
                    options=dict(options),
                    topology=f"1x{count}",
                    backend=part.backend if shared else needs["own_backend"],
                    device=part.device,
                    oversubscribe=True,
                    model="llama",
                    model_options={**LLAMA, **experts},
                    data="tokens",
                    batch_size=8,
                    precision="bf16",
                    optimizer="adamw",
                    learning_rate=0.001,
                )
                try:
                    status, reason, numbers = gate_of(Path(folder) / "gate")
                except AssertionError as error:
                    # Ranks that lose one another once say nothing about a strategy.
                    print(f"{name}, tried again:\n{error}", flush=True)
                    status, reason, numbers = gate_of(Path(folder) / "again")
                seconds = time.monotonic() - begun
                part.note(name, {"status": status, "seconds": seconds, **numbers})
                if status != "ok":
                    part.fail(f"{name}: {status}: {reason}")

    with ThreadPoolExecutor(2) as lanes:
        list(lanes.map(check, GATES))


# --- the harness, and whole launches --------------------------------------------------


def loops(part: Part) -> None:
    """The step of the harness over that of a bare loop, in one process."""
    import harness

    from rankbench.matrix.candidate import shape_of
    from rankbench.matrix.catalog import load_catalog

    harness.BLOCK = 2 if part.dry else 6
    # As the first row of `cells`, whose kernels are compiled.
    row = Row("llama 1b", compile=not part.dry)
    cell = harness.make_cell(row.strategy, 1, row.lines(part))
    shape = shape_of(cell, load_catalog().strategies[cell.strategy])
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    os.environ |= dict(zip(names, "00110", strict=True))
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "cell.json"
        spec.write_text(json.dumps([cell.to_dict(), shape.to_dict()]))
        harness.be_rank(spec, 2 if part.dry else 4, Path(folder), Path(folder))
        blocks = json.loads((Path(folder) / "rank0.json").read_text())
    ms = {
        kind: [1e3 * statistics.median(block) for block in found]
        for kind, found in blocks.items()
    }
    ratios = [a / b for a, b in zip(ms["harness"], ms["bare"], strict=True)]
    part.note("harness_over_bare", {"ratio": statistics.median(ratios), **ms})


# The second cell is too large: numbers for all words of all tokens fit no memory.
LAUNCHES = """
name: gpu-launches
data: tokens
context: {context}
optimizer: adamw
precision: bf16
launches: 1
gate: false
evaluate: false
profile: true
steps: {steps}
warmup: 5
time_limit: 60
blocks:
  - {{strategy: ddp, launcher: spawn, backend: {net}, model: {small}, batch_size: 8}}
  - {{strategy: single, model: {large}, batch_size: {batch}}}
"""


def launches(part: Part) -> None:
    """A planted delay; then whole launches: phases over a profile, and `oom`."""
    with part.trying("planted delay"):
        delay, longer, ahead = _plant_delay(part)
        part.note("planted_delay_ms", {"planted": delay, "communication": longer})
        part.note("host_ahead", ahead)
        # A CPU that others use sleeps as long as it likes.
        if not part.dry and abs(longer - delay) > 0.1 * delay:
            part.fail(f"planted delay: {delay:.3g} ms, found {longer:.3g} ms")
    context, words, more, batch, steps = 2048, 32000, 128256, 512, 20
    if part.dry:
        context, words, more, batch, steps = 32, 512, 10**13, 1, 4
    text = LAUNCHES.format(
        net=part.backend,
        context=context,
        steps=steps,
        small=json.dumps({"llama": {**LLAMA, "vocabulary": words}}),
        large=json.dumps({"llama": {**LLAMA, "vocabulary": more}}),
        batch=batch,
    )
    with tempfile.TemporaryDirectory() as folder:
        layout, states = measure(Path(folder), text, device=part.device)
        for cell, state in states.items():
            found = {"status": state.status, "reason": state.reason}
            if state.status == "ok":
                found |= _compare_phases(layout, cell)
            part.note(cell, found)
            if state.status != ("ok" if cell.startswith("ddp") else "oom"):
                part.fail(f"{cell}: {state.status}: {state.reason}")


def measure(root: Path, text: str, *, device: str) -> tuple[Any, dict[str, Any]]:
    """The results of an experiment and the state of each cell, without Snakemake."""
    from rankbench.launch.job.measure import run_job
    from rankbench.project.run import open_run
    from rankbench.project.start import begin
    from rankbench.project.status import find_state

    (root / "experiment.yaml").write_text(text)
    (root / "profile").mkdir()
    lines = f"results_dir: {root}/results\ndata_dir: {root}/data\ndevice: {device}\n"
    (root / "profile/site.yaml").write_text(lines)
    run = open_run(
        {"experiment": root / "experiment.yaml"}, profile=root / "profile", write=False
    )
    begin(run)
    for cell in run.feasible:
        run_job(run.layout, cell.id, project=root, say=lambda *_: None)
    cells = run.plan.cells.values()
    return run.layout, {c.id: find_state(run.plan, run.layout, c) for c in cells}


def _plant_delay(part: Part) -> tuple[float, float, bool]:
    """A hook of DDP that takes so many ms, and what phases say of it.

    Returns:
        Milliseconds of the delay, by how much communication is longer, and whether the
        host was far ahead of the device.
    """
    import torch
    from torch import distributed, nn

    from rankbench.rank.strategies.base import World
    from rankbench.rank.strategies.ddp import Ddp
    from rankbench.rank.training.loop import Clock

    device = torch.device(part.device, *(() if part.dry else (0,)))

    def sleep() -> None:
        time.sleep(0.02) if part.dry else torch.cuda._sleep(100_000_000)

    def busy(state: Any, bucket: Any) -> Any:
        sleep()
        work = distributed.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    # DDP checks annotations of a hook, which must not be text.
    busy.__annotations__ = {}
    sleep()
    delay = 1e3 * _seconds(sleep)
    medians, ahead = [], False
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        distributed.init_process_group(
            part.backend, init_method=store, rank=0, world_size=1
        )
        for hook in (None, busy):
            world = World(0, 1, 0, device, (device,), part.backend, 64)
            options = {name: rule["default"] for name, rule in Ddp.options.items()}
            ddp = Ddp(world, lambda model, x: model(x[0]).square().mean(), **options)
            model = nn.Linear(512, 512).to(device)
            ddp.setup(model, lambda p: torch.optim.SGD(p, lr=0.01))
            if hook:
                ddp.model.register_comm_hook(None, hook)
            clock = Clock((device,), ["load", "transfer", *Ddp.phases], 10)
            batch = (torch.randn(64, 512, device=device), torch.zeros(64))
            begun = time.perf_counter()
            for step in range(10):
                clock.begin(step)
                clock.mark("load")
                clock.mark("transfer")
                ddp.step(batch, clock.mark)
            host = time.perf_counter() - begun
            clock.finish()
            seconds = clock.seconds()
            # On a CPU the hook runs within backward.
            first = 2 + Ddp.phases.index("backward" if part.dry else "communication")
            last = 2 + Ddp.phases.index("communication")
            found = seconds[:, first : last + 1].sum(axis=1)
            medians.append(1e3 * statistics.median(found.tolist()))
            ahead = bool(host < seconds.sum() / 2)
        distributed.destroy_process_group()
    return delay, medians[1] - medians[0], ahead


def _compare_phases(layout: Any, cell: str) -> Found:
    """Mean ms of each phase of a step as measured, and as a profile shows them."""
    import numpy as np

    from rankbench.record import read_json

    place = layout.launch(cell, 1, 1)
    record = read_json(place / "record.json")
    with np.load(place / "steps.npz", allow_pickle=False) as steps:
        means = 1e3 * steps["rank0/seconds"].mean(axis=0)
    profiled: dict[str, float] = {}
    for path in layout.records.glob(f"{cell}/1/profile/*/record.json"):
        rank = read_json(path)["profile"][0]
        for span in rank["spans"]:
            name = span["name"] if span["kind"] == "phase" else span["kind"]
            profiled[name] = profiled.get(name, 0.0) + span["ms"] / rank["steps"]
    rank = record["ranks"][0]
    return {
        "phases_ms": dict(zip(record["phases"], means.tolist(), strict=True)),
        "profile_ms": profiled,
        "memory": rank["memory"],
        "energy": rank["energy"],
        "transport": record["transport"],
    }


# --- all together ---------------------------------------------------------------------

# Name -> budget in seconds, and what it does.
PARTS: dict[str, tuple[float, Callable[[Part], None]]] = {
    "ceilings": (30, ceilings),
    "cells": (150, cells),
    "gates": (170, gates),
    "loops": (55, loops),
    "launches": (75, launches),
}
# It runs beside the others.
BESIDE = "estimates"


def campaign(out: Path, *, dry: bool) -> int:
    """Run all parts; returns the exit status."""
    out.mkdir(parents=True, exist_ok=True)
    beside = _begin(BESIDE, out, dry=dry)
    begun = time.monotonic()
    took: dict[str, float] = {}
    try:
        for name, (budget, _) in PARTS.items():
            started = time.monotonic()
            process = _begin(name, out, dry=dry)
            status = _end(process, budget * 10 if dry else budget)
            took[name] = time.monotonic() - started
            summary = summarise(out, dry=dry)
            if status:
                said = f"ended with {status}" if status > 0 else "was cut at its budget"
                summary["failed"].append(f"{name}: {said}; see {out}/{name}.log")
            summary["seconds"] = {**took, "all": time.monotonic() - begun}
            (out / "summary.json").write_text(json.dumps(summary, indent=1))
            print(f"{name}: {took[name]:.0f} s, status {status}", flush=True)
    finally:
        _end(beside, 1)
    print(json.dumps(summary, indent=1))
    return 1 if summary["failed"] else 0


def _begin(name: str, out: Path, *, dry: bool) -> subprocess.Popen[bytes]:
    """Start a part; its output goes to a log."""
    paths = [str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    # As launches have it.
    env.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if dry or name == BESIDE:
        env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, __file__, name, "--out", str(out)]
    with (out / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            argv + ["--dry-run"] * dry,
            cwd=ROOT,
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The exit status; -1 if it was killed, with what it had started."""
    try:
        return abs(process.wait(seconds))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return -1


def summarise(out: Path, *, dry: bool) -> Found:
    """What all parts have found so far, and peaks over their estimates."""
    found = {
        path.stem: json.loads(path.read_text())
        for path in out.glob("*.json")
        if path.stem in (*PARTS, BESIDE)
    }
    summary: Found = {"dry_run": dry, "failed": [], "left_out": [], **found}
    for name, part in found.items():
        for kind in ("failed", "left_out"):
            summary[kind] += [f"{name}: {text}" for text in part.pop(kind)]
    for name, estimate in found.get(BESIDE, {}).items():
        row = found.get("cells", {}).get(name)
        if row and row["peak_gib"]:
            row["peak_over_estimate"] = row["peak_gib"] / estimate["gib"]
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", choices=["one", *PARTS, BESIDE])
    parser.add_argument("--out", type=Path, default=Path("results/gpu"))
    parser.add_argument("--dry-run", action="store_true", help="on CPUs, tiny")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    if arguments.run == "one":
        return campaign(out, dry=arguments.dry_run)
    budget, run = {**PARTS, BESIDE: (300.0, estimates)}[arguments.run]
    part = Part(out / f"{arguments.run}.json", budget, dry=arguments.dry_run)
    with part.trying(arguments.run):
        run(part)
    return 0


if __name__ == "__main__":
    sys.exit(main())
