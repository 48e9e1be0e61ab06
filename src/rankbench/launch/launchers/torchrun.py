"""torchrun, once on each host."""

from __future__ import annotations

from rankbench.launch.launchers import _elastic
from rankbench.launch_spec import LaunchSpec

NEEDS = {"program": "torchrun"}

read_exits = _elastic.read_exits


def build_argv(spec: LaunchSpec) -> list[str]:
    return _elastic.build_argv("torch.distributed.run", spec)
