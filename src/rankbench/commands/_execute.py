"""Runs Snakemake as a child process: shows its progress, stops it, judges its end."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import IO

from rankbench.commands._base import argv_for, how_to_continue, require_workflow
from rankbench.commands._options import FINDING, INTERRUPTED, OK
from rankbench.commands._quiet import wait_until_quiet
from rankbench.invocation import shown
from rankbench.project.jobs import find_pending, jobs_of
from rankbench.project.run import Run
from rankbench.project.start import BEGUN, begin
from rankbench.project.status import (
    State,
    describe_queue,
    find_jobs,
    find_state,
    why_not_run,
)
from rankbench.say import say
from rankbench.schedulers import scheduler_of, seconds_between_looks

# Seconds between looks at the files; longer on a cluster to spare its file system.
LOOK, LOOK_ON_CLUSTER = 0.5, 10.0
ASK = 30.0  # seconds between looks at the queue
LAST_LINES = 15
# Signals within so many seconds are one: `timeout` sends two.
ONE_SIGNAL = 2.0


def execute(run: Run, argv: Sequence[str], arguments: argparse.Namespace) -> int:
    """Run Snakemake to its end, and show what the jobs say.

    Args:
        run: the run, not begun yet; it is begun here, so that Snakemake need not.
        argv: the command.
        arguments: of the command of rankbench; wait_quiet: minutes to wait for other
            programs.

    Returns:
        The exit status: 0 success, 1 a cell or Snakemake failed, 130 interrupted.

    Raises:
        ValueError: another run uses the result directory, or packages are missing.
    """
    # The table is made last: missing packages for results must show up now, not then.
    require_workflow(run, "results")
    if find_pending(run) and not scheduler_of(run.plan.site).has_hosts:
        wait_until_quiet(60 * arguments.wait_quiet)
    begin(run)
    log = run.layout.log(f"run-{datetime.now(UTC):%Y%m%dT%H%M%S}")
    log.parent.mkdir(parents=True, exist_ok=True)
    say(f"$ {shown(argv)}", f"  log: {log}", aside=True)
    logs = [Tail(run.layout.log(name)) for name in jobs_of(run)]
    with (
        open(log, "w") as file,
        start_snakemake(argv, file, run.lock) as (child, signals),
    ):
        _follow(run, child, logs, Tail(log))
    assert run.lock is not None
    run.lock.close()
    if signals:
        name = signal.Signals(signals[0]).name
        said = f"stopped by {name}: finished launches are kept. To continue:"
        say(said, f"  {how_to_continue(arguments)}", aside=True)
        return INTERRUPTED
    # Say why Snakemake failed, if it did.
    status = child.returncode
    failed = any(state.has_failed for state in states_of(run).values())
    reasons = {why_not_run(run.layout, cell) for cell in run.feasible} - {None}
    for reason in reasons:
        say(f"not measured: {reason}", aside=True)
    if status and not failed and not reasons:
        lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        said = f"Snakemake failed (exit status {status}). The end of {log}:"
        say(said, *(f"  {line}" for line in lines), aside=True)
    return FINDING if status or failed else OK


def run_target(run: Run, arguments: argparse.Namespace, target: str) -> int:
    """Make a target by Snakemake, and show its output; return 0, 1 or 130."""
    require_workflow(run)
    return run_command(argv_for(arguments, target))


def run_command(argv: Sequence[str]) -> int:
    """Run a command to its end, as `run_target`.

    Its output goes to stderr, because stdout is for results.
    """
    say(f"$ {shown(argv)}", aside=True)
    with start_snakemake(argv, subprocess.PIPE) as (child, signals):
        assert child.stdout is not None
        for line in child.stdout:
            say(line.decode(errors="replace").rstrip("\n"), aside=True)
        child.wait()
    if signals:
        return INTERRUPTED
    return FINDING if child.returncode else OK


class Tail:
    """Reads the lines that are appended to a file from now on.

    Snakemake removes the log of an earlier job before it starts the job again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._place = 0, 0
        if path.exists():
            self._file, self._place = path.stat().st_ino, path.stat().st_size

    def read(self) -> list[str]:
        """Return new lines that are complete and not blank."""
        new = b""
        with suppress(FileNotFoundError), open(self._path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._file or found.st_size < self._place:
                self._file, self._place = found.st_ino, 0
            file.seek(self._place)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._place += len(new)
        lines = new.decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()]


def _follow(
    run: Run,
    child: subprocess.Popen[bytes],
    logs: Sequence[Tail],
    output: Tail,
) -> None:
    """Show what jobs and builds of images say, until Snakemake ends."""
    # Imported here, so that listing the commands needs no package of the results.
    from rankbench.results.elements.text import replace_ids, shorten

    names, _ = shorten([*run.plan.cells])
    has_queue = scheduler_of(run.plan.site).has_queue
    changed, asked, queue = time.monotonic(), 0.0, ""
    ended = False
    while not ended:
        with suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_ON_CLUSTER if has_queue else LOOK)
            ended = True
        # Builds of images explain a late first launch.
        for line in output.read():
            if line.partition("  ")[0] in run.plan.images:
                say(line, aside=True)
        now = time.monotonic()
        for line in [line for log in logs for line in log.read()]:
            changed = now
            say(replace_ids(line, names), aside=True)
        if has_queue and now - asked >= seconds_between_looks(ASK, now - changed):
            before, asked = queue, now
            with suppress(ValueError):  # Slurm may answer the next time.
                jobs = find_jobs(run.plan, run.layout, Path())
                queue = describe_queue(jobs.values())
            if queue not in ("", before):
                say(queue, aside=True)


def states_of(run: Run) -> dict[str, State]:
    """Return the states of the chosen cells of a run."""
    return {cell.id: find_state(run.plan, run.layout, cell) for cell in run.chosen}


def own_cache(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return a variable with a cache folder for Snakemake; {} if the user's will do."""
    place = Path(environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        place = place.expanduser()
        place.mkdir(parents=True, exist_ok=True)
        if os.access(place, os.W_OK):
            return {}
    except (OSError, RuntimeError):
        pass  # no home, or one that cannot be written to
    return {"XDG_CACHE_HOME": str(Path(".snakemake/cache").absolute())}


@contextmanager
def start_snakemake(
    argv: Sequence[str], output: IO[str] | int, lock: FileIO | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """Start Snakemake. On SIGINT, SIGTERM or SIGHUP, it stops and cancels its jobs.

    Args:
        argv: the command.
        output: file for its output, or `subprocess.PIPE`.
        lock: that of a run which has begun: Snakemake holds it, and reads its plan.

    Yields:
        The process, and the list of signals received so far.
    """
    came: list[int] = []
    child: subprocess.Popen[bytes] | None = None
    begun = {} if lock is None else {BEGUN: str(os.getpid())}

    def interrupt() -> None:
        if child is not None:
            with suppress(ProcessLookupError):
                # As Ctrl-C does: after other signals, Snakemake waits for its jobs.
                os.killpg(child.pid, signal.SIGINT)

    passed = -ONE_SIGNAL

    def pass_on(number: int, _: object) -> None:
        nonlocal passed
        came.append(number)
        # A second one would end Snakemake before it has written the table.
        if time.monotonic() - passed >= ONE_SIGNAL:
            passed = time.monotonic()
            interrupt()

    # A signal that is ignored here, such as SIGHUP under nohup, stays ignored. But the
    # child would inherit an ignored SIGINT and not stop at it. So SIGINT then gets a
    # handler that does nothing: the child starts without its parent's handlers.
    before: dict[int, Callable | int | None] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        ignored = signal.getsignal(number) is signal.SIG_IGN
        if not ignored or number == signal.SIGINT:
            handler = (lambda *_: None) if ignored else pass_on
            before[number] = signal.signal(number, handler)
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # In its own group, Snakemake gets each signal once: from the handler here.
            process_group=0,
            env=os.environ | own_cache() | begun,
            pass_fds=() if lock is None else (lock.fileno(),),
        )
        if came:  # a signal came before the child started
            interrupt()
        yield child, came
    finally:
        if child is not None and child.poll() is None:
            child.wait()
        for name, previous in before.items():
            signal.signal(name, previous)
