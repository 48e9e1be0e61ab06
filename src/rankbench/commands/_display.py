"""The progress of a run: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

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

from rankbench.commands._watch import Event, WatchedCell
from rankbench.project.status import State
from rankbench.record import Record, describe_result, make_printable, minutes
from rankbench.say import say

# Number of unfinished cells that are listed; more do not fit on a terminal.
LISTED = 12

_COLOURS = {"ok": "green", "unsupported": "dim", "not-run": "yellow"}


class Plain:
    """Prints a line for each event, for logs and for programs."""

    def __init__(self, console: Console, cells: list[WatchedCell]) -> None:
        self._console, self._cells = console, cells

    def show(self, event: Event, state: State | None) -> None:
        """Show an event of a cell; `state` is the cell's state if it is done."""
        if event.kind == "begun":
            return  # the line at its end says more
        words = describe_event(event, state)
        done = sum(cell.done for cell in self._cells)
        self.say(f"[{done}/{len(self._cells)}] {event.cell.id}  {words}")

    def say(self, text: str, *, warning: bool = False) -> None:
        """Show a line of text."""
        say(text, aside=True)

    def refresh(self, waiting_for: str) -> None:
        """Update the display; `waiting_for` is Snakemake's last line."""

    def close(self) -> None:
        """End the display."""


class Terminal(Plain):
    """Prints a line per finished cell; below are unfinished cells and a bar."""

    def __init__(self, console: Console, cells: list[WatchedCell]) -> None:
        super().__init__(console, cells)
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
        # Drawn only in `refresh`: a thread that redraws more often would disturb
        # measurements on this machine.
        self._live = Live(
            self._render(), console=console, auto_refresh=False, transient=True
        )
        self._live.start()

    def show(self, event: Event, state: State | None) -> None:
        words, record = describe_event(event, state), event.record
        if event.kind == "done" and state is not None:
            colour = _COLOURS.get(state.status, "red")
            line = Text.assemble((f"{state.status:<12}", colour), f"{event.cell.id}  ")
            self._live.console.print(line + Text(words.removeprefix(state.status)))
        elif event.kind == "said" or (record and record["status"] != "ok"):
            self.say(f"{event.cell.id}  {words}", warning=True)
        if record:
            self._count(record)

    def say(self, text: str, *, warning: bool = False) -> None:
        self._live.console.print(Text(text, style="yellow" if warning else ""))

    def refresh(self, waiting_for: str) -> None:
        self._waiting_for = waiting_for
        self._live.update(self._render(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _count(self, record: Record) -> None:
        """Advance the bar; estimate the time left from the mean launch so far."""
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
        # Running cells come first, so that a long list shows them.
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
    """Return a description of an event, without the name of its cell."""
    words = event.text
    if event.kind == "done" and state is not None:
        reason = f": {state.reason}" if state.reason else ""
        took = f", done in {minutes(event.cell.seconds)}" if event.cell.seconds else ""
        words = f"{state.status}{reason}  {state.launches}{took}"
    elif event.record is not None:
        seconds = event.record.get("seconds", {}).get("launch")
        end = f"  {seconds:.1f} s" if seconds else ""
        words = f"{event.text}  {describe_result(event.record)}{end}"
    # Reasons quote logs: a terminal must not obey control characters in them.
    return make_printable(words)


def open_display(console: Console, cells: list[WatchedCell], *, plain: bool) -> Plain:
    """Return a live display if the output is a terminal, or else a plain one."""
    # Not `is_terminal`: with FORCE_COLOR it is true for a file, too.
    if plain or not console.file.isatty() or console.is_dumb_terminal:
        return Plain(console, cells)
    return Terminal(console, cells)
