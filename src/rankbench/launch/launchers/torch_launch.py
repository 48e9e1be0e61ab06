"""torch.distributed.launch on one machine: what came before torchrun."""

from __future__ import annotations

from rankbench.launch.launchers import Start, _elastic

# Both launchers run the same agent.
NEEDS = {"program": "torchrun"}

read_exits = _elastic.read_exits


def build_argv(start: Start) -> list[str]:
    # Without --use-env each rank would get an argument --local-rank.
    return _elastic.build_argv("torch.distributed.launch", start, flags=("--use-env",))
