"""What the module that a script trains says about itself."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankbench.rank.facts.model_size import count_parameters

# Keeps a part of all parameters as one. Parameters with `ds_numel` are parts, too: of
# ZeRO-3 in DeepSpeed.
_FSDP = "FullyShardedDataParallel"


def read_details(root: nn.Module | None) -> dict[str, Any]:
    """The timers of DDP, as its strategy gives them; empty without DDP."""
    replicas = [
        one
        for one in (root.modules() if root is not None else ())
        if isinstance(one, DistributedDataParallel)
    ]
    if len(replicas) != 1:
        return {}
    # This module imports much, and nothing is measured any more.
    from rankbench.rank.strategies.ddp import read_log, read_timers

    return {"ddp_timers": read_timers(read_log(replicas[0]))}


def describe_root(root: nn.Module | None, replica_ranks: int) -> dict[str, Any] | None:
    """Size of the model; None unless a rank knows all of its parameters."""
    if root is None or replica_ranks > 1:
        return None
    is_flat = any(type(one).__name__ == _FSDP for one in root.modules())
    if is_flat or any(hasattr(one, "ds_numel") for one in root.parameters()):
        return None
    return count_parameters(root)
