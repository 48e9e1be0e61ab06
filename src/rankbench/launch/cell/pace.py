"""Messages during a run: the launch, its speed, and the remaining time."""

from __future__ import annotations

from typing import TextIO

from rankbench.record import Layout, Record, Verdict, read_json


class Out:
    """Progress for people: on the terminal and in the log of the cell."""

    def __init__(self, *streams: TextIO) -> None:
        self._streams = streams

    def say(self, text: str) -> None:
        for stream in self._streams:
            print(text, file=stream, flush=True)


class Pace:
    """The pace of a run, and its remaining time."""

    def __init__(self, layout: Layout, cell_id: str) -> None:
        self._seconds: list[float] = []
        self._others = _launches_elsewhere(layout, cell_id)

    def line(
        self,
        record: Record,
        verdict: Verdict,
        seconds: float,
        *,
        elsewhere: int | None = None,
    ) -> str:
        """Progress after a launch that took so many seconds.

        Args:
            elsewhere: launches of other cells to come, if this job runs them too.
        """
        self._seconds.append(seconds)
        here = 0 if verdict.complete else verdict.wanted - verdict.ok
        left = (self._others if elsewhere is None else elsewhere) + here
        mean = sum(self._seconds) / len(self._seconds)
        name = f"launch {record['launch']}"
        if record["purpose"] != "measure":
            name = record["purpose"]
        parts = [
            f"{record['cell_id']}  {name}",
            f"{verdict.ok}/{verdict.wanted} ok",
            describe_result(record),
            f"{seconds:.1f} s",
        ]
        if left:
            parts.append(f"{left} launches left, about {minutes(left * mean)}")
        return "  ".join(parts)


def describe_result(record: Record) -> str:
    """The result of a launch, or the reason of its failure, in a few words."""
    if record["status"] != "ok":
        return f"{record['status']}: {record['reason']}"
    if record["purpose"] == "gate":
        found = record["gate"]
        share = "lossy, loss within" if found["lossy"] else "as single within"
        return f"{share} {found['loss_error']:.1g}"
    if record["purpose"] == "profile":
        return "profiled"
    window = max(rank["window_s"] for rank in record["ranks"])
    return f"{record['samples'] / window:.0f} samples/s"


def _launches_elsewhere(layout: Layout, cell_id: str) -> int:
    """Launches of this run's other cells that are still to come."""
    try:
        agenda = read_json(layout.agenda)
    except (OSError, ValueError):
        return 0
    left = 0
    for other, launches in agenda["launches"].items():
        summary, request = layout.summary(other), layout.request(other)
        if other == cell_id:
            continue
        done = (
            summary.exists()
            and request.exists()
            and summary.stat().st_mtime >= request.stat().st_mtime
        )
        left += 0 if done else launches
    return left


def minutes(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
