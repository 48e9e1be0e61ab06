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
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rankbench.environ import job_id
from rankbench.launch.launchers import Start, find_launcher
from rankbench.launch.launchers._hostfiles import hostfile
from rankbench.launch.process import processes
from rankbench.launch.process.classify import Ending, Finding, classify
from rankbench.launch.process.command import build_command, home_of, make_start
from rankbench.launch.process.gpu_usage import Devices, open_devices
from rankbench.launch.process.judge_gate import judge_gate
from rankbench.launch.process.processes import Heartbeat, Stop
from rankbench.launch.process.reports import (
    ProgressFiles,
    Reports,
    find_shared_gpu,
    merge_reports,
    merge_steps,
    read_reports,
    unite_phases,
)
from rankbench.launch.process.scratch import NoScratch, private_scratch
from rankbench.launch.process.transport import join, read_logs
from rankbench.launch.task import Task
from rankbench.record import RECORD_VERSION, UNCLEAN_END, Record, write_json
from rankbench.templates import fill_arguments, values_of

ROOM_FOR_A_RECORD = 64 * 1024  # bytes

# Purpose of a launch that runs a whole training script.
SCRIPT = "script"

HEARTBEAT_SECONDS = 1.0

# Seconds between two looks for the answers of ranks.
ANSWER_SECONDS = 0.2

# Seconds that a launcher has to end the other ranks after one has failed. Intel MPI
# does not end ranks that still wait for the failed one to join.
FAILURE_GRACE = 10.0

# Seconds that ranks have to end when all of them have reported.
LEAVING_GRACE = 60.0


def run_launch(task: Task, stop: Stop) -> Record:
    """Start the ranks, wait for them, end what is left, write the record.

    Raises:
        OSError: the record cannot be written (a full disk); the claim stays, and a
            later run replaces the launch.
    """
    started = datetime.now(UTC)
    try:
        with private_scratch(task):
            return _run_ranks(task, stop, started)
    except NoScratch as error:
        return refuse_launch(task, str(error), started)


def refuse_launch(task: Task, reason: str, started: datetime) -> Record:
    """The record of a launch that this site cannot start; a later run replaces it.

    Raises:
        OSError: it cannot be written.
    """
    record = begin_record(task, Finding("crashed", reason, "site"), started)
    finish(task.directory, record)
    return record


def _run_ranks(task: Task, stop: Stop, started: datetime) -> Record:
    clock = time.monotonic()
    work, hosts = task.work, task.hosts
    start = make_start(task)
    command = build_command(task, start)
    _write_inputs(task, start)
    steps = hosts.list_steps()
    progress = ProgressFiles(work / "progress", task.shape.ranks)
    devices = _find_devices(task, command.env)
    oom_before = _oom_kills()

    processes.adopt_orphans()
    log_path = task.directory / "launcher.log"
    with open(log_path, "wb") as log, _beating(task) as heartbeat:
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
        processes.await_elsewhere(child.pid)
        try:
            stopped = _wait(child, task, stop, heartbeat, progress, devices)
            where = progress.describe()
        finally:
            processes.end_first(child.pid, grace=hosts.end_within)
            processes.end_descendants()
            returncode = child.wait()
            job_ended = None if returncode == 0 else hosts.why_ended()
            # A job that ends also ends its steps, and leaves no time to wait.
            if job_ended is None:
                hosts.end_steps(steps)
            # Only now: what has ended on a host that is lost is known later.
            if returncode != 0 and (lost := hosts.find_lost()):
                log.write(f"lost the host {lost}\n".encode())

    text = log_path.read_text(errors="replace")
    reports = read_reports(work, task.shape.ranks)
    ending = Ending(
        launcher=task.cell.launcher,
        returncode=returncode,
        stopped=stopped,
        time_limit=task.time_limit,
        ranks=task.shape.ranks,
        reports=reports,
        exits=find_launcher(task.cell.launcher).read_exits(text),
        oom_kills=_oom_kills() - oom_before,
        progress=where,
        log=text,
        job_ended=job_ended,
        in_image=task.image is not None,
        shares_job=task.turn is not None,
    )
    finding = classify(ending)
    results: dict[str, Any] = {}
    if finding.status == "ok":
        # A script that is ended in its middle may end in any way.
        parting = finding.parting if task.cell.script is None else None
        finding, results = _collect(task, [reports[rank] for rank in sorted(reports)])
        finding = replace(finding, parting=parting)
    if finding.status == "crashed" and devices and (lost := devices.find_lost()):
        finding = replace(finding, reason=f"{lost}: {finding.reason}", cause="site")
    if finding.status != "ok":
        refuse_full_disk(task.directory)
    record = begin_record(task, finding, started)
    record["launcher"] = {
        "name": task.cell.launcher,
        "argv": command.argv,
        "env": command.env,
        "hosts": list(start.hosts),
    }
    record["job_id"] = hosts.find_job(text)
    record |= results
    if finding.status == "ok":
        record.setdefault("seconds", {})["launch"] = time.monotonic() - clock
        record["devices"] = devices.describe() if devices else None
    finish(task.directory, record)
    return record


def _write_inputs(task: Task, start: Start) -> None:
    """Write the files that launcher and ranks read at their start."""
    write_json(start.spec, _spec(task))
    start.hostfile.write_text(hostfile(start.slots))
    if task.image is not None:
        home_of(task).mkdir()
    if start.is_spread:
        start.secret.touch(0o600)
        start.secret.write_text(secrets.token_hex())


def _find_devices(task: Task, env: Mapping[str, str]) -> Devices | None:
    """Return the GPUs of this host to watch; None if the launch uses none here."""
    if task.cell.device != "cuda" or not task.hosts.is_here:
        return None
    return open_devices(task.shape, env)


def _beating(task: Task) -> Heartbeat:
    """The heartbeat of a launch, such that its hosts see it."""
    return Heartbeat(task.work / "heartbeat", shared=task.hosts.share_files)


def _collect(
    task: Task, reports: list[dict[str, Any]]
) -> tuple[Finding, dict[str, Any]]:
    """The results of the ranks of a launch that ended well."""
    if task.purpose == "gate":
        try:
            finding, numbers = judge_gate(reports)
        except ValueError as error:
            return Finding("crashed", str(error)), {}
        return finding, {"gate": numbers}
    if task.purpose == "profile":
        return Finding("ok"), {"profile": [report["profile"] for report in reports]}
    if not task.cell.oversubscribe and (shared := find_shared_gpu(reports)):
        return Finding("crashed", shared), {}
    unite_phases(task.work, reports)
    merged = merge_reports(reports, replica_ranks=task.shape.replica_ranks)
    seen = read_logs(task.directory, task.shape.ranks)
    merged["transport"] = join(merged["transport"], seen)
    merge_steps(task.directory / "work", task.shape.ranks, task.directory / "steps.npz")
    return Finding("ok"), merged


def _wait(
    child: subprocess.Popen[bytes],
    task: Task,
    stop: Stop,
    heartbeat: Heartbeat,
    progress: ProgressFiles,
    devices: Devices | None,
) -> str | None:
    """Wait until the launcher ends; returns why it was stopped, if it was."""
    deadline = time.monotonic() + task.time_limit
    reports = Reports(task.directory / "work", task.shape.ranks)
    failure = leaving = math.inf
    while True:
        heartbeat.beat()
        if devices and progress.all_in("training"):
            devices.sample()
        if processes.wait_for_exit(child.pid, HEARTBEAT_SECONDS):
            return None
        if reason := stop.reason():
            return reason
        reports.look()
        now = time.monotonic()
        if reports.has_failed:
            failure = min(failure, now)
        elif reports.are_complete:
            leaving = min(leaving, now)
        if now > failure + FAILURE_GRACE:
            return "failure"
        if now > leaving + LEAVING_GRACE:
            return "leaving"
        if now > deadline:
            _ask_ranks(heartbeat, progress, patience=task.heartbeat_grace / 2)
            return "timeout"


def _ask_ranks(
    heartbeat: Heartbeat, progress: ProgressFiles, *, patience: float
) -> None:
    """Ask the ranks where they are; wait for those that can still answer."""
    asked = heartbeat.ask()
    end = time.monotonic() + patience
    while time.monotonic() < end and not progress.have_answered(asked):
        time.sleep(ANSWER_SECONDS)
        heartbeat.beat()


def _spec(task: Task) -> dict[str, Any]:
    return {
        "purpose": task.purpose if task.cell.script is None else SCRIPT,
        **_own(task),
        "save_model": task.save_model,
        "collectives": task.collectives,
        "cell": task.cell.to_dict(),
        "shape": task.shape.to_dict(),
        "directory": str(task.directory),
        "data_dir": str(task.data_dir),
        "phases": task.phases,
        "threads": task.threads,
        "heartbeat_grace": task.heartbeat_grace,
    }


def _own(task: Task) -> dict[str, Any]:
    """What ranks are told of files of the user's own."""
    cell = task.cell
    if cell.script is not None:
        file = task.own["strategy"]
        words = fill_arguments(cell.script["args"], values_of(cell))
        return {
            "script": {"folder": str(file.parent), "file": file.name, "args": words}
        }
    names = {"model": cell.model, "data": cell.data, "strategy": cell.strategy}
    own = {kind: (names[kind], str(file)) for kind, file in task.own.items()}
    return {"own": own} if own else {}


def _oom_kills() -> int:
    """Processes that the kernel ended for memory in this cgroup; 0 if unknown."""
    try:
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        events = Path("/sys/fs/cgroup", group.lstrip("/"), "memory.events").read_text()
    except OSError:
        return 0
    fields = dict(line.split() for line in events.splitlines())
    return int(fields.get("oom_kill", 0))


def begin_record(task: Task, finding: Finding, started: datetime) -> Record:
    """What every record has, however its launch ended."""
    return {
        "schema": RECORD_VERSION,
        "experiment": task.experiment,
        "cell_id": task.cell_id,
        "cell_hash": task.cell_hash,
        "cell": task.cell.to_dict(),
        "shape": task.shape.to_dict(),
        "attempt": task.attempt,
        "launch": task.number,
        "wanted": task.wanted,
        "status": finding.status,
        "reason": finding.reason,
        "cause": finding.cause,
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "marks": [*task.marks, *([UNCLEAN_END] if finding.parting else [])],
        "code": dict(task.code),
        "image": _describe_image(task.image) if task.image else None,
        "job_id": job_id(),
        "purpose": task.purpose,
        "gate": None if task.gate is None else dict(task.gate),
        **({"parting": finding.parting} if finding.parting else {}),
        **({} if task.rule is None else {"rule": dict(task.rule)}),
        **({} if task.turn is None else {"round": dict(task.turn)}),
    }


def _describe_image(image: Mapping[str, Any]) -> dict[str, Any]:
    """Where the file lies says nothing about what was measured in it."""
    return {key: image[key] for key in ("name", "recipe", "sha256")}


def close_dead_claim(task: Task, *, started: datetime) -> Record:
    """The record of a launch whose supervisor died without writing one."""
    finding = Finding(
        "cancelled", "its supervisor died before the launch ended", "owner"
    )
    record = begin_record(task, finding, started)
    finish(task.directory, record)
    return record


def finish(directory: Path, record: Record) -> None:
    """Write the record: from here on what was measured never changes again.

    The heartbeat goes last: without it another host could take the launch for dead.
    """
    write_json(directory / "record.json", record)
    shutil.rmtree(directory / "work", ignore_errors=True)


def refuse_full_disk(directory: Path) -> None:
    """A failure on a full disk says nothing about the cell: leave no record of it."""
    if shutil.disk_usage(directory).free < ROOM_FOR_A_RECORD:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
