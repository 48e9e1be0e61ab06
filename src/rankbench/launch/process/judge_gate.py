"""Whether a strategy trains what one process trains: the judgement of a gate's launch.

rank/purposes/gate.py explains what is compared, and measures the distances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rankbench.cell import REFERENCE, Cell
from rankbench.launch.process.classify import Outcome

# Largest distance of a parameter from the reference, over what training moved it; and
# largest relative difference of a loss. Rounding makes about 1e-12 and 1e-4; an error
# of the strategy about 1.
TOLERANCE = {"float64": 1e-6, "float32": 1e-2}

# A lossy option changes the weights on purpose. Its last loss may be off by this share
# of the first one.
BAND = 0.1


def has_gate(cell: Cell) -> bool:
    """Whether there is anything to check."""
    return cell.strategy != REFERENCE and cell.script is None


def judge_gate(reports: Sequence[dict[str, Any]]) -> tuple[Outcome, dict[str, Any]]:
    """The outcome over all seeds, and the worst seed's numbers for the record.

    Args:
        reports: of all ranks, by rank; see `check` in rank/purposes/gate.py.

    Raises:
        ValueError: there is nothing to compare with, because the reference diverges.
    """
    seeds = [
        _judge([rank["gate"][i] for rank in reports])
        for i in range(len(reports[0]["gate"]))
    ]
    refused = [seed for seed in seeds if seed["status"] != "ok"]
    worst = max(refused or seeds, key=lambda seed: seed["loss_error"] or 0.0)
    worst = {**worst, "seeds": len(seeds)}
    reason = worst.pop("reason")
    if not refused:
        return Outcome("ok"), worst
    return Outcome("mismatch", f"{reason} (seed {worst['seed']})"), worst


def _judge(checks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One seed, as all ranks saw it."""
    first = checks[0]
    reference = first["reference"]
    if None in reference["losses"]:
        raise ValueError("a single process does not learn with this learning rate")
    known = [check["losses"] for check in checks if check["losses"] is not None]
    losses = [_mean(step) for step in zip(*known, strict=True)]
    found = {
        key: first[key] for key in ("seed", "dtype", "lossy", "steps", "samples")
    } | {"weights_error": reference["weights_error"], "worst": reference["worst"]}
    if first["lossy"]:
        limit, error = BAND, _off(losses[-1], reference["losses"][-1], losses[0])
        bad = not error <= limit
        reason = (
            f"the loss after {first['steps']} steps is {losses[-1]:.4g}, a single "
            f"process has {reference['losses'][-1]:.4g}"
        )
    else:
        limit = TOLERANCE[first["dtype"]]
        error = max(map(_off, losses, reference["losses"], reference["losses"]))
        weights = reference["weights_error"]
        bad = weights is None or not (error <= limit and weights <= limit)
        off = "not a number" if weights is None else f"{weights:.2g}"
        reason = (
            f"it does not train what a single process trains: {reference['worst']} is "
            f"off by {off} of what {first['steps']} steps moved it, the loss by "
            f"{error:.2g} (tolerance {limit:g})"
        )
    return found | {
        "status": "mismatch" if bad else "ok",
        "reason": reason if bad else None,
        "loss_error": error if error < float("inf") else None,
        "tolerance": limit,
    }


def _mean(losses: Sequence[float | None]) -> float:
    """Not a number if one of them is none."""
    return sum(math.nan if loss is None else loss for loss in losses) / len(losses)


def _off(loss: float, reference: float, scale: float) -> float:
    """Relative difference; infinite where one of them is not a number."""
    difference = abs(loss - reference)
    if not difference < float("inf"):
        return float("inf")
    return difference / abs(scale) if difference else 0.0
