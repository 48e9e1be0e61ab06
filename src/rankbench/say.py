"""The one door of everything that a command prints."""

from __future__ import annotations

import sys


def make_printable(text: str, kept: str = "") -> str:
    """A text of unknown origin, which the terminal must not obey."""
    return "".join(c if c.isprintable() or c in kept else "?" for c in text)


def say(*lines: object, aside: bool = False) -> None:
    """Print lines. What they quote of files and programs cannot control a terminal.

    Args:
        lines: each may have several lines of text.
        aside: to stderr, because stdout is for results.
    """
    # Text in lines and columns has breaks and tabs.
    safe = make_printable("\n".join(map(str, lines)), kept="\n\t")
    print(safe, file=sys.stderr if aside else sys.stdout, flush=aside)
