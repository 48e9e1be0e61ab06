"""Runs Snakemake as a child process: shows its progress, stops it, judges its end."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from rich.console import Console

from rankbench.commands._base import how_to_continue, require_workflow
from rankbench.commands._display import Plain, open_display
from rankbench.commands._options import FINDING, INTERRUPTED, OK
from rankbench.commands._watch import Tail, Watch
from rankbench.invocation import shown
from rankbench.project import BEGUN, Run, begin, find_pending
from rankbench.project.status import (
    State,
    find_jobs,
    find_state,
    find_verdict,
    why_not_run,
)
from rankbench.say import say
from rankbench.schedulers import scheduler_of, seconds_between_looks

# Seconds between looks at the files; longer on a cluster to spare its file system.
LOOK, LOOK_ON_CLUSTER = 0.5, 10.0
ASK = 30.0  # seconds between looks at the queue
LAST_LINES = 15


def execute(run: Run, argv: Sequence[str], arguments: argparse.Namespace) -> int:
    """Run Snakemake to its end, and show the progress of the cells.

    Args:
        run: the run, not begun yet; it is begun here, so that Snakemake need not.
        argv: the command.
        arguments: of the command of rankbench; verbose: whether to show the output of
            Snakemake as well.

    Returns:
        The exit status: 0 success, 1 a cell or Snakemake failed, 130 interrupted.

    Raises:
        ValueError: another run uses the result directory, or packages are missing.
    """
    # The table is made last: missing packages for results must show up now, not then.
    require_workflow(run, "results")
    begin(run)
    log = run.layout.root / "logs" / f"run-{datetime.now(UTC):%Y%m%dT%H%M%S}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True, highlight=False)
    say(f"$ {shown(argv)}\n  log: {log}", aside=True)
    again = {cell.id for cell in run.rerun}
    # How many launches of each requested attempt exist already.
    kept = {
        cell.id: verdict.ok
        for cell in run.feasible
        if cell.id not in again
        and (verdict := find_verdict(run.plan, run.layout, cell))
    }
    watch = Watch(run.layout, find_pending(run), kept)
    display = open_display(console, watch.cells, plain=arguments.verbose)
    with (
        open(log, "w+") as file,
        start_snakemake(argv, file, run.lock.handle) as (child, signals),
    ):
        try:
            _follow(run, child, watch, display, log, verbose=arguments.verbose)
        finally:
            display.close()
    run.lock.release()
    if signals:
        name = signal.Signals(signals[0]).name
        rest = how_to_continue(arguments)
        say(
            f"stopped by {name}: finished launches are kept. To continue:\n  {rest}",
            aside=True,
        )
        return INTERRUPTED
    # Say why Snakemake failed, if it did.
    status = child.returncode
    failed = any(state.has_failed for state in states_of(run).values())
    reasons = {why_not_run(run.layout, cell) for cell in run.feasible} - {None}
    for reason in reasons:
        say(f"not measured: {reason}", aside=True)
    if status and not failed and not reasons:
        lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        say(f"Snakemake failed (exit status {status}). The end of {log}:", aside=True)
        say("\n".join(f"  {line}" for line in lines), aside=True)
    return FINDING if status or failed else OK


def run_target(argv: Sequence[str]) -> int:
    """Run a command to its end on this terminal; return 0, 1 or 130.

    Its output goes to stderr, because stdout is for results.
    """
    say(f"$ {shown(argv)}", aside=True)
    with start_snakemake(argv, sys.stderr) as (child, signals):
        child.wait()
    if signals:
        return INTERRUPTED
    return FINDING if child.returncode else OK


def _follow(
    run: Run,
    child: subprocess.Popen[bytes],
    watch: Watch,
    display: Plain,
    log: Path,
    *,
    verbose: bool,
) -> None:
    """Show the progress of the cells until Snakemake ends."""
    on_cluster = scheduler_of(run.plan.site).has_queue
    pause = LOOK_ON_CLUSTER if on_cluster else LOOK
    tail, looked, asked = Tail(log), 0.0, 0.0
    changed = time.monotonic()
    while True:
        ended = child.poll() is not None
        for line in tail.read():
            # Builds of images and faults explain a late first cell.
            of_image = line.partition("  ")[0] in run.plan.images
            if verbose or of_image or _FOR_PEOPLE in line:
                display.say(line)
        if ended or time.monotonic() - looked >= pause:
            looked = time.monotonic()
            quiet = looked - changed
            if on_cluster and looked - asked >= seconds_between_looks(ASK, quiet):
                asked = looked
                # Slurm may answer the next time.
                with suppress(ValueError):
                    jobs = find_jobs(run.plan, run.layout, Path())
                    for waiting in watch.cells:
                        job = jobs.get(waiting.id)
                        waiting.queued = job.describe() if job else "queued"
            for event in watch.look():
                changed = looked
                cell = run.plan.cells[event.cell.id]
                done = event.kind == "done"
                state = find_state(run.plan, run.layout, cell) if done else None
                display.show(event, state)
        display.refresh(tail.last)
        if ended:
            return
        time.sleep(min(LOOK, pause))


def states_of(run: Run) -> dict[str, State]:
    """Return the states of the chosen cells of a run."""
    return {cell.id: find_state(run.plan, run.layout, cell) for cell in run.chosen}


# Part of lines that explain why a cell is not measured.
_FOR_PEOPLE = "  not measured: "


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
    argv: Sequence[str], output: IO[str], lock: int | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """Start Snakemake. On SIGINT, SIGTERM or SIGHUP, it stops and cancels its jobs.

    Args:
        argv: the command.
        output: file for its output.
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

    def pass_on(number: int, _: object) -> None:
        came.append(number)
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
            stderr=None if output is sys.stderr else subprocess.STDOUT,
            # In its own group, Snakemake gets each signal once: from the handler here.
            process_group=0,
            env=os.environ | own_cache() | begun,
            pass_fds=() if lock is None else (lock,),
        )
        if came:  # a signal came before the child started
            interrupt()
        yield child, came
    finally:
        if child is not None and child.poll() is None:
            child.wait()
        for name, previous in before.items():
            signal.signal(name, previous)
