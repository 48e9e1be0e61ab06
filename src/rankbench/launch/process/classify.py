"""How a launch ended -> a typed status with its reason in words: pure functions.

And whether a gate has found that a strategy trains what one process trains.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rankbench.cell import REFERENCE, Cell
from rankbench.launch.hosts.base import TIME_LIMIT, JobEnd
from rankbench.launch.process import evidence
from rankbench.launch_spec import LaunchSpec


class Fault(NamedTuple):
    """A fault of the site, by the words in which a launcher or a rank reports it.

    Attributes:
        words: a pattern; its groups fill in `reason`.
        reason: of the launch; or what is added to it, such as a remedy.
        cause: see `rankbench.record.CAUSES`.
    """

    words: str
    reason: str
    cause: str = "site"


# What srun, hosts by ssh and the supervisor print decides, whatever ranks report.
_OF_HOSTS = (
    Fault(
        r"^(?:srun: error: (?:Node failure on|Task launch for \S+ failed on node)"
        r"|lost the host) ([\w.-]*\w)",
        "the host {} failed; {progress}",
    ),
    Fault(r"CANCELLED AT \S+ DUE TO TIME LIMIT", f"{TIME_LIMIT}; {{progress}}"),
    Fault(r"^(the host \S+ refuses: .*)$", "{}"),
    Fault(
        r"slurmstepd-(\S+): error: execve\(\): (\S+): (No such file|Permission denied)",
        "the host {} cannot run {}: {}: its hosts must all see it",
    ),
    Fault(r"^(not started within .*)$", "job array {}"),
)
# Limits of a host or an account, names and ports: what is added to the reason.
_OF_LIMITS = (
    Fault(
        "no space left on device|disk quota exceeded",
        ": space, inodes or quota are used up there: see `df -h`, `df -i`, `quota`",
    ),
    Fault(
        "resource temporarily unavailable|can't start new thread",
        ": too many processes for this user: raise the limit (`ulimit -u`)",
    ),
    Fault(
        "srun: error: .*(?:expired or invalid job|socket timed out|zero bytes were"
        "|unable to (?:confirm allocation|contact slurm controller))",
        ": Slurm's controller did not answer: see `scontrol ping`",
    ),
    Fault("EADDRINUSE|address already in use", "", "host"),
    Fault(
        "no route to host|host is unreachable|connection timed out"
        "|name or service not known|temporary failure in name resolution",
        "",
        "host",
    ),
)

# Messages of ranks whose peer is gone: a consequence, not the cause.
_PEER = re.compile(
    r"connection closed by peer|connection reset by peer|broken pipe|socket closed"
    r"|read error|write error|remote process exited|connection refused|unexpected eof",
    re.IGNORECASE,
)
# The address that a host has given to the others, although it leads to themselves.
_LOOPBACK = re.compile(r"\b127\.\d+\.\d+\.\d+\b")
# What srun says first of a launcher that runs once on each host; it then ends others.
_SRUN = re.compile(r"^srun: error: (?:(\S+): tasks? \S+ Killed$)?", re.MULTILINE)
_OOM_OF_STEP = re.compile(
    r"^srun: error: .*: Out Of Memory|^slurmstepd\S*: error: .*"
    r"(?:oom[-_]kill event|exceeded .*memory limit)",
    re.MULTILINE | re.IGNORECASE,
)
# Messages of Apptainer before anything runs, and srun's message about its exit code.
# Output of another task may stand before it in the same line.
_NO_CONTAINER = re.compile(r"FATAL: +(.+)$", re.MULTILINE)
_WHERE = re.compile(r"^srun: error: (\S+): tasks? \S+ Exited with exit code 255$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Everything that is known when the processes of a launch are gone.

    Attributes:
        spec: the launch.
        returncode: of its launcher: the exit status; None if it had to be killed.
        stopped: why the supervisor ended it, if it did: ``timeout``, ``failure`` of a
            rank, ``leaving`` if ranks that have reported do not end, ``parent`` or the
            name of the signal that it was sent.
        time_limit: seconds.
        reports: what ranks wrote about themselves, by rank.
        exits: exit codes that the launcher told of, by rank.
        oom_kills: processes that the kernel ended for memory meanwhile.
        progress: where each rank was, in words.
        log: what the launcher printed.
        rank_logs: the end of what ranks printed, by rank.
        job_ended: why the scheduler ended the whole job, if it did.
    """

    spec: LaunchSpec
    returncode: int | None
    stopped: str | None
    time_limit: float
    reports: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    exits: Mapping[int, int] = field(default_factory=dict)
    oom_kills: int = 0
    progress: str = ""
    log: str = ""
    rank_logs: Mapping[int, str] = field(default_factory=dict)
    job_ended: JobEnd | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Status of a launch, and whose fault it is: there is no other judge of that.

    Attributes:
        status: one of `rankbench.record.STATUSES`; ``cancelled`` if it says nothing
            about the cell.
        reason: None exactly if it is ok.
        cause: one of `rankbench.record.CAUSES` exactly if it is cancelled.
        parting: how the processes ended after every rank had reported, if not well.
    """

    status: str
    reason: str | None = None
    cause: str | None = None
    parting: str | None = None


def classify(ending: Ending) -> Outcome:
    """The status of a launch, and its reason with the evidence.

    Every reason ends with the line of code where ranks stood, or with what a rank or a
    tool printed last, unless there is neither.
    """
    outcome = _find_outcome(ending)
    if outcome.reason is None:
        return outcome
    outcome = _blame(outcome, outcome.reason)
    assert outcome.reason is not None
    said = _find_evidence(ending, outcome)
    if not said or said in outcome.reason:
        return outcome
    return replace(outcome, reason=f"{outcome.reason}; {said}")


def _blame(outcome: Outcome, said: str) -> Outcome:
    """The outcome; not the cell's fault if a limit of the site explains a crash.

    Args:
        said: words that may tell it.
    """
    for fault in _OF_LIMITS if outcome.status == "crashed" else ():
        if re.search(fault.words, said, re.IGNORECASE):
            reason = f"{outcome.reason}{fault.reason}"
            return Outcome("cancelled", reason, fault.cause)
    return outcome


_RANK = re.compile(r"(?:\w+ kernel ended |Slurm ended )?rank (\d+)(:?)")


def _find_evidence(ending: Ending, outcome: Outcome) -> str:
    """What the logs say about the rank that a reason names, or about all ranks."""
    assert outcome.reason is not None
    logs = [dict(ending.rank_logs)]
    if named := _RANK.match(outcome.reason):
        rank = int(named[1])
        log = logs[0].get(rank, "")
        if named[2]:
            kind = ending.reports[rank]["error"]["type"]
            if kind == "HeartbeatLost":
                return evidence.describe_stands({rank: log})
            if kind == "ScriptError":
                words = evidence.last_words(log)
                return f"it printed: {words}" if words else ""
            frame = evidence.find_raise(log)
            return f"at {frame}" if frame else ""
        logs.insert(0, {rank: log})
    line = evidence.last_error_line(ending.log)
    for some in logs:
        if found := evidence.describe_stands(some):
            return found
        if line not in outcome.reason and (
            said := evidence.quote_words(some, outcome.reason)
        ):
            return said
    if ending.stopped != "timeout" or line == evidence.SILENT or line in outcome.reason:
        return ""
    return f"{ending.spec.cell.launcher} printed: {line}"


def _find_outcome(ending: Ending) -> Outcome:
    """The first that holds: the site, stopped by us, ok, out of memory, time, crash."""
    end = ending.job_ended
    for fault in _OF_HOSTS:
        if found := re.search(fault.words, ending.log, re.MULTILINE):
            reason = fault.reason.format(*found.groups(), progress=ending.progress)
            said = f"; {end.words}" if end else ""
            return Outcome("cancelled", f"{reason}{said}", fault.cause)
    if end:
        reason = "; ".join(filter(None, [end.what, ending.progress, end.words]))
        return Outcome("cancelled", reason, end.cause)
    if ending.stopped == "parent":
        return Outcome("cancelled", "the run that started it ended", "user")
    if ending.stopped not in (None, "timeout", "failure", "leaving"):
        return Outcome("cancelled", f"interrupted by {ending.stopped}", "user")
    errors = {
        rank: report["error"]
        for rank, report in sorted(ending.reports.items())
        if report.get("error")
    }
    if len(ending.reports) == ending.spec.shape.ranks and not errors:
        # Ranks write their reports last, so what they measured is complete.
        parting = None
        if ending.stopped is not None:
            parting = f"after their reports the ranks did not end: {ending.progress}"
        elif ending.returncode != 0:
            # All ranks ended well, so an out-of-memory kill hit a process outside the
            # launch.
            how = _crash(ending, {}).reason
            parting = f"after the reports of all ranks: {how}"
        return Outcome("ok", parting=parting)
    for rank, error in errors.items():
        if error["oom"]:
            return Outcome("oom", _of_rank(rank, error))
    killed = [rank for rank, code in ending.exits.items() if code == -signal.SIGKILL]
    who = f"rank {min(killed)}" if killed else "a process"
    if ending.oom_kills:
        return Outcome("oom", f"the kernel ended {who} for lack of memory")
    if _OOM_OF_STEP.search(ending.log):
        return Outcome("oom", f"Slurm ended {who} at the memory limit of the job")
    if ending.stopped == "timeout":
        limit = f"time limit of {ending.time_limit:g} s reached"
        return Outcome("timeout", f"{limit}: {ending.progress}")
    return _crash(ending, errors)


def _crash(ending: Ending, errors: Mapping[int, Mapping[str, Any]]) -> Outcome:
    launcher = ending.spec.cell.launcher
    fatal, where = (one.search(ending.log) for one in (_NO_CONTAINER, _WHERE))
    if ending.spec.image is not None and (fatal or where):
        host = f"the host {where[1]}" if where else "a host"
        # srun may end before the whole output of a task has arrived.
        why = fatal[1] if fatal else "what Apptainer said there did not arrive"
        reason = f"the image does not start on {host}: {why}"
        return Outcome("cancelled", reason, "host")
    for rank, code in sorted(ending.exits.items()):
        if code < 0 and code != -signal.SIGTERM and rank not in errors:
            reason = f"rank {rank} was ended by {signal_name(-code)}"
            return Outcome("crashed", f"{reason}; {ending.progress}")
    for rank, error in errors.items():
        if ending.spec.is_spread and (found := _LOOPBACK.search(error["message"])):
            why = f"a host gives the others its loopback address {found[0]}"
            reason = f"{_of_rank(rank, error)}: {why}: set interface in site.yaml"
            return Outcome("cancelled", reason, "site")
    own = {r: e for r, e in errors.items() if not _PEER.search(e["message"])}
    first = _SRUN.search(ending.log)
    if not own and first and first[1]:
        said = f"{launcher} on the host {first[1]} was ended by SIGKILL"
        return Outcome("crashed", said)
    gone = sorted(set(range(ending.spec.shape.ranks)) - ending.reports.keys())
    if errors and gone and not own:
        rank, error = next(iter(errors.items()))
        lost = f"rank {rank} then lost it: {evidence.shorten(error['message'])}"
        return Outcome("crashed", f"rank {gone[0]} ended without a word; {lost}")
    for rank, error in (own or errors).items():
        reason, cause = _of_rank(rank, error), error.get("cause")
        if done := sorted(ending.reports.keys() - errors.keys() if not own else ()):
            reason += f"; rank {done[0]} ended well before it: they differ in steps"
        return Outcome("cancelled" if cause else "crashed", reason, cause)
    if ending.returncode is not None and ending.returncode < 0:
        name = signal_name(-ending.returncode)
        return Outcome("crashed", f"{launcher} was ended by {name}")
    for rank, code in sorted(ending.exits.items()):
        if code == -signal.SIGTERM:
            continue  # The rank was told to end.
        said = evidence.last_error_line(ending.rank_logs.get(rank, "") or ending.log)
        return Outcome("crashed", f"rank {rank} ended with exit code {code}: {said}")
    who = f", nothing from rank {gone[0]}" if gone else ""
    said = evidence.last_error_line(ending.rank_logs.get(gone[0], "") if gone else "")
    if said == evidence.SILENT:
        said = evidence.last_error_line(ending.log)
    reason = f"{launcher} ended with exit code {ending.returncode}{who}: {said}"
    return _blame(Outcome("crashed", reason), ending.log)


def signal_name(number: int) -> str:
    known = {one.value: one.name for one in signal.Signals}
    return known.get(number, f"signal {number}")


def _of_rank(rank: int, error: Mapping[str, Any]) -> str:
    return f"rank {rank}: {error['type']}: {evidence.shorten(error['message'])}"


# --- the gate: whether a strategy trains what one process trains ----------------------
#
# rank/purposes/gate.py explains what is compared, and measures the distances.

# Largest distance of a parameter from the reference, over what training moved it; and
# largest relative difference of a loss. Rounding makes about 1e-12 and 1e-4; an error
# of the strategy about 1.
TOLERANCE = {"float64": 1e-6, "float32": 1e-2}

# A lossy option changes the weights on purpose. Its last loss may be off by this share
# of the first one.
BAND = 0.1

# In less than 32 bits, ranks round otherwise than one process. The last loss may be off
# by this share of what training has lowered it by, which counts as at least so much of
# the first loss.
TREND, LEAST_FALL = 0.5, 0.02


def has_gate(cell: Cell) -> bool:
    """Whether there is anything to check."""
    return cell.strategy != REFERENCE and cell.script is None


def judge_gate(reports: Sequence[dict[str, Any]]) -> tuple[Outcome, dict[str, Any]]:
    """The outcome over all seeds, and the worst seed's numbers for the record.

    Args:
        reports: of all ranks, by rank; see `check` in rank/purposes/gate.py.

    Raises:
        ValueError: there is nothing to compare with, because the reference diverges.
    """
    seeds = [
        _judge([rank["gate"][i] for rank in reports])
        for i in range(len(reports[0]["gate"]))
    ]
    refused = [seed for seed in seeds if seed["status"] != "ok"]
    worst = max(refused or seeds, key=lambda seed: seed["loss_error"] or 0.0)
    worst = {**worst, "seeds": len(seeds)}
    reason = worst.pop("reason")
    if not refused:
        return Outcome("ok"), worst
    return Outcome("mismatch", f"{reason} (seed {worst['seed']})"), worst


def _judge(checks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One seed, as all ranks saw it."""
    first = checks[0]
    reference = first["reference"]
    if None in reference["losses"]:
        raise ValueError("a single process does not learn with this learning rate")
    known = [check["losses"] for check in checks if check["losses"] is not None]
    losses = [
        # Not a number if one of them is none.
        sum(math.nan if loss is None else loss for loss in step) / len(step)
        for step in zip(*known, strict=True)
    ]
    found = {
        key: first[key] for key in ("seed", "dtype", "lossy", "steps", "samples")
    } | {"weights_error": reference["weights_error"], "worst": reference["worst"]}
    if first["lossy"] or first["dtype"] not in TOLERANCE:
        begin, end = reference["losses"][0], reference["losses"][-1]
        limit, scale = BAND, losses[0]
        if not first["lossy"]:
            limit, scale = TREND, max(begin - end, LEAST_FALL * abs(begin))
        error = _off(losses[-1], end, scale)
        bad = not error <= limit
        reason = (
            f"the loss after {first['steps']} steps is {losses[-1]:.4g}, a single "
            f"process has {end:.4g}"
        )
    else:
        limit = TOLERANCE[first["dtype"]]
        error = max(map(_off, losses, reference["losses"], reference["losses"]))
        weights = reference["weights_error"]
        bad = weights is None or not (error <= limit and weights <= limit)
        off = "not a number" if weights is None else f"{weights:.2g}"
        reason = (
            f"it does not train what a single process trains: {reference['worst']} is "
            f"off by {off} of what {first['steps']} steps moved it, the loss by "
            f"{error:.2g} (tolerance {limit:g})"
        )
    found |= {
        "status": "mismatch" if bad else "ok",
        "reason": reason if bad else None,
        "loss_error": error if error < float("inf") else None,
        "tolerance": limit,
    }
    if "trend" in first and not bad:
        trend = _judge([check["trend"] for check in checks])
        if trend["status"] != "ok":
            found |= {
                "status": trend["status"],
                "reason": f"in {trend['dtype']}, {trend['reason']}",
            }
        kept = ("dtype", "steps", "loss_error", "tolerance")
        found["trend"] = {key: trend[key] for key in kept}
    return found


def _off(loss: float, reference: float, scale: float) -> float:
    """Relative difference; infinite where one of them is not a number."""
    difference = abs(loss - reference)
    if not difference < float("inf"):
        return float("inf")
    return difference / abs(scale) if difference else 0.0
