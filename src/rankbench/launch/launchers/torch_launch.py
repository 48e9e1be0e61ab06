"""torch.distributed.launch, once on each host: what came before torchrun."""

from __future__ import annotations

from rankbench.launch.launchers import torchrun
from rankbench.launch_spec import LaunchSpec

# Both launchers run the same agent.
NEEDS = {"program": "torchrun"}

read_exits = torchrun.read_exits


def build_argv(spec: LaunchSpec) -> list[str]:
    # Without --use-env each rank would get an argument --local-rank.
    return torchrun.agent_argv(spec, "torch.distributed.launch", "--use-env")
