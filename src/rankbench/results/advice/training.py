"""What a choice means for training: accuracy, and loss at equal samples and times."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rankbench.results.advice.facts import Facts, round_off, to_json
from rankbench.results.numbers.measures import Measures
from rankbench.results.numbers.statistics import mean
from rankbench.results.numbers.summary import Summary

# The loss of single steps scatters: it is the mean of so many steps.
_STEPS = 20


def compare_training(rows: Mapping[str, Summary], *names: str | None) -> Facts | None:
    """Compare how far rows have trained; None unless there are two of them.

    Args:
        rows: of the workload, by id.
        names: of the rows; a name may occur twice, or be missing.
    """
    chosen = [rows[name] for name in dict.fromkeys(names) if name is not None]
    if len(chosen) < 2:
        return None
    samples = min(_samples(one, launch) for one in chosen for launch in one.counted)
    seconds = min(_seconds(launch) for one in chosen for launch in one.counted)
    cells = []
    for one in chosen:
        accuracy = one.numbers.get("accuracy")
        batch = one.row.launches[0].record["shape"]["global_batch"]
        cells.append(
            {
                "cell": one.row.id,
                "global_batch": batch,
                "accuracy": None if accuracy is None else to_json(accuracy),
                "loss_at_equal_samples": _loss(one, samples / batch, None),
                "loss_at_equal_time": _loss(one, None, seconds),
            }
        )
    return {
        "samples": int(samples),
        "seconds": round_off(seconds),
        "scaling": chosen[0].row.cell.scaling,
        "cells": cells,
    }


def _samples(summary: Summary, launch: Measures) -> float:
    shape = summary.row.launches[0].record["shape"]
    return float(len(launch.losses) * shape["global_batch"])


def _seconds(launch: Measures) -> float:
    """Time of all steps, those of the warm-up at the mean of the timed ones."""
    return launch.total_s * len(launch.losses) / len(launch.steps_s)


def _loss(summary: Summary, steps: float | None, seconds: float | None) -> Facts | None:
    """Mean loss of the steps before this point; None if it is not a number."""
    found = []
    for launch in summary.counted:
        if steps is None:
            assert seconds is not None
            share = seconds / _seconds(launch)
            end = round(share * len(launch.losses))
        else:
            end = round(steps)
        found.append(float(np.mean(launch.losses[max(0, end - _STEPS) : max(1, end)])))
    return to_json(mean(found)) if np.isfinite(found).all() else None
