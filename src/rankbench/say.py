"""The one door of everything that a command prints."""

from __future__ import annotations

import sys

# Text in lines and columns has these.
_LAYOUT = "\n\t"


def say(*lines: object, aside: bool = False) -> None:
    """Print lines. What they quote of files and programs cannot control a terminal.

    Args:
        lines: each may have several lines of text.
        aside: to stderr, because stdout is for results.
    """
    text = "\n".join(map(str, lines))
    safe = "".join(
        char if char.isprintable() or char in _LAYOUT else "?" for char in text
    )
    print(safe, file=sys.stderr if aside else sys.stdout, flush=aside)
