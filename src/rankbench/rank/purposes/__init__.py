"""Purposes of a launch: measure a cell, check its strategy (gate), or profile it.

This module imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankbench.environ import Place
from rankbench.launch_spec import LaunchSpec
from rankbench.rank.world.lifeline import Progress


@dataclass(frozen=True, kw_only=True)
class Duty:
    """The launch, and what this rank has of its own.

    Attributes:
        init_method: URL at which the ranks meet.
        affinity: CPUs that the process was given; loader processes may use them all.
    """

    spec: LaunchSpec
    place: Place
    init_method: str
    affinity: set[int]
    progress: Progress
