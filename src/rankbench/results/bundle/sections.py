"""Whether the sections of a bundle follow from its plan and records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from rankbench.results.bundle.differences import (
    find_column_differences,
    find_differences,
    read_header,
)
from rankbench.results.bundle.finding import Checked, Finding
from rankbench.results.bundle.listing import Listed, list_ours
from rankbench.results.elements.section import Versions

# Pictures are not compared, but the csv files that they were drawn from.
_PICTURES = (".svg", ".png")

# Files for programs; the others are for readers.
_NUMBERS = (".csv", ".json")

# Pages that show several sections.
_PAGES = ("table.md", "table.html")

_MISSING = "is missing: it follows from the records"
_TOO_MUCH = "is no part of a bundle, or of nothing that was measured"

Files = Mapping[str, Set[str]]


@dataclass(frozen=True, slots=True)
class _Side:
    """The files of a section, in the bundle or made anew."""

    root: Path
    files: Set[str]

    def names(self, *, numbers: bool) -> set[str]:
        return {name for name in self.files if name.endswith(_NUMBERS) is numbers}

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()


def check_sections(
    root: Path, anew: Path, listed: Mapping[str, Listed], published: Files, made: Files
) -> Iterator[Checked]:
    """Compare the sections that a bundle lists with the same sections made anew.

    Args:
        root: the bundle.
        anew: the folder with what was made anew.
        listed: versions of the sections, as the bundle lists them.
        published: files of each section in the bundle.
        made: files of each section made anew.
    """
    ours_now = list_ours()
    strange = [
        name for name, one in listed.items() if not _is_ours(ours_now.get(name), one)
    ]
    for name, versions in listed.items():
        bundle, ours = _Side(root, published[name]), _Side(anew, made[name])
        if not bundle.files and not ours.files:
            continue  # The section has nothing to show.
        known = ours_now.get(name)
        if known is None:
            said = "not re-derived: this rankbench has no such section"
            yield Checked(name, rederived=False, notes=[said])
        elif not bundle.files and versions.numbers != known.numbers:
            continue  # The method of that version had no files for this section.
        elif versions.numbers in (known.numbers, *known.still):
            yield _check_all(name, versions, known, bundle, ours, strange)
        else:
            yield _check_kept(name, versions, known, bundle, ours)


def _is_ours(known: Versions | None, listed: Listed) -> bool:
    """Whether this rankbench shows a section as the bundle does."""
    return (
        known is not None
        and listed.numbers in (known.numbers, *known.still)
        and listed.presentation == known.presentation
    )


def _check_all(
    name: str,
    listed: Listed,
    known: Versions,
    bundle: _Side,
    ours: _Side,
    strange: list[str],
) -> Checked:
    """A section whose method this rankbench has."""
    findings = [*_compare(bundle, ours, numbers=True)]
    notes = []
    if listed.presentation != known.presentation:
        notes.append(
            f"presentation not compared: version {listed.presentation}, this is "
            f"{known.presentation}"
        )
    else:
        shown = [*_compare(bundle, _with_pictures(ours), numbers=False)]
        # A page shows several sections. If one of them cannot be made here, the page
        # cannot be compared.
        excused = {f.file for f in shown if strange and f.file in _PAGES}
        findings += [finding for finding in shown if finding.file not in excused]
        notes += [
            f"{page} not compared: it may show {', '.join(strange)}"
            for page in sorted(excused)
        ]
    return Checked(name, rederived=True, findings=findings, notes=notes)


def _with_pictures(ours: _Side) -> _Side:
    drawn = {
        file.removesuffix(".csv") + suffix
        for file in ours.files
        if file.startswith("plots/")
        for suffix in _PICTURES
    }
    return _Side(ours.root, ours.files | drawn)


def _compare(bundle: _Side, ours: _Side, *, numbers: bool) -> Iterator[Finding]:
    """Differences in the CSV files of a section, or in all its other files."""
    published, made = bundle.names(numbers=numbers), ours.names(numbers=numbers)
    for file in sorted(made - published):
        yield Finding(file, _MISSING)
    for file in sorted(published - made):
        yield Finding(file, _TOO_MUCH)
    for file in sorted(made & published):
        if not file.endswith(_PICTURES):
            yield from find_differences(file, bundle.read(file), ours.read(file))


def _check_kept(
    name: str, listed: Listed, known: Versions, bundle: _Side, ours: _Side
) -> Checked:
    """A section of another method: only columns that mean the same are compared."""
    kept = known.kept.get(listed.numbers, ())
    files = sorted(bundle.names(numbers=True) & ours.names(numbers=True))
    findings, others = [], set(bundle.names(numbers=True)) - set(files)
    for file in files:
        published = bundle.read(file)
        findings += find_column_differences(file, published, ours.read(file), kept)
        others |= set(read_header(published)) - set(kept)
    which = f"method {listed.numbers}, this is {known.numbers}"
    if kept and not others:
        note = f"{which}: compared in all its columns"
    elif kept:
        note = f"not re-derived: {which}; compared in the columns {', '.join(kept)}"
    else:
        note = f"not re-derived: {which}"
    notes = [note, "presentation not compared"]
    return Checked(name, bool(kept) and not others, findings, notes)
