"""Messages during a run: the launch, its speed, and the remaining time."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from rankbench.record import Record, Verdict


class Out:
    """Progress for people: on the terminal and in the logs of a job and a cell."""

    def __init__(self, stream: TextIO | None = None, *logs: Path) -> None:
        self._stream, self._logs = stream, logs

    def say(self, text: str) -> None:
        if self._stream is not None:
            print(text, file=self._stream, flush=True)
        for log in self._logs:
            log.parent.mkdir(parents=True, exist_ok=True)
            # A job may have a thousand cells, each with a log: too many open files.
            with open(log, "a") as file:
                print(text, file=file)


class Pace:
    """The pace of a run, and its remaining time."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def line(
        self, record: Record, verdict: Verdict, seconds: float, *, left: int
    ) -> str:
        """Progress after a launch that took so many seconds.

        Args:
            record: of the launch.
            verdict: on its cell.
            seconds: that it took.
            left: launches of this job that are still to come, at most.
        """
        self._seconds.append(seconds)
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
    context = (record.get("cell") or {}).get("context")
    unit = "samples" if context is None else "tokens"
    return f"{record['samples'] * (context or 1) / window:.0f} {unit}/s"


def minutes(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
