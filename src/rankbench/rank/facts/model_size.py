"""How much a model computes and how much of it must be communicated."""

from __future__ import annotations

from typing import Any

import torch

from rankbench.rank import models

# Batch normalisation of a single sample is an error for an image of one pixel.
_SAMPLES = 2


def describe_model(
    name: str, sample_shape: tuple[int, int, int], classes: int
) -> dict[str, Any]:
    """Count without computing: the model is built on the meta device.

    Args:
        name: of the model.
        sample_shape: C, H, W of an image.
        classes: labels.

    Returns:
        parameters (number), parameter_bytes (in float32: what data parallelism
        averages in each step), flops_per_sample (forward and backward of one sample;
        a multiplication and an addition are two; matrix products and convolutions,
        as torch.utils.flop_counter counts).
    """
    # Slow to import, and wanted when the timed window is over.
    from torch.utils.flop_counter import FlopCounterMode

    channels, image_size, _ = sample_shape
    with torch.device("meta"):
        model = models.build(
            name, channels=channels, image_size=image_size, classes=classes
        )
        images = torch.empty(_SAMPLES, *sample_shape)
    with FlopCounterMode(display=False) as counter:
        model(images).sum().backward()
    parameters = list(model.parameters())
    return {
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "flops_per_sample": counter.get_total_flops() // _SAMPLES,
    }
