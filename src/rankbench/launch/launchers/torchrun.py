"""torchrun on one machine."""

from __future__ import annotations

from rankbench.launch.launchers import Start, _elastic

NEEDS = {"program": "torchrun"}

read_exits = _elastic.read_exits


def build_argv(start: Start) -> list[str]:
    return _elastic.build_argv("torch.distributed.run", start)
