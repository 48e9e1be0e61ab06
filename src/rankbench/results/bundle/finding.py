"""What a verification finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


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


@dataclass(frozen=True, slots=True)
class Checked:
    """A section of a bundle: was it made anew, and does it say the same?

    Attributes:
        name: of the section.
        rederived: whether all of its published numbers were made anew and compared.
        findings: what differs.
        notes: what could not be compared, and why.
    """

    name: str
    rederived: bool
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()


@dataclass(slots=True)
class Verification:
    """What a verification found out.

    Attributes:
        files: what is wrong with the bundle as such: its files and its records.
        sections: those that the bundle lists and that have anything to show.
        unlisted: sections that this rankbench has and the bundle does not list.
    """

    files: list[Finding]
    sections: list[Checked] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """Everything that is wrong; nothing if the bundle is verified."""
        return [*self.files, *(f for one in self.sections for f in one.findings)]

    @property
    def rederived(self) -> int:
        """How many sections were made anew in all their numbers."""
        return sum(one.rederived for one in self.sections)
