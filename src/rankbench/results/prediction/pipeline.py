"""The time of a step of a pipeline, by going through its schedule.

Stage s can run a micro-batch forward when the stage before has sent it, and backward
when the stage behind has (Huang and others, GPipe, NeurIPS 2019). Under 1F1B a stage
begins with as many forwards as there are stages behind it and itself, and then takes
turns (Narayanan and others, PipeDream, SOSP 2019).
"""

from __future__ import annotations

from collections.abc import Sequence

SCHEDULES = ("gpipe", "1f1b")


def step_seconds(
    forward: Sequence[float],
    backward: Sequence[float],
    microbatches: int,
    hop: float,
    schedule: str,
) -> float:
    """Seconds until the last stage is done.

    Args:
        forward, backward: seconds of a micro-batch, by stage.
        hop: seconds that a micro-batch takes from one stage to the next.
        schedule: one of `SCHEDULES`.
    """
    count = len(forward)
    orders = [_order(stage, count, microbatches, schedule) for stage in range(count)]
    done: dict[tuple[str, int, int], float] = {}
    free = [0.0] * count
    position = [0] * count
    while any(at < len(orders[stage]) for stage, at in enumerate(position)):
        for stage in range(count):
            while position[stage] < len(orders[stage]):
                kind, batch = orders[stage][position[stage]]
                before = _before(kind, stage, batch, count)
                if before is not None and before not in done:
                    break
                ready = 0.0 if before is None else done[before]
                if before is not None and before[1] != stage:
                    ready += hop
                takes = forward[stage] if kind == "F" else backward[stage]
                free[stage] = max(free[stage], ready) + takes
                done[kind, stage, batch] = free[stage]
                position[stage] += 1
    return max(free)


def _order(
    stage: int, stages: int, microbatches: int, schedule: str
) -> list[tuple[str, int]]:
    """What a stage does, in its order: forward or backward, and of which batch."""
    ahead = microbatches if schedule == "gpipe" else min(microbatches, stages - stage)
    order = [("F", batch) for batch in range(ahead)]
    for batch in range(microbatches):
        order.append(("B", batch))
        if ahead + batch < microbatches:
            order.append(("F", ahead + batch))
    return order


def _before(
    kind: str, stage: int, batch: int, stages: int
) -> tuple[str, int, int] | None:
    """What must be done first, beyond what the stage itself does before."""
    if kind == "F":
        return ("F", stage - 1, batch) if stage else None
    return ("B", stage + 1, batch) if stage + 1 < stages else ("F", stage, batch)
