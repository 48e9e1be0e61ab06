"""A batch of no particular value, for steps that are timed apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankbench.rank.strategies.base import Batch


def stand_in(like: Sequence[Tensor], device: torch.device) -> Batch:
    """Random images, or tokens 0, with targets 0.

    Args:
        like: inputs and targets on the meta device, which have shapes and dtypes only.
        device: device of the batch.
    """
    inputs, targets = like
    draw = torch.rand_like if inputs.is_floating_point() else torch.zeros_like
    return draw(inputs, device=device), torch.zeros_like(targets, device=device)
