"""Number of parameters and floating-point operations of a model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from rankbench.decoder import describe_decoder
from rankbench.rank import models

# Two, because batch normalisation rejects a single sample of one pixel.
_SAMPLES = 2


def describe_model(
    name: str, sizes: Mapping[str, int], options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Count parameters and operations on the meta device, so nothing is computed.

    Args:
        name: name of the model.
        sizes: of the data, as `models.build` takes them.
        options: of the model.

    Returns:
        parameters (number), parameter_bytes (in float32: the volume that data
        parallelism averages in each step), flops_per_sample (forward and backward of
        one sample, which is an image or a sequence), and of a decoder
        flops_by_formula (the same by `rankbench.decoder`). As in
        torch.utils.flop_counter, only matrix products and convolutions count, and a
        multiply-add counts as two operations.
    """
    # Imported here, because it is slow and needed only after the timed window.
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    # transformers looks at values, unless tensors say that they are fake.
    of_transformers = name.startswith("transformers/")
    fake = FakeTensorMode() if of_transformers else nullcontext()
    with fake, torch.device("meta"):
        model = models.build(name, **sizes, options=options)
        inputs = models.example_inputs(sizes, _SAMPLES)
    # The counter does not know each kernel of attention, but matrix products.
    counter = FlopCounterMode(display=False)
    with fake, sdpa_kernel(SDPBackend.MATH), counter:
        model(inputs).sum().backward()
    flops = counter.get_total_flops() // _SAMPLES
    found = {**count_parameters(model), "flops_per_sample": flops}
    if models.is_decoder(name):
        decoder = describe_decoder(models.complete(name, options), **sizes)
        found["flops_by_formula"] = decoder.flops
    return found


def count_parameters(model: nn.Module) -> dict[str, Any]:
    """The same, with None for the operations, which only computing would tell."""
    parameters = list(model.parameters())
    return {
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "flops_per_sample": None,
    }
