"""Snakemake as a child process: watched, ended in good order, and judged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from rich.console import Console

from rankbench.commands._display import Display, open_display
from rankbench.commands._watch import Watch
from rankbench.commands.base import (
    FINDING,
    INTERRUPTED,
    OK,
    require_workflow,
)
from rankbench.invocation import shown
from rankbench.matrix.site import SLURM
from rankbench.project import Run, find_pending
from rankbench.project.status import State, find_jobs, find_state, find_verdict

# Seconds between looks at the files. A shared file system is not to be worn out.
LOOK, LOOK_ON_CLUSTER = 0.5, 10.0
LAST_LINES = 15


def execute(run: Run, argv: Sequence[str], *, rest: str, verbose: bool) -> int:
    """Run Snakemake to its end, and show what becomes of the cells.

    Args:
        run: what it was asked for; nothing has begun yet.
        argv: the command.
        rest: the command that measures what an interruption leaves.
        verbose: also what Snakemake says itself.

    Returns:
        The exit status: 0 well, 1 a cell or Snakemake failed, 130 interrupted.

    Raises:
        ValueError: another run is at work in the result directory, or packages are
            missing.
    """
    # Those of the results, too: the table comes last, and is not to fail then.
    require_workflow(run, "results")
    run.lock.take()
    run.lock.release()
    log = run.layout.root / "logs" / f"run-{datetime.now(UTC):%Y%m%dT%H%M%S}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True, highlight=False)
    print(f"$ {shown(argv)}\n  log: {log}", file=sys.stderr, flush=True)
    watch = Watch(run.layout, find_pending(run), _kept(run))
    display = open_display(console, watch.cells, plain=verbose)
    with open(log, "w+") as file, _start(argv, file) as (child, signals):
        try:
            _follow(run, child, watch, display, log, verbose=verbose)
        finally:
            display.close()
    if signals:
        name = signal.Signals(signals[0]).name
        _tell(f"ended by {name}: what was measured is kept. To continue:\n  {rest}")
        return INTERRUPTED
    return _conclude(run, child.returncode, log)


def run_target(argv: Sequence[str]) -> int:
    """Run a command to its end, on this terminal; returns 0, 1 or 130.

    What it prints goes to stderr: stdout is for facts.
    """
    print(f"$ {shown(argv)}", file=sys.stderr, flush=True)
    with _start(argv, sys.stderr) as (child, signals):
        child.wait()
    if signals:
        return INTERRUPTED
    return FINDING if child.returncode else OK


def _follow(
    run: Run,
    child: subprocess.Popen[bytes],
    watch: Watch,
    display: Display,
    log: Path,
    *,
    verbose: bool,
) -> None:
    """Until Snakemake ends."""
    on_cluster = run.plan.site["scheduler"] == SLURM
    pause = LOOK_ON_CLUSTER if on_cluster else LOOK
    tail, looked = _Tail(log), 0.0
    while True:
        ended = child.poll() is not None
        for line in tail.read():
            if verbose or _is_for_people(run, line):
                display.say(line)
        if ended or time.monotonic() - looked >= pause:
            looked = time.monotonic()
            if on_cluster:
                _ask_queue(run, watch)
            for event in watch.look():
                cell = run.plan.cells[event.cell.id]
                done = event.kind == "done"
                state = find_state(run.plan, run.layout, cell) if done else None
                display.show(event, state)
        display.refresh(tail.last)
        if ended:
            return
        time.sleep(min(LOOK, pause))


def _conclude(run: Run, status: int, log: Path) -> int:
    """What the end of Snakemake means, in words and as an exit status."""
    failed = [cell for cell, state in states_of(run).items() if state.has_failed]
    if status and not failed:
        lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        _tell(f"Snakemake failed (exit status {status}). The end of {log}:")
        _tell("\n".join(f"  {line}" for line in lines))
    return FINDING if status or failed else OK


def states_of(run: Run) -> dict[str, State]:
    """The states of the cells that a run was about."""
    return {cell.id: find_state(run.plan, run.layout, cell) for cell in run.chosen}


class _Tail:
    """The lines that are added to a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, 0
        self.last = ""

    def read(self) -> Iterator[str]:
        with open(self._path, "rb") as file:
            file.seek(self._place)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._place += len(new)
        for line in new.decode(errors="replace").splitlines():
            if line.strip():
                self.last = line.strip()
                yield line


def _is_for_people(run: Run, line: str) -> bool:
    """Whether it says why minutes pass before any cell begins: images, lost jobs."""
    of_image = line.partition("  ")[0] in run.plan.images
    return of_image or "of an earlier run are still in the queue" in line


def _kept(run: Run) -> dict[str, int]:
    """Launches that are there of the attempts that are wanted."""
    again = {cell.id for cell in run.rerun}
    verdicts = {
        cell.id: find_verdict(run.plan, run.layout, cell)
        for cell in run.feasible
        if cell.id not in again
    }
    return {cell: verdict.ok for cell, verdict in verdicts.items() if verdict}


def _ask_queue(run: Run, watch: Watch) -> None:
    """Note which cells wait in Slurm's queue, and for what."""
    try:
        jobs = find_jobs(run.plan, Path())
    except ValueError:
        return  # it may answer the next time
    for cell in watch.cells:
        job = jobs.get(cell.id)
        cell.queued = job.describe() if job else "queued"


@contextmanager
def _start(
    argv: Sequence[str], output: IO[str]
) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """Start Snakemake. SIGINT, SIGTERM and SIGHUP end it, and it ends its jobs.

    Args:
        argv: the command.
        output: gets what it prints.

    Yields:
        The process, and the signals that have come so far.
    """
    came: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def interrupt() -> None:
        if child is not None:
            try:
                # As Ctrl-C: Snakemake waits for its jobs after any other signal.
                os.killpg(child.pid, signal.SIGINT)
            except ProcessLookupError:
                pass

    def pass_on(number: int, _: object) -> None:
        came.append(number)
        interrupt()

    # An ignored signal, such as SIGHUP under nohup, stays ignored here. The child would
    # inherit that, and Snakemake would not stop at SIGINT: so nothing is ignored by the
    # time when it starts. A handler does not outlive its start.
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
            stderr=None if output is sys.stderr else subprocess.STDOUT,
            # Of its own: each signal reaches Snakemake and its jobs once, from here.
            process_group=0,
        )
        if came:  # before there was a child
            interrupt()
        yield child, came
    finally:
        if child is not None and child.poll() is None:
            child.wait()
        for name, previous in before.items():
            signal.signal(name, previous)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
