"""What weakens the rows that an answer rests on, in words. There are no grades."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankbench.disturbance import disturbances
from rankbench.record import NO_EXCHANGE, OTHER_OPTIMIZER, UNCLEAN_END
from rankbench.results.advice.facts import Facts
from rankbench.results.numbers.statistics import MIN_LAUNCHES
from rankbench.results.numbers.summary import (
    DRIFTING,
    NO_STEADY_STATE,
    UNPAIRED,
    Summary,
)

_MARKS = {
    "approximate": "a lossy option changes what is trained",
    DRIFTING: "its launches became faster or slower one after the other",
    "emulated": "its computation is emulated",
    "mixed-hosts": "its launches ran on different hosts",
    "mixed-torch": "it or its base ran different versions of torch",
    NO_STEADY_STATE: "step times still changed their level at the end of a launch",
    NO_EXCHANGE: "its ranks exchange no gradients",
    OTHER_OPTIMIZER: "its script changed the optimizer that is counted",
    "other-code": "the code of the ranks has changed since",
    "oversubscribed": "ranks share a core or a GPU, or lack cores",
    "throttled": "a GPU lowered its clocks",
    UNCLEAN_END: "a launch hung or crashed after its ranks had reported",
    UNPAIRED: "it was not launched in the same rounds as its base",
    "unchecked": "no gate has checked what it trains",
}


def find_doubts(rows: Sequence[Summary]) -> list[Facts]:
    """One entry for each row that something weakens.

    Args:
        rows: those that the answer rests on, the fastest first.
    """
    hardware = [_find_hardware(row) for row in rows]
    found = []
    for row, own in zip(rows, hardware, strict=True):
        doubts = list(_doubts(row))
        if own != hardware[0]:
            doubts.append(f"it ran on other hardware than {rows[0].row.id}")
        found.append((row.row.id, doubts))
    return [{"cell": name, "doubts": doubts} for name, doubts in found if doubts]


def _doubts(summary: Summary) -> Iterator[str]:
    count = len(summary.measures)
    if count < MIN_LAUNCHES:
        launches = "launch" if count == 1 else "launches"
        yield f"{count} {launches} only, so it has no interval"
    if summary.disturbed:
        yield (
            f"{len(summary.disturbed)} of its {count} launches were disturbed, and are "
            "left out"
        )
    yield from (_MARKS[mark] for mark in summary.marks if mark in _MARKS)
    found = [disturbances(launch.record) for launch in summary.row.launches]
    if disturbed := [words for words in found if words]:
        yield (
            f"{len(disturbed)} of its {count} launches were disturbed, as their "
            f"repetitions were: {disturbed[-1][0]}"
        )


def _find_hardware(summary: Summary) -> set[tuple[str, ...]]:
    """Processors and GPUs of the hosts of all launches."""
    return {
        (host["cpu"], *sorted(gpu["name"] for gpu in host["gpus"]))
        for launch in summary.row.launches
        for host in launch.record["hosts"]
    }
