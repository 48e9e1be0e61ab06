"""What the ranks of a launch write: where they are, and what they measured."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankbench.launch_spec import PROGRESS_ENTRY, STAGES
from rankbench.record import NO_EXCHANGE, SAME_DATA, read_json, write_atomically


class RankProgress(NamedTuple):
    """Where a rank was when it last wrote.

    Attributes:
        stage: index in `STAGES`.
        step: of the stage; known only if the rank was asked.
        asked: the heartbeat that asked; 0 if the rank wrote by itself.
        silent: seconds since the rank had last moved, when it was asked.
    """

    stage: int = 0
    step: int = 0
    asked: int = 0
    silent: float = 0.0


def read_progress(folder: Path, ranks: int) -> list[RankProgress]:
    """Where each rank of a launch is, from the files of all hosts."""
    progress = [RankProgress()] * ranks
    # rsync writes a file that it copies under a hidden name, and renames it.
    for file in folder.glob("[!.]*"):
        data = file.read_bytes()
        whole = data[: len(data) // PROGRESS_ENTRY.size * PROGRESS_ENTRY.size]
        for rank, entry in enumerate(PROGRESS_ENTRY.iter_unpack(whole)):
            # The entries of other hosts' ranks are zero.
            progress[rank] = max(progress[rank], RankProgress(*entry))
    return progress


def are_all_in(stage: str, progress: Sequence[RankProgress]) -> bool:
    """Whether each rank is in this stage."""
    return all(STAGES[each.stage] == stage for each in progress)


def describe_progress(progress: Sequence[RankProgress]) -> str:
    """Words for a reason: where each rank is, and since when nothing has moved."""
    words = [
        f"rank {rank} in {STAGES[each.stage]}"
        + (f", step {each.step}" if each.step else "")
        for rank, each in enumerate(progress)
    ]
    shown = "; ".join(words[:4]) + ("; ..." if len(words) > 4 else "")
    answers = [each.silent for each in progress if each.asked]
    if answers:
        shown += f"; nothing moved for {min(answers):.0f} s"
        if silent := len(progress) - len(answers):
            shown += f"; {silent} did not answer"
    return shown


def read_reports(
    work: Path,
    ranks: int,
    known: Mapping[int, dict[str, Any]] | None = None,
    *,
    stem: str = "rank",
) -> dict[int, dict[str, Any]]:
    """The reports of those ranks that got so far as to write one, by rank.

    The folder is listed once, and only what is new is read: the file system may be a
    shared one, and the ranks many.

    Args:
        known: the result of an earlier look.
        stem: ``rank``, or ``measured`` for those that ranks wrote after the last step.
    """
    names = set(os.listdir(work))
    found = {}
    for rank in range(ranks):
        name = f"{stem}{rank}.json"
        if known and rank in known:
            found[rank] = known[rank]
        elif name in names:
            try:
                found[rank] = read_json(work / name)
            except (OSError, ValueError):
                continue  # It is being written, or its rank died meanwhile.
    return found


# What all ranks report alike, or only rank 0.
_OF_RANK_0 = (
    *("phases", "steps", "steps_per_epoch", "warmup", "accuracy", "model", "software"),
    *("transport", "step_id"),
)


def merge_reports(
    reports: list[dict[str, Any]], *, replica_ranks: int
) -> dict[str, Any]:
    """What the ranks of a launch measured, as the fields of its record.

    Times are those of the slowest rank, samples the sum over replicas, the loss the
    mean over the ranks that know it.
    """
    first = reports[0]
    stages = first["rank"]["seconds"]
    hosts = {report["host"]["host"]: report["host"] for report in reports}
    collectives = None
    if first["collectives"] is not None:
        points = zip(*(report["collectives"] for report in reports), strict=True)
        # A call is over when the slowest rank has come to its end.
        collectives = [
            {
                **point[0],
                "seconds": [max(of_one) for of_one in zip(*seconds, strict=True)],
            }
            for point in points
            if (seconds := [of_rank["seconds"] for of_rank in point])
        ]
    return {
        "seconds": {
            stage: max(report["rank"]["seconds"][stage] for report in reports)
            for stage in stages
        },
        **{key: first[key] for key in _OF_RANK_0},
        # All ranks of a replica have counted the same samples.
        "samples": sum(report["rank"]["samples"] for report in reports)
        // replica_ranks,
        "loss": {
            end: _mean([report["loss"][end] for report in reports if report["loss"]])
            for end in ("first", "last")
        },
        "ranks": [report["rank"] for report in reports],
        "hosts": list(hosts.values()),
        "surroundings": merge_surroundings(reports),
        "stall": max(
            report["rank"]["stall_s"] / report["rank"]["window_s"] for report in reports
        ),
        "collectives": collectives,
        "marks": sorted({mark for r in reports for mark in r.get("marks") or ()})
        + _judge_ranks([report["rank"].get("details") or {} for report in reports]),
    }


def _judge_ranks(details: list[dict[str, Any]]) -> list[str]:
    """Marks of a script that follow from what its ranks have seen together."""
    inputs = {one.get("inputs") for one in details}
    looks = [one["exchange"] for one in details if "exchange" in one]
    weights = {look["weights"] for look in looks}
    trains_alone = len(weights) > 1 and not any(look["trains"] for look in looks)
    shares = len(details) > 1 and len(inputs) == 1 and None not in inputs
    return [NO_EXCHANGE] * trains_alone + [SAME_DATA] * shares


def merge_surroundings(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What others did on each host in the timed window, where ranks could tell.

    Returns:
        For each host: foreign and steal (shares of the CPU time of the cores of a rank,
        of the rank that has lost most, taken by other programs and other virtual
        machines), throttled (share of the periods of a CPU quota), quota (CPUs that
        ranks may use at once; None for no limit) and stopped (share of the window).
    """
    of_hosts: dict[str, list[dict[str, Any]]] = {}
    for report in reports:
        if (seen := report["surroundings"]) is not None:
            of_hosts.setdefault(report["rank"]["host"], []).append(seen)
    return [
        {
            "host": host,
            "foreign": max(map(_foreign_share, _group_by_cpus(ranks))),
            "steal": max(
                sum(one["steal"]) / one["seconds"] / len(one["cpus"]) for one in ranks
            ),
            "throttled": max(
                one["throttled"] / one["periods"] if one["periods"] else 0.0
                for one in ranks
            ),
            "quota": min(
                (one["quota"] for one in ranks if one["quota"] is not None),
                default=None,
            ),
            "stopped": max(one["stopped"] / one["seconds"] for one in ranks),
        }
        for host, ranks in of_hosts.items()
    ]


def _group_by_cpus(ranks: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Ranks that share CPUs, together: what one of them uses is not foreign."""
    groups: list[list[dict[str, Any]]] = []
    for rank in ranks:
        cpus = set(rank["cpus"])
        sharing = [
            group for group in groups if any(cpus & set(o["cpus"]) for o in group)
        ]
        groups = [group for group in groups if group not in sharing]
        groups.append([rank, *(one for group in sharing for one in group)])
    return groups


def _foreign_share(ranks: list[dict[str, Any]]) -> float:
    """Share of the time of these ranks' CPUs that other processes have taken."""
    busy: dict[int, float] = {}
    for rank in ranks:
        shares = [seconds / rank["seconds"] for seconds in rank["busy"]]
        busy |= zip(rank["cpus"], shares, strict=True)
    own = sum(rank["own"] / rank["seconds"] for rank in ranks)
    return float(max(0.0, sum(busy.values()) - own) / len(busy))


def collapse_phases(work: Path, reports: list[dict[str, Any]]) -> None:
    """If ranks disagree on phases, merge them into one, `step`.

    Each rank looks for the phases of a script by itself. Rewrites reports and arrays.
    """
    if len({tuple(report["phases"]) for report in reports}) == 1:
        return
    for report in reports:
        report["phases"] = ["step"]
        path = work / f"rank{report['rank']['rank']}.npz"
        with np.load(path) as file:
            arrays = dict(file)
        for name in ("seconds", "warmup"):
            arrays[name] = arrays[name].sum(axis=1, keepdims=True)
        np.savez(path, **arrays)


def read_end(log: Path, size: int = 2**16) -> str:
    """The last bytes of a log as text; empty if there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(-min(size, os.fstat(file.fileno()).st_size), os.SEEK_END)
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def find_shared_gpu(reports: list[dict[str, Any]]) -> str | None:
    """Return a sentence about two ranks that used one GPU; None if none did.

    Backends other than NCCL let ranks share a GPU silently, each at half its speed.
    """
    owners: dict[str, int] = {}
    for rank in (report["rank"] for report in reports):
        for uuid in {gpu["uuid"] for gpu in rank["gpus"]} - {None}:
            first = owners.setdefault(uuid, rank["rank"])
            if first != rank["rank"]:
                return (
                    f"ranks {first} and {rank['rank']} used the same GPU of the host "
                    f"{rank['host']} ({uuid}): each needs its own"
                )
    return None


def merge_steps(work: Path, ranks: int, target: Path) -> None:
    """One archive out of one per rank, without unpacking an array."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as merged:
        for rank in range(ranks):
            with zipfile.ZipFile(work / f"rank{rank}.npz") as archive:
                for member in archive.namelist():
                    merged.writestr(f"rank{rank}/{member}", archive.read(member))
    write_atomically(target, whole.getvalue())


def _mean(values: list[float | None]) -> float | None:
    """None if one of them is: training that has diverged has no loss."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and known == values else None
