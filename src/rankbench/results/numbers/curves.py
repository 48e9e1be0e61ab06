"""The loss while training, as it is drawn and as the answer reads it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankbench.results.numbers.summary import Summary

# Maximum number of points of a curve; with more steps, points are means.
POINTS = 200

# The loss of a single step scatters: a point is the mean of this many points around it.
SMOOTHED = 11

Values = NDArray[np.float64]


def find_curve(point: Summary, over: str = "samples") -> tuple[Values, Values]:
    """Progress and loss of the launches of a cell that is ok.

    Returns:
        samples of all replicas, or seconds, at each point, [points]; loss, running
        means, [launches, points], NaN where it is no number. A point is a step, or the
        mean of a few.
    """
    record = point.launches[0].record
    steps = np.stack([launch.losses for launch in point.measures])
    steps[~np.isfinite(steps)] = np.nan
    each = record["samples"] / record["steps"]
    if over == "seconds":
        # The first warm-up steps take longer, which a loss curve should not show.
        each = float(np.mean([launch.total_s for launch in point.counted]))
        each /= record["steps"]
    seen = each * np.arange(1, steps.shape[1] + 1)
    parts = np.array_split(np.arange(len(seen)), min(len(seen), POINTS))
    means = [steps[:, part].mean(axis=1) for part in parts]
    losses = _smooth(np.stack(means, axis=1))
    return np.array([seen[part].mean() for part in parts]), losses


def read_curve(point: Summary, seconds: float) -> tuple[float, float, float] | None:
    """Loss after some time: median of the launches, the lowest, and the highest.

    Returns:
        What the curve shows there; None where a loss is no number.
    """
    seen, losses = find_curve(point, "seconds")
    ends = np.median(losses, axis=0), losses.min(axis=0), losses.max(axis=0)
    middle, low, high = (float(np.interp(seconds, seen, end)) for end in ends)
    return (middle, low, high) if np.isfinite([middle, low, high]).all() else None


def _smooth(losses: Values) -> Values:
    """Running means over the points, [launches, points]; NaN stays NaN."""
    if losses.shape[1] <= 2 * SMOOTHED:
        return losses
    # At both ends there are fewer points to average.
    weights = np.ones(SMOOTHED)
    count = np.convolve(np.ones(losses.shape[1]), weights, mode="same")
    rows = [np.convolve(launch, weights, mode="same") / count for launch in losses]
    return np.stack(rows)
