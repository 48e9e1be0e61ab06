"""One launch from its claim to its record. The supervisor outlives the ranks."""

from __future__ import annotations

import errno
import math
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankbench.environ import host_name, job_id
from rankbench.launch import processes
from rankbench.launch.hosts.base import Hosts, ThisMachine
from rankbench.launch.launchers import find_launcher, hostfile
from rankbench.launch.process.classify import Ending, Outcome, classify, judge_gate
from rankbench.launch.process.command import build_command, find_settings
from rankbench.launch.process.evidence import find_hints
from rankbench.launch.process.reports import (
    are_all_in,
    collapse_phases,
    describe_progress,
    find_shared_gpu,
    merge_reports,
    merge_steps,
    read_end,
    read_progress,
    read_reports,
)
from rankbench.launch.process.scratch import private_scratch
from rankbench.launch.process.transport import join, read_logs
from rankbench.launch.processes import Heartbeat, Stop
from rankbench.launch_spec import LaunchSpec
from rankbench.record import RECORD_VERSION, UNCLEAN_END, Record, write_json

if TYPE_CHECKING:
    from rankbench.launch.process.gpu_usage import Devices

ROOM_FOR_A_RECORD = 64 * 1024  # bytes

HEARTBEAT_SECONDS = 1.0

# Seconds between two looks for the answers of ranks.
ANSWER_SECONDS = 0.2

# Seconds that a launcher has to end the other ranks after one has failed. Intel MPI
# does not end ranks that still wait for the failed one to join.
FAILURE_GRACE = 10.0

# Seconds that ranks have to end when all of them have reported.
LEAVING_GRACE = 60.0


def run_launch(spec: LaunchSpec, hosts: Hosts, stop: Stop) -> Record:
    """Start the ranks, wait for them, end what is left, write the record.

    Raises:
        OSError: the record cannot be written (a full disk); the claim stays, and a
            later run replaces the launch.
    """
    started = datetime.now(UTC)
    with private_scratch(spec, hosts) as fault:
        if fault:
            return close_launch(spec, Outcome("cancelled", fault, "site"), started)
        return _run_ranks(spec, hosts, stop, started)


def close_launch(spec: LaunchSpec, outcome: Outcome, started: datetime) -> Record:
    """The record of a launch that has measured nothing; a later run replaces it.

    Raises:
        OSError: it cannot be written.
    """
    record = begin_record(spec, outcome, started)
    finish(spec.directory, record)
    return record


def _run_ranks(spec: LaunchSpec, hosts: Hosts, stop: Stop, started: datetime) -> Record:
    clock = time.monotonic()
    command = build_command(spec, hosts)
    # What launcher and ranks read at their start.
    hosts.place(spec).write(spec.file)
    spec.progress.mkdir()
    spec.hostfile.write_text(hostfile(spec))
    if spec.image is not None:
        spec.home.mkdir()
    if spec.is_spread:
        spec.secret.touch(0o600)
        spec.secret.write_text(secrets.token_hex())
    devices = find_devices(spec, hosts, command.env)
    # Time in the queue counts as well.
    time_limit = spec.options.time_limit + hosts.start_within
    oom_before = _oom_kills()

    processes.adopt_orphans()
    log_path = spec.directory / "launcher.log"
    heartbeat = Heartbeat(spec.heartbeat, shared=hosts.share_files)
    with open(log_path, "wb") as log, closing(heartbeat):
        # In a session of its own, the launcher gets no Ctrl-C: only the supervisor
        # does, and ends the ranks in good order.
        child = subprocess.Popen(
            command.argv,
            env=command.outer,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        processes.awaited.add(child.pid)
        try:
            stopped = await_launcher(
                child, spec, stop, heartbeat, devices, time_limit=time_limit
            )
            where = describe_progress(read_progress(spec.progress, spec.shape.ranks))
        finally:
            if hosts.end_within:
                child.terminate()
                processes.wait_for_exit(child, hosts.end_within)
            processes.end_processes()
            returncode = child.wait()
            job_ended = None if returncode == 0 else hosts.why_ended()
            # A job that ends also ends its steps, and leaves no time to wait.
            if job_ended is None:
                hosts.end_steps()
            # Only now: what has ended on a host that is lost is known later.
            if returncode != 0 and (lost := hosts.find_lost()):
                log.write(f"lost the host {lost}\n".encode())

    text = log_path.read_text(errors="replace")
    reports = read_reports(spec.work, spec.shape.ranks)
    ending = Ending(
        spec=spec,
        returncode=returncode,
        stopped=stopped,
        time_limit=time_limit,
        reports=reports,
        exits=find_launcher(spec.cell.launcher).read_exits(text),
        oom_kills=_oom_kills() - oom_before,
        progress=where,
        log=text,
        rank_logs={
            rank: read_end(spec.log(rank))
            for rank in range(spec.shape.ranks)
            if rank not in reports or "error" in reports[rank]
        },
        job_ended=job_ended,
    )
    outcome = classify(ending)
    results: dict[str, Any] = {}
    if outcome.status == "oom":
        measured = read_reports(spec.work, spec.shape.ranks, stem="measured")
        if len(measured) == spec.shape.ranks:
            # Evaluation, say, needed more memory than the steps, which are complete.
            reports = measured
            outcome = Outcome("ok", parting=f"after its last step: {outcome.reason}")
    if outcome.status == "ok":
        # A script that is ended in its middle may end in any way.
        parting = outcome.parting if spec.cell.script is None else None
        outcome, results = _collect(spec, list(reports.values()))
        outcome = replace(outcome, parting=parting)
    if outcome.reason is not None and spec.own and outcome.status != "cancelled":
        logs = ending.rank_logs.values()
        hints = find_hints(spec, outcome.reason, logs, command.env)
        outcome = replace(outcome, reason="; ".join([outcome.reason, *hints]))
    if outcome.status == "crashed" and devices and (lost := devices.find_lost()):
        outcome = Outcome("cancelled", f"{lost}: {outcome.reason}", "site")
    free = shutil.disk_usage(spec.directory).free
    if outcome.status != "ok" and free < ROOM_FOR_A_RECORD:
        # A failure on a full disk says nothing about the cell: leave no record of it.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(spec.directory))
    record = begin_record(spec, outcome, started)
    record["launcher"] = {
        "name": spec.cell.launcher,
        "argv": command.argv,
        "env": command.env,
        "settings": find_settings(spec),
        "hosts": list(spec.hosts),
    }
    record["job_id"] = hosts.find_job(text)
    record["marks"] += results.pop("marks", [])
    record |= results
    if outcome.status == "ok":
        record.setdefault("seconds", {})["launch"] = time.monotonic() - clock
        record["devices"] = devices.describe() if devices else None
    finish(spec.directory, record)
    return record


def find_devices(
    spec: LaunchSpec, hosts: Hosts, env: Mapping[str, str]
) -> Devices | None:
    """Return the GPUs of this host to watch; None if the launch uses none here."""
    # A launch may use other hosts of the job, and `salloc` may leave its user on the
    # login node.
    is_here = not {host_name(), *ThisMachine.names}.isdisjoint(hosts.names)
    if spec.cell.device != "cuda" or not is_here:
        return None
    # Launches on CPUs need nothing of NVML.
    from rankbench.launch.process.gpu_usage import open_devices

    return open_devices(spec.shape, env)


def _collect(
    spec: LaunchSpec, reports: list[dict[str, Any]]
) -> tuple[Outcome, dict[str, Any]]:
    """The results of the ranks of a launch that ended well."""
    if spec.purpose == "gate":
        try:
            outcome, numbers = judge_gate(reports)
        except ValueError as error:
            return Outcome("crashed", str(error)), {}
        return outcome, {"gate": numbers}
    if spec.purpose == "profile":
        return Outcome("ok"), {"profile": [report["profile"] for report in reports]}
    if not spec.cell.oversubscribe and (shared := find_shared_gpu(reports)):
        return Outcome("crashed", shared), {}
    collapse_phases(spec.work, reports)
    merged = merge_reports(reports, replica_ranks=spec.shape.replica_ranks)
    seen = read_logs(spec.directory, spec.shape.ranks)
    merged["transport"] = join(merged["transport"], seen)
    merge_steps(spec.work, spec.shape.ranks, spec.directory / "steps.npz")
    return Outcome("ok"), merged


def await_launcher(
    child: subprocess.Popen[bytes],
    spec: LaunchSpec,
    stop: Stop,
    heartbeat: Heartbeat,
    devices: Devices | None,
    *,
    time_limit: float,
) -> str | None:
    """Wait until the launcher ends; returns why it was stopped, if it was."""
    deadline = time.monotonic() + time_limit
    reports: dict[int, dict[str, Any]] = {}
    failure = leaving = math.inf
    while True:
        heartbeat.beat()
        if devices:
            places = read_progress(spec.progress, spec.shape.ranks)
            if are_all_in("training", places):
                devices.sample()
        if processes.wait_for_exit(child, HEARTBEAT_SECONDS):
            return None
        if reason := stop.reason():
            return reason
        reports = read_reports(spec.work, spec.shape.ranks, reports)
        now = time.monotonic()
        if any("error" in report for report in reports.values()):
            failure = min(failure, now)
        elif len(reports) == spec.shape.ranks:
            leaving = min(leaving, now)
        if now > failure + FAILURE_GRACE:
            return "failure"
        if now > leaving + LEAVING_GRACE:
            return "leaving"
        if now > deadline:
            ask_ranks(spec, heartbeat)
            return "timeout"


def ask_ranks(spec: LaunchSpec, heartbeat: Heartbeat) -> None:
    """Ask the ranks where they are; wait for those that can still answer."""
    asked = heartbeat.ask()
    end = time.monotonic() + spec.heartbeat_grace / 2
    while time.monotonic() < end and any(
        place.asked < asked for place in read_progress(spec.progress, spec.shape.ranks)
    ):
        time.sleep(ANSWER_SECONDS)
        heartbeat.beat()


def _oom_kills() -> int:
    """Processes that the kernel ended for memory in this cgroup; 0 if unknown."""
    try:
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        events = Path("/sys/fs/cgroup", group.lstrip("/"), "memory.events").read_text()
    except OSError:
        return 0
    fields = dict(line.split() for line in events.splitlines())
    return int(fields.get("oom_kill", 0))


def begin_record(spec: LaunchSpec, outcome: Outcome, started: datetime) -> Record:
    """What every record has, however its launch ended."""
    image = None
    if spec.image is not None:
        # Where the file lies says nothing about what was measured in it.
        image = {key: spec.image[key] for key in ("name", "recipe", "sha256")}
    return {
        "schema": RECORD_VERSION,
        **spec.about,
        "cell": spec.cell.to_dict(),
        "shape": spec.shape.to_dict(),
        "status": outcome.status,
        "reason": outcome.reason,
        "cause": outcome.cause,
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "marks": [*spec.marks, *([UNCLEAN_END] if outcome.parting else [])],
        "image": image,
        "job_id": job_id(),
        "purpose": spec.purpose,
        **({"parting": outcome.parting} if outcome.parting else {}),
    }


def finish(directory: Path, record: Record) -> None:
    """Write the record: from here on what was measured never changes again.

    Empty logs go before, because clusters limit the number of files. The heartbeat goes
    last: without it another host could take the launch for dead.
    """
    for log in directory.glob("*.log"):
        if log.stat().st_size == 0:
            log.unlink()
    directory.chmod(0o755)
    write_json(directory / "record.json", record)
    shutil.rmtree(directory / "work", ignore_errors=True)
