"""Prepares the weights of a model for strategies that flatten or shard them."""

from __future__ import annotations

from collections import Counter
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankbench.rank.models import find_parts

_BatchNorm = nn.modules.batchnorm._BatchNorm


def keep_statistics(model: nn.Module) -> None:
    """Let batch normalisations accept weights that a strategy keeps in half precision.

    Their running statistics stay float32, and torch wants weights of the same dtype.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            # Replace only `forward`, so that strategies still find the same module.
            module.forward = partial(_normalise, module)  # type: ignore[method-assign]


def make_contiguous(model: nn.Module) -> None:
    """Lay out all weights as NCHW, since some libraries cannot flatten others.

    Convolutions follow the memory format of their images.
    """
    for weight in model.parameters():
        # torch takes any strides of dimensions of size 1 for contiguous, so that
        # `contiguous` would not copy the weights of a convolution of 1x1.
        plain = torch.empty_like(weight, memory_format=torch.contiguous_format)
        weight.data = plain.copy_(weight.data)


def _normalise(norm: _BatchNorm, images: Tensor) -> Tensor:
    assert norm.running_mean is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    if norm.training:
        norm.num_batches_tracked.add_(1)
    dtype = norm.running_mean.dtype
    return functional.batch_norm(
        images,
        norm.running_mean,
        norm.running_var,
        norm.weight.to(dtype),
        norm.bias.to(dtype),
        norm.training,
        norm.momentum,
        norm.eps,
    )


def gathered_parts(model: nn.Module) -> list[nn.Module]:
    """Return the parts whose weights are gathered one after the other.

    Parts that share a weight are left out: they must be gathered together, with the
    rest of the model.
    """
    named = model.named_parameters(remove_duplicate=False)
    times = Counter(weight for _, weight in named)
    return [
        part
        for part in find_parts(model)
        if all(times[weight] == 1 for weight in part.parameters())
    ]
