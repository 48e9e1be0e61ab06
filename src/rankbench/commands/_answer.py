"""The answer for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankbench.results.advice.brief import in_brief, to_lines
from rankbench.results.advice.sentences import in_sentences
from rankbench.results.elements.names import replace_ids, shorten

# Of more workloads, the first ones are printed.
_MOST_WORKLOADS = 4

WIDTH = 120  # if the output is not a terminal


def open_console() -> Console:
    """A console of the terminal's width."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def print_brief(answer: Mapping[str, Any]) -> None:
    """Print an answer, as `answer.json` has it, in at most fifteen lines."""
    print(*to_lines(in_brief(dict(answer))), sep="\n")


def print_details(
    answer: Mapping[str, Any],
    cells: Sequence[str],
    *,
    only: Collection[str] | None = None,
) -> None:
    """Print all that an answer says, in sentences.

    Args:
        answer: as `answer.json` has it.
        cells: all ids of the plan; short names leave out what they share.
        only: terms to print; None for all.
    """
    console = open_console()
    workloads = answer["workloads"]
    shown: dict[str, Any] = {**answer, "workloads": workloads[:_MOST_WORKLOADS]}
    names, _ = shorten(cells)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    notes = [n for n in in_sentences(shown) if only is None or n.term in only]
    for note in notes:
        table.add_row(Text(note.term), Text(replace_ids(note.text, names)))
    if notes:
        console.print(table)
    else:
        print("nothing is open: no launch would settle anything")
    if len(workloads) > _MOST_WORKLOADS:
        more = len(workloads) - _MOST_WORKLOADS
        print(f"{more} more workloads: answer.md and answer.json have them all")
