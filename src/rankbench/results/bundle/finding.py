"""What a verification finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        file: below the bundle, or the bundle itself.
        what: is wrong.
        where: in the file: a line, a column; empty where it is the whole file.
    """

    file: str
    what: str
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.file}, {self.where}" if self.where else self.file
        text = f"{place}: {self.what}"
        # Names may come from a manifest that somebody made: no terminal obeys them.
        return "".join(char if char.isprintable() else "?" for char in text)
