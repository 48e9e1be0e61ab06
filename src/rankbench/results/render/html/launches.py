"""The data of each attempt and launch of a cell for the page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankbench.record import GATE, PROFILE, Layout, Record, judge_gated
from rankbench.results.numbers.measures import Measures, peak_memory
from rankbench.results.numbers.summary import Summary
from rankbench.results.read.launches import Launch, read_launches
from rankbench.results.render.html.facts import Pool, number, without_blanks

# Keys of a host that describe the launch, and not the host.
_PASSING = ("load_1min",)


def describe_attempts(
    layout: Layout, summary: Summary, facts: Pool
) -> list[dict[str, Any]]:
    """Every attempt of a cell with all its launches, the latest attempt first.

    Raises:
        ValueError: a record is damaged; the message names it.
    """
    row = summary.row
    folders = (launch.directory for launch in row.launches)
    measured = dict(zip(folders, summary.measures, strict=True))
    units = row.cell.units_per_sample
    found = []
    for attempt in reversed(layout.attempts(row.id)):
        place = layout.attempt(row.id, attempt)
        gate = read_launches(place / GATE, measured=False)
        launches = read_launches(place)
        profile = read_launches(place / PROFILE, measured=False)
        if gate or launches:
            found.append(
                without_blanks(
                    attempt=attempt,
                    **_judge(gate, launches),
                    launches=[
                        *_describe(gate, measured, facts, units, purpose=GATE),
                        *_describe(launches, measured, facts, units),
                        *_describe(profile, measured, facts, units, purpose=PROFILE),
                    ],
                    **_describe_start((launches or gate)[-1], facts),
                )
            )
    return found


def find_logs(launch: Path) -> list[Path]:
    """Logs of a launch that are not empty."""
    return sorted(path for path in launch.glob("*.log") if path.stat().st_size)


def _judge(gate: Sequence[Launch], launches: Sequence[Launch]) -> dict[str, Any]:
    records = [launch.record for launch in launches]
    wanted = records[-1]["wanted"] if records else 0
    verdict = judge_gated([launch.record for launch in gate], records, wanted)
    return {"status": verdict.status, "reason": verdict.reason}


def _describe_start(launch: Launch, facts: Pool) -> dict[str, Any]:
    """The command of a launch, and the environment that it was given."""
    launcher = launch.record.get("launcher") or {}
    environment = facts.add(launcher.get("env") or {})
    command = shlex.join(launcher.get("argv") or [])
    return {"command": command, "environment": environment}


def _describe(
    launches: Sequence[Launch],
    measured: Mapping[Path, Measures],
    facts: Pool,
    units: int,
    *,
    purpose: str | None = None,
) -> list[dict[str, Any]]:
    return [
        without_blanks(
            launch=int(launch.directory.name),
            purpose=purpose,
            logs=[log.name for log in find_logs(launch.directory)],
            **_describe_outcome(launch.record, facts),
            **_describe_numbers(launch.record, measured.get(launch.directory), units),
        )
        for launch in launches
    ]


def _describe_outcome(record: Record, facts: Pool) -> dict[str, Any]:
    return {
        "status": record["status"],
        "reason": record["reason"],
        "started": record.get("started"),
        "seconds": number((record.get("seconds") or {}).get("launch")),
        "job": record.get("job_id"),
        "on": _describe_surroundings(record, facts),
    }


def _describe_numbers(
    record: Record, measures: Measures | None, units: int
) -> dict[str, Any]:
    """The numbers of a launch, as in the table if it counts there."""
    if measures is not None:
        return {
            "throughput": number(measures.throughput),
            "step_ms": number(measures.step_ms),
            "memory_mib": number(measures.memory_mib),
            "accuracy": number(measures.accuracy),
        }
    if record["status"] != "ok" or "ranks" not in record or "samples" not in record:
        return {}
    window = max(rank["window_s"] for rank in record["ranks"])
    return {
        "throughput": number(units * record["samples"] / window),
        "memory_mib": number(peak_memory(record["ranks"])),
        "accuracy": number((record["accuracy"] or {}).get("overall")),
    }


def _describe_surroundings(record: Record, facts: Pool) -> int:
    """Hosts, software, image, code and transport: mostly the same for all launches."""
    hosts = record.get("hosts") or [
        {"host": name} for name in (record.get("launcher") or {}).get("hosts") or []
    ]
    lasting = [{k: v for k, v in host.items() if k not in _PASSING} for host in hosts]
    names = ("software", "image", "code", "transport")
    known = {name: facts.add(record[name]) for name in names if record.get(name)}
    return facts.add({"hosts": [facts.add(host) for host in lasting], **known})
