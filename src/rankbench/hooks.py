"""Marks the steps of a training script that rankbench measures.

    from rankbench import hooks

    for batch in batches:
        loss = train(batch)
        hooks.step(loss=loss)

Without rankbench around the script, `step` does nothing. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_listener: Callable[[Any, Any], None] | None = None


def step(*, loss: Any = None, samples: int | None = None) -> None:
    """Mark the end of a training step on this rank; every rank marks the same steps.

    Once a script marks a step, marks alone say what a step is: steps of optimizers no
    longer count. The first mark is where the first step begins.

    Args:
        loss: loss of the step, a tensor or a number. A tensor is read after the
            measurement, so that nothing waits for a GPU.
        samples: samples of the step on this rank, if their number differs from the
            planned one.

    Raises:
        SystemExit: the measurement is complete; only within rankbench.
    """
    if _listener is not None:
        _listener(loss, samples)


def listen(listener: Callable[[Any, Any], None] | None) -> None:
    """Let a rank of rankbench receive loss and samples of every mark; None ends it."""
    global _listener
    _listener = listener
