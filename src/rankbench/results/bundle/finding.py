"""The findings of a verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a bundle.

    Attributes:
        file: below the bundle, or the bundle itself.
        what: the fault.
        where: line and column in the file; empty if it is about the whole file.
    """

    file: str
    what: str
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.file}, {self.where}" if self.where else self.file
        text = f"{place}: {self.what}"
        # Names come from a manifest of unknown origin: the terminal must not obey them.
        return "".join(char if char.isprintable() else "?" for char in text)


@dataclass(frozen=True, slots=True)
class Checked:
    """A section of a bundle, compared with the same section made anew.

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
    """The result of a verification.

    Attributes:
        files: faults of the files and records of the bundle.
        sections: the listed sections that have anything to show.
        unlisted: sections that this rankbench has and the bundle does not list.
    """

    files: list[Finding]
    sections: list[Checked] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All faults; none if the bundle is verified."""
        return [*self.files, *(f for one in self.sections for f in one.findings)]

    @property
    def rederived(self) -> int:
        """The number of sections whose numbers were all made anew."""
        return sum(one.rederived for one in self.sections)
