"""What ranks of cells need, as the estimator of the rank's side finds it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rankbench.cell import Cell, Shape
from rankbench.matrix.feasible import TIGHT, describe_peaks, judge_memory
from rankbench.plan import PlannedCell
from rankbench.project.run import Run, read_estimates
from rankbench.record import write_json
from rankbench.results.elements.text import figures

NOT_KNOWN = """\
Estimates count tensors. They do not count libraries' own memory (CUDA context, buffers
of NCCL), fragments, and what torch.compile saves; verdicts allow 1.5 GiB for these on a
GPU, which was not measured. 'tight' is above 85 %. A stage of a pipeline is estimated
with parts of about equal arithmetic, on its first and its last rank."""

Estimate = Mapping[str, Any]

# Estimates that `fit_batch` may take to find the limit.
SEARCH = 6


def estimate_cells(run: Run, cells: Sequence[PlannedCell]) -> dict[str, Estimate]:
    """What the rank that needs most holds and sends, by cell.

    Returns:
        What `judge_memory` returns, by id.

    Raises:
        ValueError: the estimator has failed, such as without torch.
    """
    code = run.plan.code["rank"]
    known = dict(read_estimates(run.layout, code))
    asked = [cell for cell in cells if cell.hash not in known]
    answers = _ask(run, [(cell.cell, cell.shape) for cell in asked])
    known |= {cell.hash: found for cell, found in zip(asked, answers, strict=True)}
    if asked:
        run.layout.work.mkdir(parents=True, exist_ok=True)
        write_json(run.layout.estimates, {"code": code, "cells": known})
    memory = run.plan.site["device_memory_gib"]
    return {
        cell.id: judge_memory(known[cell.hash], cell.cell, cell.shape, memory)
        for cell in cells
    }


def fit_batch(run: Run, cell: PlannedCell) -> int | None:
    """The largest batch of a replica whose step `fits` a device; None if none does.

    Memory is nearly linear in the batch, so two sizes tell about where the limit is.
    Batches are whole multiples of the parts that a rank's batch is split into.

    Raises:
        ValueError: nobody says how much memory a device has, or the estimator fails.
    """
    memory = run.plan.site["device_memory_gib"]
    if memory is None:
        raise ValueError("--fit: set device_memory_gib in site.yaml: it is not known")
    memory *= TIGHT
    options = cell.cell.options
    unit: int = max(options.get(n, 1) for n in ("microbatches", "accumulation"))
    known: dict[int, float] = {}

    def need(*counts: int) -> list[float]:
        new = [count for count in counts if count not in known]
        shapes = [
            replace(
                cell.shape,
                rank_batch=count * unit,
                global_batch=count * unit * cell.shape.replicas,
            )
            for count in new
        ]
        found = _ask(run, [(cell.cell, shape) for shape in shapes])
        for count, one in zip(new, found, strict=True):
            judged = judge_memory(one, cell.cell, cell.shape, memory)
            known[count] = judged["gib"]
        return [known[count] for count in counts]

    low, high = need(2, 4)
    slope = max((high - low) / 2, 1e-9)
    count = max(1, min(2 + int((memory - low) / slope), 2**20))
    for _ in range(SEARCH):
        here, more = need(count, count + 1)
        if here <= memory < more:
            return count * unit
        if here > memory and count == 1:
            return None
        step = int((memory - here) / slope)
        count = max(1, count + (step or (1 if here <= memory else -1)))
    return max((n * unit for n, gib in known.items() if gib <= memory), default=None)


def describe_estimate(found: Estimate) -> list[str]:
    """Lines for people."""
    if "unknown" in found:
        return [f"cannot be estimated: {found['unknown']}"]
    lines = ["; ".join(filter(None, [describe_peaks(found), found["verdict"]]))]
    for one in found["sent"]:
        lines.append(
            f"{one['operation']} of {one['dtype']} over {one['group']} ranks: "
            f"{figures(one['bytes'] / 1e6, 3)} MB in {one['calls']} calls"
        )
    return lines


def _ask(run: Run, cells: Sequence[tuple[Cell, Shape]]) -> list[Estimate]:
    if not cells:
        return []
    asked = [
        {
            "cell": cell.at_rate(shape.global_batch).to_dict(),
            "shape": shape.to_dict(),
            "own": {
                kind: str(run.own.files[kind, getattr(cell, kind)].path.resolve())
                for kind in ("strategy", "model", "data")
                if (kind, getattr(cell, kind)) in run.own.files
            },
            # Of stages the first and the last one. Ranks that each have a part of every
            # layer are like rank 0.
            "ranks": [0]
            if cell.options.get("pipe", shape.replica_ranks) == 1
            else [0, shape.ranks - 1],
        }
        for cell, shape in cells
    ]
    done = subprocess.run(
        [sys.executable, "-m", "rankbench.rank.purposes.estimate"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ValueError(f"memory cannot be estimated: {said[-1]}")
    return [json.loads(line) for line in done.stdout.splitlines()]
