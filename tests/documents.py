"""Files and commands that a document shows, in its order."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"`([\w./-]+\.(?:py|yaml))`")


@dataclass
class Step:
    """A file to write, or a command to run, with the lines that it prints."""

    file: str | None
    text: str
    shown: list[str] = field(default_factory=list)


def read_steps(text: str) -> list[Step]:
    """Files and commands of a document.

    A block of code goes into the file that the text before it named last.
    """
    steps: list[Step] = []
    for block in _BLOCK.finditer(text):
        kind, body = block[1], block[2]
        if kind in ("python", "yaml"):
            named = _FILE_NAME.findall(text[: block.start()])
            steps.append(Step(named[-1], body))
        elif kind == "console":
            for line in body.splitlines():
                if line.startswith("$ "):
                    steps.append(Step(None, line[2:]))
                else:
                    steps[-1].shown.append(line)
    return steps
