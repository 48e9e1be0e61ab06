"""The files of a run: their paths, how they are written, and the status of a cell.

Standard library only. A finished launch never changes again. Every file is written
under a temporary name and renamed, so that readers see all of it or nothing. It is
synced before, unless it ends with its launch or can be made anew: syncs are slow on
shared file systems.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn

# Schema version of records.
RECORD_VERSION = 1

# Worst first: a cell with several failed launches gets the worst status of them.
FAILURES = ("mismatch", "crashed", "oom", "timeout", "cancelled")
STATUSES = ("ok", "unsupported", *FAILURES, "stale", "not-run")

# Why a launch was `cancelled`: the site is to blame, or the user, and not the cell. So
# another launch replaces it, by this rule, which is printed. All other failures are the
# cell's, and have no cause.
CAUSES = {
    "host": "the site's fault: repeated at once, twice at most, then by the next run",
    "site": "the site's fault: repeated by the next run",
    "user": "ended by the user: repeated by the next run",
}
# Another port or another look at a host may help: launches of one job in a row.
CURED_BY_RETRY = "host"
MAX_RETRIES = 2

# A disturbed launch is repeated in its round at most so often.
MAX_REPEATS = 2

# Suffix of an image's bill of materials, which is beside its sidecar.
BILL = ".cdx.json"

# Folders within an attempt for launches that are not measured.
GATE, PROFILE = "gate", "profile"

# Number of failed launches, without a success, after which an attempt is given up.
GIVE_UP_AFTER = 2

# Mark of a launch that hung or crashed after every rank had reported.
UNCLEAN_END = "unclean-end"

# Marks of a script: its ranks train alone; they train on the same samples; its batches
# have other sizes than planned.
NO_EXCHANGE, SAME_DATA = "no-exchange", "same-data"
OTHER_SAMPLES = "other-samples"

# Reasons of a row that is not measured: `rankbench run` measures it.
NOT_MEASURED = "not measured yet"
UNFINISHED = "launches are done"

OUT_OF_BUDGET = "the budget was spent before its first launch: raise budget"

# Reasons of a stale row: `rankbench run` measures it again.
CHANGED_CELL = "measured before the cell's definition changed"
CHANGED_IMAGE = "measured in another image than the plan's"

Record = dict[str, Any]

# A lone surrogate such as "\\ud800": valid JSON, but it cannot be encoded as UTF-8.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file so that it is complete and on disk, or not there at all.

    Args:
        path: the file.
        data: its contents.
        durable: whether that also holds if the machine fails.

    Raises:
        OSError: it cannot be written; names the file, even if the disk is full.
    """
    # Hosts that share a disk may have processes of the same number.
    host = os.uname().nodename
    beside = path.with_name(f".{path.name}.{host}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(beside, path)
        if durable:
            # The rename is on disk when its folder is.
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        # Where nothing can be written, nothing can be removed.
        with suppress(OSError):
            beside.unlink()


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    text = json.dumps(value, indent=1, allow_nan=False, default=encode) + "\n"
    write_atomically(path, text.encode(), durable=durable)


def encode(value: Any) -> Any:
    """The fields of a dataclass, or the text of a path: for `json.dumps`."""
    if isinstance(value, Path):
        return str(value)
    return {entry.name: getattr(value, entry.name) for entry in fields(value)}


def write_if_changed(path: Path, data: bytes) -> bool:
    """Write a file only if its contents differ; return whether it was written.

    Snakemake takes a newer file for a change. If the machine fails meanwhile, the next
    call finds other contents, and writes the file again.
    """
    if path.exists() and path.read_bytes() == data:
        return False
    write_atomically(path, data, durable=False)
    return True


# Bytes of a file of a run: no plan is longer.
LONGEST_JSON = 64 * 1024**2
# The most lists and objects of a file: a byte of JSON must not take twenty of memory.
_FEW, _BYTES_PER_LIST = 1000, 8


def read_json(path: Path, longest: int = LONGEST_JSON) -> Any:
    """Read a JSON object from a file, which may be anybody's.

    Raises:
        ValueError: the file is not one, or has more bytes or lists than any file
            of a run; the message names it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(longest + 1)
        if len(data) > longest:
            raise ValueError(f"it has more than {longest / 1024**2:g} MiB")
        if data.count(b"[") + data.count(b"{") > _FEW + len(data) // _BYTES_PER_LIST:
            raise ValueError("it has more lists than any file of a run")
        value = json.loads(data, parse_constant=_refuse_constant)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not valid in JSON")


# Plots that every experiment has. Others are there if they have something to say.
PLOTS = ("throughput",)


class Below:
    """A path below a folder, which is an attribute of the same object."""

    def __init__(self, name: str, folder: str = "root") -> None:
        self._name, self._folder = name, folder

    def __get__(self, instance: Any, owner: type) -> Path:
        folder: Path = getattr(instance, self._folder)
        return folder / self._name


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below the result directory of one experiment (`R` in the documentation).

    Attributes:
        network: what pairs of hosts have measured; no cell has an id without dots.
        work: what rankbench itself needs besides plan, requests and records.
        estimates: what `rankbench run -n --memory` has found.
        experiment: the copy of the experiment file from which the plan was made.
        agenda: the work of the present run: its process, and the jobs of its cells.
        code: frozen copies of the code that measured.
    """

    root: Path
    plan = Below("plan.json")
    readme = Below("README.md")
    report = Below("report.html")
    records = Below("records")
    network = Below("records/network")
    work = Below("work")
    estimates = Below("memory.json", "work")
    experiment = Below("experiment.yaml", "work")
    lock = Below("lock", "work")
    agenda = Below("agenda.json", "work")
    code = Below("code", "work")

    def request(self, cell_id: str) -> Path:
        return self.root.joinpath("requests", f"{cell_id}.json")

    def own(self, digest: str) -> Path:
        """The frozen copy of files of the user's own with this digest."""
        return self.work / "own" / digest[:16]

    def log(self, name: str) -> Path:
        """The log of a job, or of the jobs of a cell."""
        return self.work.joinpath("logs", f"{name}.log")

    def job(self, name: str) -> Path:
        """What a job leaves until the table is made: the status of its cells."""
        return self.work.joinpath("jobs", f"{name}.json")

    def need(self, name: str) -> Path:
        """A note that `data.NAME` or `image.NAME` was made, or why not."""
        return self.work.joinpath("needs", f"{name}.json")

    def summary(self, cell_id: str, attempt: int) -> Path:
        """What a job has found of an attempt that is complete."""
        return self.attempt(cell_id, attempt) / "summary.json"

    def attempt(self, cell_id: str, attempt: int) -> Path:
        return self.records / cell_id / str(attempt)

    def launch(self, cell_id: str, attempt: int, launch: int) -> Path:
        return self.attempt(cell_id, attempt) / str(launch)

    def table(self, suffix: str) -> Path:
        return self.root / f"table.{suffix}"

    def answer(self, suffix: str) -> Path:
        return self.root / f"answer.{suffix}"

    def section(self, name: str) -> Path:
        return self.root / "sections" / f"{name}.csv"

    def plot(self, name: str, suffix: str) -> Path:
        return self.root / "plots" / f"{name}.{suffix}"

    def attempts(self, cell_id: str) -> list[int]:
        """Attempts that have at least one launch directory, ascending."""
        return numbered(self.records / cell_id)


def numbered(directory: Path) -> list[int]:
    """The entries of a directory whose names are numbers, ascending.

    Returns:
        The numbers; [] if there is no such directory.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if re.fullmatch(r"[1-9]\d*", name))


def read_attempt(directory: Path) -> list[Record]:
    """The records of the finished launches of an attempt, in order of their numbers.

    Raises:
        ValueError: a record is damaged or of another schema version.
    """
    found = []
    for launch in numbered(directory):
        path = directory / str(launch) / "record.json"
        if path.exists():
            found.append(read_record(path))
    return found


def read_record(path: Path) -> Record:
    """Read a record as far as verdicts need it; tables check all of it.

    Raises:
        ValueError: it is damaged or of another schema version; names the file.
    """
    record = read_versioned(path, "record", RECORD_VERSION)
    status = record.get("status")
    known = status in ("ok", *FAILURES) and record.get("cause") in (None, *CAUSES)
    if not known or "reason" not in record:
        raise ValueError(f"{path} is damaged: status {status!r:.60}, cause, or reason")
    try:
        return complete(record)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


# What stands in the place of a member that a record lacks, or has as null: of a record,
# of its ranks, hosts and devices. Whoever reads a record needs no guard.
_USUAL: dict[str, Any] = {
    **dict.fromkeys(("cause", "cell_hash", "image", "gate", "round", "started")),
    **{"purpose": "measure", "repeats": 0, "warmup": 0, "stall": 0.0},
    **{key: [] for key in ("marks", "surroundings", "collectives")},
    **{key: [] for key in ("profile", "network", "ranks", "hosts", "devices")},
    **{key: {} for key in ("cell", "shape", "launcher", "code", "model")},
    **{key: {} for key in ("seconds", "loss", "accuracy", "transport")},
}
_OF_MEMBERS: dict[str, Record] = {
    "ranks": {"details": {}, "energy": {}, "cores": [], "gpus": [], "epochs_s": []},
    "hosts": {"gpus": [], "nics": [], "gpu_links": []},
    "devices": {"before": {}, "throttled": []},
}


def complete(record: Record) -> Record:
    """The record of a launch, with the usual value of each member that it lacks."""
    found = _fill(record, _USUAL)
    for name, usual in _OF_MEMBERS.items():
        found[name] = [_fill(one, usual) for one in found[name]]
    return found


def _fill(value: Record, usual: Record) -> Record:
    known = {k: v for k, v in value.items() if v is not None or k not in usual}
    return {**usual, **known}


def explain_damage(error: Exception, root: Path) -> str:
    """The reason of a cell with a file that cannot be used; it is ``stale``.

    Args:
        error: its message begins with the path of the file.
        root: the result directory, which a published reason must not name.
    """
    said = first_line(str(error).replace(f"{root}/", ""))
    return f"{said}: restore this file, or measure the cell again"


def read_versioned(
    path: Path,
    kind: str,
    version: int,
    remedy: str = "",
    longest: int = LONGEST_JSON,
) -> Record:
    """Read a JSON object that says of which version it is, in its key `schema`.

    Args:
        path: the file.
        kind: what it holds, for the message.
        version: the expected one.
        remedy: what to do about a file of another version.
        longest: the most bytes that it may have.

    Raises:
        ValueError: it is damaged or of another version; names the file.
    """
    try:
        value: Record = read_json(path, longest)
    except (IsADirectoryError, PermissionError) as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    found = value.get("schema")
    # True equals 1, and so does 1.0.
    if type(found) is not int or found != version:
        raise ValueError(
            f"{path} has {kind} schema {found!r:.60}, this rankbench reads {version}"
            + (f": {remedy}" if remedy else "")
        )
    return value


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one attempt.

    Attributes:
        status: one of `STATUSES`.
        reason: reason of the status; None if and only if it is ``ok``.
        ok: number of launches that succeeded.
        wanted: number of launches that were requested.
        complete: whether the attempt needs no further launch.
    """

    status: str
    reason: str | None
    ok: int
    wanted: int
    complete: bool


def counting(records: Sequence[Record]) -> list[Record]:
    """The records that count for the cell: all but those that a launch replaces."""
    replaced = {id(record) for record in repeated(records)}
    return [r for r in records if id(r) not in replaced and not r["cause"]]


def repeated(records: Sequence[Record]) -> list[Record]:
    """The disturbed launches that another one of their round replaces, or shall.

    A cell that is disturbed always would triple its launches for nothing. So a launch
    is repeated only while its cell has, apart from two, as many undisturbed launches as
    repeated ones.

    Args:
        records: of an attempt, in order of their numbers; `repeats` of a record is how
            often a launch of its round may be repeated.
    """
    found: list[Record] = []
    left, taken, tries = MAX_REPEATS, 0, Counter[Any]()
    for record in records:
        if record["status"] != "ok":
            continue
        # Outside of rounds, a launch takes the place of the one that it repeats.
        place = round_of(record) or taken
        if not disturbances(record):
            left += 1
        elif left > 0 and tries[place] < record["repeats"]:
            left -= 1
            tries[place] += 1
            found.append(record)
            continue
        taken += 1
    return found


def round_of(record: Record) -> tuple[int, int] | None:
    """What identifies the round of a launch; None if it was not in one.

    Returns:
        Seed and number.
    """
    place = record["round"]
    return None if place is None else (int(place["seed"]), int(place["number"]))


def still_wanted(asked: int, planned: int, records: Sequence[Record]) -> int:
    """How many launches an attempt needs, if fewer may do than were asked for.

    The experiment may ask for fewer now; or more were asked for, and interrupted.

    Args:
        asked: for this attempt.
        planned: by the experiment, as it is now.
        records: of the attempt.
    """
    return min(asked, max(planned, len(counting(records))))


def judge(records: Sequence[Record], wanted: int) -> Verdict:
    """Decide the status of a cell from the records of one attempt."""
    if wanted == 0:
        return Verdict("not-run", OUT_OF_BUDGET, 0, 0, complete=True)
    counted = counting(records)
    ok = sum(r["status"] == "ok" for r in counted)
    failed = [r for r in counted if r["status"] != "ok"]
    complete = len(counted) >= wanted or (ok == 0 and len(failed) >= GIVE_UP_AFTER)
    if failed:
        worst = min(failed, key=lambda r: FAILURES.index(r["status"]))
        return Verdict(worst["status"], worst["reason"], ok, wanted, complete)
    if complete:
        return Verdict("ok", None, ok, wanted, complete)
    if records and records[-1]["status"] != "ok":
        last = records[-1]
        return Verdict(last["status"], explain_loss(last), ok, wanted, complete)
    reason = f"{ok} of {wanted} {UNFINISHED}"
    return Verdict("not-run", reason, ok, wanted, complete)


def explain_loss(record: Record) -> str:
    """The reason of a failed launch; whose fault it was, unless it was the cell's."""
    if (cause := record["cause"]) is None:
        return str(record["reason"])
    return f"{record['reason']}; {CAUSES[cause]}"


def judge_attempt(
    gate: Sequence[Record], records: Sequence[Record], wanted: int, stale: str | None
) -> Verdict:
    """Decide the status of a cell: jobs, `rankbench status` and tables all ask here.

    Args:
        gate: the records of its gate; a mismatch there overrides all launches.
        records: of its launches.
        wanted: how many launches it needs.
        stale: why they do not fit the plan any more, as `why_stale` says it.
    """
    verdict = judge(records, wanted)
    if stale is not None:
        # The old number is shown as old until there is a new one.
        speed = describe_speed(records)
        reason = f"{stale}; it had {speed}" if speed else stale
        return Verdict("stale", reason, verdict.ok, wanted, complete=True)
    for record in gate:
        if record["status"] == "mismatch":
            return Verdict("mismatch", record["reason"], 0, wanted, complete=True)
    if verdict.status == "not-run" and (speed := describe_speed(records)):
        return replace(verdict, reason=f"{verdict.reason}: {speed} so far")
    return verdict


def why_stale(
    records: Sequence[Record],
    *,
    cell_hash: str,
    image: Record | None,
    asked_hash: str | None = None,
) -> str | None:
    """The reason why an attempt does not fit the plan any more; None if it fits.

    Args:
        records: records of the attempt.
        cell_hash: hash of the cell in the plan.
        image: `recipe` and `sha256` of the planned image; None for no image. The
            sha256 is None if the image is not built yet, or, in a record, if the host
            did not have the image.
        asked_hash: hash of the cell when the attempt was requested.
    """
    hashes = {record["cell_hash"] for record in records} | {asked_hash or cell_hash}
    if hashes != {cell_hash}:
        return CHANGED_CELL
    for measured in (record["image"] for record in records):
        if image is None or measured is None:
            is_other = image is not measured
        else:
            known = {image["sha256"], measured["sha256"]} - {None}
            is_other = image["recipe"] != measured["recipe"] or len(known) > 1
        if is_other:
            return CHANGED_IMAGE
    return None


def first_line(text: str, limit: int = 300) -> str:
    """The first line of a text that is not blank, shortened to `limit` characters."""
    for line in text.strip().splitlines() or [""]:
        if line.strip():
            line = line.strip()
            return line if len(line) <= limit else line[: limit - 3] + "..."
    return ""


def describe_result(record: Record) -> str:
    """The result of a launch, or the reason of its failure, in a few words."""
    if record["status"] != "ok":
        return f"{record['status']}: {explain_loss(record)}"
    purpose = record["purpose"]
    if purpose == "gate":
        loss, weights = (
            record["gate"][f"{name}_error"] for name in ("loss", "weights")
        )
        if record["gate"]["lossy"]:
            return f"lossy, loss within {loss:.1g}"
        return f"as single within {max(loss, weights):.1g}"
    if purpose == "profile":
        return "profiled"
    window = max(rank["window_s"] for rank in record["ranks"])
    context = record["cell"].get("context")
    unit = "samples" if context is None else "tokens"
    return f"{record['samples'] * (context or 1) / window:.0f} {unit}/s"


def describe_speed(records: Sequence[Record]) -> str:
    """The mean speed of the launches of an attempt that count; empty without any.

    A table omits steps before the steady state, so its number may differ a little.
    """
    counted = counting(records)
    # What a job keeps of a record has no ranks.
    ok = [r for r in counted if r["status"] == "ok" and r.get("ranks")]
    if not ok or "gate" in {r["purpose"] for r in ok}:
        return ""
    words = [describe_result(record).split() for record in ok]
    return f"about {fmean(float(value) for value, _ in words):.0f} {words[0][1]}"


def describe_launch(record: Record, *, is_repeated: bool) -> str:
    """A line about a launch that has ended.

    Args:
        is_repeated: whether another launch replaces it.
    """
    purpose = record["purpose"]
    name = f"launch {record['launch']}" if purpose == "measure" else purpose
    parts = [name, describe_result(record)]
    if seconds := record["seconds"].get("launch"):
        parts.append(f"{seconds:.1f} s")
    hosts = record["launcher"].get("hosts") or ["localhost"]
    if hosts != ["localhost"]:
        parts.append(f"on {','.join(hosts)}")
    if purpose == "measure" and (why := disturbances(record)):
        parts.append(f"disturbed: {why[0]}{', repeated' if is_repeated else ''}")
    return "  ".join(parts)


def mean_seconds(records: Iterable[Record]) -> float | None:
    """How long a launch takes, with all that is not measured; None if none is ok."""
    found = [r["seconds"].get("launch") for r in records if r["status"] == "ok"]
    return fmean(filter(None, found)) if any(found) else None


def fill_means(means: Mapping[str, float | None]) -> dict[str, float]:
    """Seconds of a launch of each cell: NEXT and the preview of a run agree by this.

    A cell that was never launched counts as the mean of the others; {} if none was.
    """
    known = [mean for mean in means.values() if mean is not None]
    return {name: mean or fmean(known) for name, mean in means.items() if known}


def minutes(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


# --- which launches something else than their cell has disturbed ---------------------
#
# Jobs, tables and `rankbench verify` ask these functions. They read the surroundings of
# a launch, as its record has them, and never how fast the launch was, so a disturbed
# launch can be repeated without preferring fast ones. One step that stands out of all
# others is no speed: a link was cut, say, and mended. They count shares, not seconds,
# because slow cells last longer. What a cell may cause itself is its own performance:
# its heat during the launch, swapping, the network, the placement of memory.

# A launch is disturbed from this share on: of the CPU time of a rank's cores that other
# programs or other virtual machines took, and of the periods in which a quota held
# processes back.
_TAKEN = 0.05

# The same of the timed window during which processes were suspended. Nothing else slows
# a launch by all of its share.
_STOPPED = 0.01

# The same of the timed window that one step took longer than any other.
_STALL = 0.1

# Mark of a row with a launch that counts although it was disturbed.
DISTURBED = "disturbed"

# Mark of a row whose launches the budget ended.
BUDGET = "budget"

# Mark of a row whose ranks had fewer cores or GPUs than they need.
OVERSUBSCRIBED = "oversubscribed"


def disturbances(record: Mapping[str, Any]) -> list[str]:
    """What disturbed a launch, in words; [] if nothing did.

    Args:
        record: of a launch; `stopping.brief` keeps all that is read here.
    """
    found = [
        f"{words} on {host['host']}"
        for host in record["surroundings"]
        for words in _of_host(host, _planned_cores(record))
    ]
    if (stall := record["stall"]) >= _STALL:
        found.append(f"one step stood still for {stall:.0%} of the window")
    for device in record["devices"]:
        before = device["before"]
        if before.get("others"):
            found.append(f"another process used GPU {device['index']}")
        if reasons := before.get("throttled"):
            found.append(
                f"GPU {device['index']} was throttled before: {', '.join(reasons)}"
            )
    return found


def _of_host(host: Mapping[str, Any], planned: int | None) -> Iterator[str]:
    for key, words in (
        ("foreign", "other programs took {:.0%} of a rank's cores"),
        ("steal", "other virtual machines took {:.0%} of a rank's cores"),
    ):
        if host[key] >= _TAKEN:
            yield words.format(host[key])
    # A quota below the planned cores holds all launches back: repeating cannot help.
    is_enough = planned is None or (host["quota"] or 0) >= planned
    if host["throttled"] >= _TAKEN and is_enough:
        yield f"a CPU quota throttled {host['throttled']:.0%} of the periods"
    if host["stopped"] >= _STOPPED:
        yield f"processes were suspended for {host['stopped']:.0%} of the window"


def lacks_cores(record: Mapping[str, Any]) -> bool:
    """Whether ranks had fewer cores than planned, and so in every launch.

    They share some, were given fewer, or a CPU quota allows fewer.
    """
    planned = _planned_cores(record)
    if planned is None:
        return False
    for host in record["surroundings"]:
        quota = host["quota"]
        is_held_back = quota is not None and quota < planned
        if is_held_back and host["throttled"] >= _TAKEN:
            return True
    taken: dict[str, set[int]] = {}
    for rank in record["ranks"]:
        cores = set(rank["cores"])
        of_others = taken.setdefault(rank["host"], set())
        if cores and (cores & of_others or len(cores) < _cores_of_rank(record)):
            return True
        of_others |= cores
    return False


def _planned_cores(record: Mapping[str, Any]) -> int | None:
    """Cores that the ranks of a host shall have; None if they share all of its."""
    each = _cores_of_rank(record)
    return each * record["shape"]["ranks_per_node"] if each else None


def _cores_of_rank(record: Mapping[str, Any]) -> int:
    return record["shape"].get("cores_per_rank") or 0
