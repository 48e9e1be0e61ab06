"""Prepares the weights of a model for strategies that flatten or shard them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from rankbench.rank.models import Experts, find_parts
from rankbench.rank.strategies._axes import local
from rankbench.rank.strategies.base import Operation

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


def _gather_in_float8(model: nn.Module) -> None:
    """Let weights that are cast to float8, with a scale per tensor, be sent in it."""
    for layer in model.modules():
        config: Any = getattr(layer, "config", None)
        if type(layer).__name__ != "Float8Linear" or not config:
            continue
        cast = config.cast_config_weight
        if cast.scaling_granularity.name == "TENSORWISE":
            from torchao.float8 import fsdp_utils

            own: Any = fsdp_utils.WeightWithDynamicFloat8CastTensor(
                local(layer.weight), layer.linear_mm_config, cast.target_dtype
            )
            if isinstance(layer.weight, DTensor):
                mesh, placed = layer.weight.device_mesh, layer.weight.placements
                own = DTensor.from_local(own, mesh, placed, run_check=False)
            layer.weight = nn.Parameter(own)


class Shards:
    """Models whose weights FSDP2 shards, and what ranks send for that.

    Attributes:
        held: bytes, in float32, that this rank would hold without sharding.
        gathered: bytes that it gathers for a forward and backward.
    """

    def __init__(self, mesh: DeviceMesh, low_dtype: torch.dtype | None) -> None:
        """Begin with no model.

        Args:
            mesh: its dimension `shard` has the ranks that share weights, and `copy`, if
                there is one, those that hold copies.
            low_dtype: of gathered weights; None leaves it as it is.
        """
        copies = "copy" in (mesh.mesh_dim_names or ()) and mesh["copy"].size() > 1
        self._mesh = mesh["copy", "shard"] if copies else mesh["shard"]
        self._low_dtype = low_dtype
        self.held = self.gathered = 0.0

    def add(
        self,
        model: nn.Module,
        *,
        again: bool,
        offload: bool = False,
        experts: Shards | None = None,
    ) -> None:
        """Shard a model, or what this rank holds of it, in place.

        Args:
            again: whether to free gathered weights after forward, and to gather them
                again for backward.
            offload: whether shards are in the memory of the host.
            experts: shards the experts of the model, if other ranks share those.
        """
        make_contiguous(model)
        _gather_in_float8(model)
        parts = gathered_parts(model)
        # Backward begins with the last part.
        twice = parts[:-1] if again else []
        apart = [m for m in model.modules() if experts and isinstance(m, Experts)]
        self.count(model, twice, apart)
        for part in parts:
            for module in part.modules():
                if experts and module in apart:
                    experts.count(module, [module] if part in twice else [])
                    experts._shard(module, again=part in twice)
            self._shard(part, again=part in twice, offload=offload)
        self._shard(model, again=False, offload=offload)

    def _shard(self, part: nn.Module, *, again: bool, offload: bool = False) -> None:
        low = MixedPrecisionPolicy(
            param_dtype=self._low_dtype,
            reduce_dtype=torch.float32 if self._low_dtype else None,
        )
        fully_shard(
            part,
            mesh=self._mesh,
            mp_policy=low,
            offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy(),
            reshard_after_forward=again,
            shard_placement_fn=self._choose_dimension,
        )

    def _choose_dimension(self, weight: nn.Parameter) -> Shard | None:
        """The second one of weights of fewer experts than ranks."""
        ranks, sides = self._mesh["shard"].size(), local(weight).shape
        uneven = len(sides) == 3 and sides[0] % ranks
        return Shard(1) if uneven and sides[1] % ranks == 0 else None

    def count(
        self,
        model: nn.Module,
        twice: Sequence[nn.Module],
        without: Sequence[nn.Module] = (),
    ) -> None:
        """Count the bytes of a model of which these parts are gathered twice.

        Args:
            without: modules that do not count.
        """
        left_out = {p for module in without for p in module.parameters()}
        low = self._low_dtype or torch.float32
        for again, part in enumerate((model, *twice)):
            for weight in part.parameters():
                if weight not in left_out:
                    own = local(weight)
                    self.held += 0.0 if again else 4.0 * own.numel()
                    in_float8 = hasattr(own, "fsdp_pre_all_gather")
                    self.gathered += own.numel() * (1 if in_float8 else low.itemsize)

    def operations(self, passes: int = 1) -> list[Operation]:
        """What a rank sends in so many forwards and backwards."""
        low, shards = self._low_dtype or torch.float32, self._mesh.get_group("shard")
        sent = [
            Operation("all_gather", passes * self.gathered, low, shards),
            Operation("reduce_scatter", self.held, group=shards),
        ]
        if self._mesh.ndim == 2:
            copies = self._mesh.get_group("copy")
            each = self.held / shards.size()
            sent.append(Operation("all_reduce", each, group=copies))
        return sent
