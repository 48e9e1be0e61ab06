"""Check a bundle: its files, and that its tables and plots follow from its records."""

from __future__ import annotations

import csv
import io
import itertools
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rankbench import __version__
from rankbench.own_files import files_below, hash_files
from rankbench.plan import PLAN_VERSION
from rankbench.record import Layout, Record, read_json
from rankbench.results.bundle import contents
from rankbench.results.bundle.crate import CRATE, OF_CRATE
from rankbench.results.bundle.manifest import (
    MANIFEST,
    Finding,
    check_manifest,
    hash_file,
    is_signature,
    list_files,
)
from rankbench.results.bundle.signatures import (
    BundleSignature,
    Signers,
    check_signatures,
)
from rankbench.results.numbers.result_set import read
from rankbench.results.read.archive import DamagedFileError, open_folder
from rankbench.results.read.schema import read_checked
from rankbench.results.render.files import MADE, write_results
from rankbench.results.sections import METHOD

# Pictures are not compared, but the csv files that they were drawn from.
_PICTURES = (".svg", ".png")

# Files for programs; the others are for readers.
_NUMBERS = (".csv", ".json")

_MISSING = "is missing: it follows from the records"
_TOO_MUCH = "is no part of a bundle, or of nothing that was measured"


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
    signatures: list[BundleSignature] = field(default_factory=list)


def verify_bundle(path: Path, signers: Signers | None = None) -> Verification:
    """Find all faults of a bundle, which is an archive or a folder.

    Nothing in it is executed. Files are written only in a temporary folder.

    Args:
        path: the bundle.
        signers: who may have signed it, and who must have.

    Raises:
        ValueError: it is not a bundle, or it is signed and there is no ssh-keygen.
        OSError: it cannot be read.
    """
    try:
        with open_folder(path) as root:
            if path.is_file() and not (root / MANIFEST).is_file():
                return Verification([Finding(MANIFEST, "is missing")])
            return _verify_folder(root, signers)
    except DamagedFileError as error:
        said = str(error).removeprefix(str(path)).removeprefix(":")
        return Verification([Finding(path.name, said.strip())])


def _verify_folder(root: Path, signers: Signers | None) -> Verification:
    names, odd = list_files(root)
    if odd:
        # A link may lead anywhere, so nothing behind it is read.
        return Verification(odd)
    found = Verification(check_manifest(root))
    found.signatures, faults = check_signatures(root, names, signers)
    found.findings += faults
    with tempfile.TemporaryDirectory(prefix="rankbench-verify-") as place:
        anew = Path(place) / "bundle"
        try:
            check_contents(root, anew, found)
        except ValueError as error:
            # The message begins with the name of a file, perhaps of the bundle.
            said = str(error)
            for folder in (anew, root):
                said = said.removeprefix(f"{folder}/")
            name, _, what = said.partition(" ")
            is_named = said != str(error)
            finding = Finding(name, what) if is_named else Finding("plan.json", said)
            found.findings.append(finding)
    return found


def check_contents(root: Path, anew: Path, into: Verification) -> None:
    """Check what follows from plan and records, and derive the numbers again.

    Args:
        root: the bundle.
        anew: a new folder for the files that are made.
        into: receives the findings.

    Raises:
        ValueError: the plan, a record or its steps are damaged; the message names it.
    """
    if not (root / "plan.json").is_file():
        return  # The check of the manifest has reported this file.
    plan = read_checked(root / "plan.json", "plan", version=PLAN_VERSION)
    layout = Layout(root)
    records = contents.read_records(layout, [cell["id"] for cell in plan["cells"]])
    raw = _copy_raw(root, anew, plan, records)
    about = _read_about(root)
    into.findings += _check_about(root, about, plan, records.values())
    ended = any(record.get("ended") for record in records.values())
    if ended and not (root / CRATE).is_file():
        into.findings.append(Finding(CRATE, _MISSING))
    files = {name for name in list_files(root)[0] if not is_signature(name)}
    _rederive(root, anew, files - raw - {*OF_CRATE}, raw, about, into)


def _rederive(
    root: Path,
    anew: Path,
    derived: Set[str],
    raw: Set[str],
    about: Record,
    into: Verification,
) -> None:
    """Make everything anew that this rankbench makes as its maker did, and compare."""
    maker = about[contents.MADE_WITH]
    version, method = maker["rankbench"], maker["method"]
    if version != __version__ or method != METHOD:
        # Any version of rankbench could have made a file of such a name.
        foreign = {
            name
            for name in derived
            if not any(
                fnmatchcase(name, one) and name.count("/") == one.count("/")
                for one in MADE
            )
        }
        into.findings += [Finding(name, _TOO_MUCH) for name in sorted(foreign)]
        derived = derived - foreign
    if method != METHOD:
        into.notes.append(
            f"numbers not derived again: rankbench {version} has made them by method "
            f"{method}, this is {__version__} with method {METHOD}: install rankbench "
            f"{version}, or unpack {contents.CODE}, and verify with that"
        )
        return
    write_results(read(Layout(anew), strict=True), draw=False)
    made = set(list_files(anew)[0]) - raw - {*OF_CRATE}
    if version == __version__:
        made |= {
            name.removesuffix(".csv") + suffix
            for name in made
            if name.startswith("plots/")
            for suffix in _PICTURES
        }
    else:
        into.notes.append(
            f"presentation not compared: rankbench {version} has made it, this is "
            f"{__version__}"
        )
        derived, made = (
            {name for name in names if name.endswith(_NUMBERS)}
            for names in (derived, made)
        )
    into.findings += [Finding(name, _MISSING) for name in sorted(made - derived)]
    into.findings += [Finding(name, _TOO_MUCH) for name in sorted(derived - made)]
    for name in sorted(made & derived):
        if not name.endswith(_PICTURES):
            published, ours = (root / name).read_bytes(), (anew / name).read_bytes()
            into.findings += find_differences(name, published, ours)
    into.rederived = True


def _copy_raw(
    root: Path, anew: Path, plan: Record, records: Mapping[str, Record]
) -> set[str]:
    """Copy the measurements; returns the names of files that are not derived."""
    layout = Layout(root)
    paths = list(contents.find_measured(layout, plan))
    for path in paths:
        target = anew / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    paths += contents.find_code(layout, plan, records.values())
    names = {path.relative_to(root).as_posix() for path in paths}
    names |= {f"{contents.IMAGES}{name}.json" for name in plan["images"]}
    names.add(layout.experiment.relative_to(root).as_posix())
    return names | {contents.CITATION, contents.CODE, contents.ABOUT, MANIFEST}


def _check_about(
    root: Path, about: Record, plan: Record, records: Collection[Record]
) -> Iterator[Finding]:
    """Check about.json, and files of the user's own, of which none is executed."""
    layout = Layout(root)
    for digest in contents.own_digests(plan, records):
        folder = layout.own(digest)
        name = folder.relative_to(layout.root).as_posix()
        if not folder.is_dir():
            yield Finding(name, "is missing: a cell was measured with these files")
        elif hash_files(files_below(folder)) != digest:
            yield Finding(name, "holds other files than those that were measured")
    needed = (root / contents.ABOUT, layout.experiment, root / contents.CITATION)
    for path in (*needed, root / contents.CODE):
        if not path.is_file():
            yield Finding(path.relative_to(root).as_posix(), "is missing")
            return
    for key, value in contents.describe(plan, records).items():
        if about.get(key) != value:
            yield Finding(contents.ABOUT, "does not follow from plan and records", key)
    wanted = plan["experiment"].get("sha256")
    if not about.get("anonymised") and wanted != hash_file(layout.experiment):
        said = "is not the file that the plan was made of"
        yield Finding(layout.experiment.relative_to(root).as_posix(), said)


def _read_about(root: Path) -> Record:
    """about.json.

    Raises:
        ValueError: it is missing or damaged; the message names it.
    """
    path = root / contents.ABOUT
    about: Any = read_json(path) if path.is_file() else None
    match about:
        case {"made_with": {"rankbench": str(), "method": int()}}:
            return dict(about)
    expected = "expected made_with.rankbench and made_with.method"
    raise ValueError(f"{path} is damaged: {expected}")


# --- where a published file differs from the same file made anew ----------------------

# Maximum number of differences that are listed for one file.
_MOST = 20
_WIDTH = 60


def find_differences(name: str, published: bytes, made: bytes) -> list[Finding]:
    """Lines, columns and cells that differ; none only if the bytes are the same."""
    if published == made:
        return []
    try:
        texts = published.decode(), made.decode()
        if name.endswith(".csv"):
            rows = [list(csv.reader(io.StringIO(text, newline=""))) for text in texts]
            places = _compare_rows(*rows)
        else:
            places = _compare_lines(*(text.splitlines() for text in texts))
    except (UnicodeDecodeError, csv.Error):
        return [Finding(name, "differs from the one made anew; it is no text")]
    found: list[Finding] = []
    for where, *sides in itertools.islice(places, _MOST):
        if None in sides:
            missing = sides[0] is None
            said = "is missing" if missing else "does not follow from the records"
            found.append(Finding(name, said, where))
        else:
            theirs, ours = (repr(side)[: _WIDTH + 2] for side in sides)
            found.append(Finding(name, f"published {theirs}, made anew {ours}", where))
    # The files may differ in the kind of line ends, for example.
    return found or [Finding(name, "differs from the one made anew in white space")]


# Where it is, and what is there in the published file and in the other; None if the
# line is missing.
_Difference = tuple[str, str | None, str | None]


def _compare_rows(
    published: Sequence[Sequence[str]], made: Sequence[Sequence[str]]
) -> Iterator[_Difference]:
    header = made[0] if made else []
    key = header.index("cell") if "cell" in header else 0
    for number, (left, right) in enumerate(itertools.zip_longest(published, made), 1):
        where = f"row {number}"
        if left is None or right is None:
            row = ",".join(left or right or [])[:_WIDTH]
            missing = left is None
            yield f"{where} ({row})", None if missing else row, row if missing else None
        elif len(left) != len(right):
            yield where, f"{len(left)} cells", f"{len(right)} cells"
        else:
            whose = f" of {right[key]}" if number > 1 else ""
            for title, theirs, ours in zip(header, left, right, strict=False):
                if theirs != ours:
                    yield f"{where}{whose}, column {title}", theirs, ours


def _compare_lines(
    published: Sequence[str], made: Sequence[str]
) -> Iterator[_Difference]:
    for number, (left, right) in enumerate(itertools.zip_longest(published, made), 1):
        if left is None or right is None:
            yield f"line {number}", left, right
        elif left != right:
            pairs = enumerate(zip(left, right, strict=False))
            shorter = min(len(left), len(right))
            place = next((i for i, (a, b) in pairs if a != b), shorter)
            start = max(0, place - _WIDTH // 3)
            yield (
                f"line {number}, character {place + 1}",
                left[start : start + _WIDTH],
                right[start : start + _WIDTH],
            )
