"""Distributions of simulated launches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

# Distributions of the logarithm of a launch's level, with a scale of about 1.
LEVELS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Values]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape),
    "log-normal": lambda rng, shape: np.exp(0.8 * rng.normal(size=shape)),
    "heavy tail": lambda rng, shape: rng.standard_t(3, size=shape),
    "bimodal": lambda rng, shape: (
        0.3 * rng.normal(size=shape) + 3.0 * (rng.random(shape) < 0.3)
    ),
}
