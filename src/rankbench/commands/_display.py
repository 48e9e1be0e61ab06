"""The progress of a run for people: a live display on a terminal, else plain lines."""

from __future__ import annotations

import re
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from rankbench.commands._watch import Event, Watched
from rankbench.launch.cell.pace import describe_result, minutes
from rankbench.project.status import State
from rankbench.record import Record

# Cells that are listed below the bar; more do not fit on a terminal.
LISTED = 12

_COLOURS = {"ok": "green", "unsupported": "dim", "not-run": "yellow"}


class Display(Protocol):
    """Where the progress of a run goes."""

    def show(self, event: Event, state: State | None) -> None:
        """Something has happened to a cell; `state` is that of one that is done."""

    def say(self, text: str, *, warning: bool = False) -> None:
        """A line of its own."""

    def refresh(self, waiting_for: str) -> None:
        """Time has passed; `waiting_for` is what Snakemake is at."""

    def close(self) -> None:
        """No more follows."""


class Plain:
    """A line for each event: for logs, and for programs that read along."""

    def __init__(self, console: Console, cells: list[Watched]) -> None:
        self._console, self._cells = console, cells

    def show(self, event: Event, state: State | None) -> None:
        if event.kind == "begun":
            return  # its end says the same, and more
        words = describe_event(event, state)
        done = sum(cell.done for cell in self._cells)
        self._print(f"[{done}/{len(self._cells)}] {event.cell.id}  {words}")

    def say(self, text: str, *, warning: bool = False) -> None:
        self._print(text)

    def refresh(self, waiting_for: str) -> None:
        pass

    def close(self) -> None:
        pass

    def _print(self, text: str) -> None:
        print(text, file=self._console.file, flush=True)


class Terminal:
    """Lines for cells that are done; below them those that are not, and a bar."""

    def __init__(self, console: Console, cells: list[Watched]) -> None:
        self._console, self._cells = console, cells
        self._waiting_for = ""
        self._seconds: list[float] = []
        self._bar = Progress(
            TextColumn("launches"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        total = sum(cell.wanted for cell in cells)
        kept = sum(min(cell.launched, cell.wanted) for cell in cells)
        self._task = self._bar.add_task("", total=total, completed=kept, left="")
        # It is drawn at each look. A thread that draws more often would disturb what
        # is measured on this machine.
        self._live = Live(
            self._render(), console=console, auto_refresh=False, transient=True
        )
        self._live.start()

    def show(self, event: Event, state: State | None) -> None:
        if event.kind == "ended" and event.record is not None:
            self._count(event.record)
            if event.record["status"] != "ok":
                words = describe_event(event, state)
                self.say(f"{event.cell.id}  {words}", warning=True)
        elif event.kind == "said":
            self.say(f"{event.cell.id}  {describe_event(event, None)}", warning=True)
        elif event.kind == "done" and state is not None:
            colour = _COLOURS.get(state.status, "red")
            words = describe_event(event, state)
            line = Text.assemble((f"{state.status:<12}", colour), f"{event.cell.id}  ")
            self._live.console.print(line + Text(words.removeprefix(state.status)))

    def say(self, text: str, *, warning: bool = False) -> None:
        self._live.console.print(Text(text, style="yellow" if warning else ""))

    def refresh(self, waiting_for: str) -> None:
        self._waiting_for = waiting_for
        self._live.update(self._render(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _count(self, record: Record) -> None:
        """Move the bar on; what is left takes the mean of the launches so far."""
        self._seconds.append(record.get("seconds", {}).get("launch", 0.0))
        done = sum(min(cell.launched, cell.wanted) for cell in self._cells)
        total = sum(cell.wanted for cell in self._cells)
        mean = sum(self._seconds) / len(self._seconds)
        at_once = max(1, sum(cell.running is not None for cell in self._cells))
        seconds = mean * (total - done) / at_once
        left = f"about {minutes(seconds)} left" if total > done else ""
        self._bar.update(self._task, completed=done, left=left)

    def _render(self) -> RenderableType:
        open_cells = [cell for cell in self._cells if not cell.done]
        # What runs comes first, also where there are many.
        open_cells.sort(key=lambda cell: cell.running is None)
        lines = [
            Text(f"{cell.running or cell.queued:<16}{cell.id}", no_wrap=True)
            for cell in open_cells[:LISTED]
        ]
        if len(open_cells) > LISTED:
            lines.append(Text(f"... and {len(open_cells) - LISTED} more", style="dim"))
        if self._waiting_for and not any(cell.running for cell in open_cells):
            lines.append(Text(self._waiting_for, style="dim", no_wrap=True))
        return Group(*lines, self._bar)


def describe_event(event: Event, state: State | None) -> str:
    """An event in words, without the cell that it is about."""
    # Reasons quote logs: a terminal must not obey what stands there.
    return re.sub(r"[\x00-\x1f\x7f]", "?", _describe(event, state))


def _describe(event: Event, state: State | None) -> str:
    if event.kind == "done" and state is not None:
        reason = f": {state.reason}" if state.reason else ""
        took = f", done in {minutes(event.cell.seconds)}" if event.cell.seconds else ""
        return f"{state.status}{reason}  {state.launches}{took}"
    if event.record is not None:
        took = event.record.get("seconds", {}).get("launch")
        end = f"  {took:.1f} s" if took else ""
        return f"{event.text}  {describe_result(event.record)}{end}"
    return event.text


def open_display(console: Console, cells: list[Watched], *, plain: bool) -> Display:
    """The display for where the output goes."""
    # Not `is_terminal`: FORCE_COLOR makes that true of a file.
    if plain or not console.file.isatty() or console.is_dumb_terminal:
        return Plain(console, cells)
    return Terminal(console, cells)
