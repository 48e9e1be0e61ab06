"""The findings of a verification."""

from __future__ import annotations

from dataclasses import dataclass, field


def make_printable(text: str) -> str:
    """A text of unknown origin, which the terminal must not obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


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
        return make_printable(text)


@dataclass(frozen=True, slots=True)
class Signed:
    """A signature file of a bundle.

    Attributes:
        file: below the bundle.
        key_type: for example `ssh-ed25519`; None if the file is no signature.
        fingerprint: of the key, as `ssh-keygen -l` prints it; None likewise.
        principals: whose key it is, if the signature is valid; None if nobody asked.
        fault: why it does not count; None if it does.
    """

    file: str
    key_type: str | None = None
    fingerprint: str | None = None
    principals: tuple[str, ...] | None = None
    fault: str | None = None


@dataclass(slots=True)
class Verification:
    """The result of a verification.

    Attributes:
        findings: all faults; none if the bundle is verified.
        rederived: whether its numbers were derived again and compared.
        notes: what was not compared, and why.
        signatures: all signature files of the bundle.
    """

    findings: list[Finding]
    rederived: bool = False
    notes: list[str] = field(default_factory=list)
    signatures: list[Signed] = field(default_factory=list)
