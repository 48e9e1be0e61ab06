"""Check a bundle: its files, and that its tables and plots follow from its records."""

from __future__ import annotations

import csv
import importlib.metadata
import itertools
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from rankbench import __version__
from rankbench.own_files import files_below, hash_file, hash_files
from rankbench.plan import PLAN_VERSION
from rankbench.record import BILL, Layout, Record, read_json
from rankbench.results.bundle import contents, signatures
from rankbench.results.bundle.signatures import BundleSignature, Finding, Signers
from rankbench.results.numbers.result_set import read
from rankbench.results.read.archive import DamagedFileError, list_files, open_folder
from rankbench.results.read.records import read_checked
from rankbench.results.render.files import MADE, write_results
from rankbench.results.sections import METHOD

# Pictures are not compared, but the numbers that they were drawn from.
_PICTURES = (".svg", ".png")
# Files for programs; the others are for readers.
_NUMBERS = (".csv", ".json")

# A browser that opens such a picture would obey it. No plot has any of these, or links
# but to its own parts; a zero byte is of another encoding, which would hide them.
_ACTIVE = re.compile(
    rb"\0|<!ENTITY|<([\w-]+:)?(script|foreignobject|iframe|animate\w*|set|handler)\b|"
    rb"\son\w+\s*=|href\s*=\s*(?![\"'](#|data:image/png))",
    re.IGNORECASE,
)
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)

# Inputs of which nothing is derived.
_UNBOUND = re.compile(r"(^|/)(code|images)/|\.(log|gz)$")

_VERSION = re.compile(r"\d[\w.+-]{0,40}", re.ASCII)

_MISSING = "is missing: it follows from the records"
_TOO_MUCH = "is no part of a bundle, or of nothing that was measured"


@dataclass(slots=True)
class Verification:
    """The result of a verification.

    Attributes:
        findings: all faults.
        rederived: whether its numbers were derived again and compared.
        why: why they were not, or not what shows them; "" if both were.
        unchecked: kinds of files whose contents follow from nothing that was checked.
        signatures: all signature files of the bundle.
    """

    findings: list[Finding] = field(default_factory=list)
    rederived: bool = False
    why: str = ""
    unchecked: list[str] = field(default_factory=list)
    signatures: list[BundleSignature] = field(default_factory=list)

    def is_verified(self, *, strict: bool = False) -> bool | None:
        """Whether the bundle is what it says; None if that could not be derived."""
        if self.findings:
            return False
        return True if self.rederived and not (strict and self.why) else None


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
            if path.is_file() and not (root / signatures.SUMS).is_file():
                return Verification([Finding(signatures.SUMS, "is missing")])
            return verify_folder(root, signers)
    except DamagedFileError as error:
        said = str(error).removeprefix(str(path)).removeprefix(":")
        return Verification([Finding(path.name, said.strip())])


def verify_folder(root: Path, signers: Signers | None = None) -> Verification:
    """Find all faults of an unpacked bundle.

    Raises:
        ValueError: as `verify_bundle`.
    """
    names, findings = signatures.check_sums(root)
    found = Verification(findings)
    if not names:
        return found
    found.signatures, faults = signatures.check_signatures(root, names, signers)
    found.findings += faults
    with tempfile.TemporaryDirectory(prefix="rankbench-verify-") as anew:
        try:
            check_contents(root, Path(anew), found)
        except ValueError as error:
            # The message begins with the name of a file, perhaps of the bundle.
            said = str(error).removeprefix(f"{root}/")
            name, _, what = said.partition(" ")
            is_named = said != str(error)
            finding = Finding(name, what) if is_named else Finding("plan.json", said)
            found.findings.append(finding)
    return found


def check_contents(root: Path, anew: Path, into: Verification) -> None:
    """Check what follows from plan and records, and derive the numbers again.

    Args:
        root: the bundle.
        anew: an empty folder for the files that are made.
        into: receives the findings.

    Raises:
        ValueError: the plan, a record or its steps are damaged; the message names it.
    """
    if not (root / "plan.json").is_file():
        return  # The check of all files has reported this one.
    plan = read_checked(root / "plan.json", "plan", version=PLAN_VERSION)
    layout = Layout(root)
    records = contents.read_records(layout, [cell["id"] for cell in plan["cells"]])
    about = _read_about(root)
    maker = about[contents.MADE_WITH]
    version, method = maker["rankbench"], maker["method"]
    raw = _find_raw(layout, plan, records.values(), version)
    into.findings += _check_about(layout, about, plan, records.values())
    names = {
        n
        for n in list_files(root)[0]
        if n != signatures.SUMS and not signatures.is_signature(n)
    }
    for name in sorted(names):
        if name.endswith(".svg"):
            drawn = _COMMENT.sub(b"", (root / name).read_bytes())
            if _ACTIVE.search(drawn):
                into.findings.append(Finding(name, "has a script, which no plot has"))
    made: set[str] = set()
    pictures: set[str] = set()
    if method == METHOD:
        found = read(layout, strict=True)
        document = write_results(found, into=Layout(anew), plots=False)
        into.rederived = True
        pictures = {
            f"plots/{drawing.name}{suffix}"
            for drawing in document.drawings
            for suffix in _PICTURES
        }
        made = set(list_files(anew)[0])
    elif version == __version__:
        said = f"method {method!r:.20}, but rankbench {version} has method {METHOD}"
        into.findings.append(Finding(contents.ABOUT, said, contents.MADE_WITH))
    derived = names - raw
    if into.rederived and version == __version__:
        from rankbench.results.bundle.crate import write_crate

        hidden = bool(about.get("anonymised"))
        contents.write_page(anew)
        described = sorted((names & raw) | {*list_files(anew)[0]} | pictures)
        write_crate(anew, described, plan, records, anonymised=hidden)
        made = set(list_files(anew)[0])
        ours = importlib.metadata.version("rocrate")
        if maker.get("rocrate") != ours:
            into.why = f"another rocrate than {ours} has made {contents.CRATE}"
            made.discard(contents.CRATE)
            derived.discard(contents.CRATE)
        missing, too_much = (made | pictures) - derived, derived - made - pictures
    else:
        too_much = set(filter(_is_foreign, derived))
        numbers = {n for n in derived - too_much if n.endswith(_NUMBERS)}
        numbers.discard(contents.CRATE)
        made = {name for name in made if name.endswith(_NUMBERS)}
        missing = made - numbers
        if into.rederived:
            too_much |= numbers - made
            into.why = f"rankbench {version} shows its numbers, this is {__version__}"
        else:
            into.why = (
                f"rankbench {version} has made its numbers by method {method}, this is "
                f"{__version__} with method {METHOD}: install rankbench {version}, or "
                f"the bundle's {contents.CODE.format(version)}, and verify with that"
            )
    into.findings += [Finding(name, _MISSING) for name in sorted(missing)]
    into.findings += [Finding(name, _TOO_MUCH) for name in sorted(too_much)]
    for name in sorted(made & derived):
        published, again = (root / name).read_bytes(), (anew / name).read_bytes()
        into.findings += find_differences(name, published, again)
    # As they were published: nothing says what must be in them.
    free = {name for name in raw & names if _UNBOUND.search(name)}
    if about.get("anonymised"):
        free.add(layout.experiment.relative_to(root).as_posix())
    into.unchecked = _group((names - made - raw) | free)


def _is_foreign(name: str) -> bool:
    """Whether no version of rankbench makes a file of such a name."""
    return not any(
        fnmatchcase(name, one) and name.count("/") == one.count("/")
        for one in (*MADE, contents.CITATION, contents.CRATE)
    )


def _group(names: Collection[str]) -> list[str]:
    """Files in few words: `plots/*.svg (6)`, `work/code/* (36)`."""
    counts: Counter[str] = Counter()
    for path in map(PurePosixPath, names):
        above, is_work = path.parent.parts, path.parts[0] == "work"
        kind = f"*{path.suffix * (not is_work)}" if above else path.name
        counts["/".join([*above[: 1 + is_work], kind])] += 1
    return [f"{n} ({counts[n]})" if "*" in n else n for n in sorted(counts)]


def _find_raw(
    layout: Layout, plan: Record, records: Collection[Record], version: str
) -> set[str]:
    """The names of files that are not derived, in a bundle that is complete."""
    paths = {*contents.find_measured(layout, plan), layout.experiment}
    paths.update(contents.find_code(layout, plan, records))
    names = {path.relative_to(layout.root).as_posix() for path in paths}
    for end in (".json", BILL):
        names |= {f"{contents.IMAGES}{name}{end}" for name in plan["images"]}
    return names | {contents.CODE.format(version), contents.ABOUT}


def _check_about(
    layout: Layout, about: Record, plan: Record, records: Collection[Record]
) -> Iterator[Finding]:
    """Check about.json, and files of the user's own, of which none is executed."""
    root = layout.root
    for digest in contents.own_digests(plan, records):
        folder = layout.own(digest)
        name = folder.relative_to(root).as_posix()
        if not folder.is_dir():
            yield Finding(name, "is missing: a cell was measured with these files")
        elif hash_files(files_below(folder)) != digest:
            yield Finding(name, "holds other files than those that were measured")
    needed = (root / contents.ABOUT, layout.experiment, root / contents.CITATION)
    code = contents.CODE.format(about[contents.MADE_WITH]["rankbench"])
    for path in (*needed, root / code):
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
        case {"made_with": {"rankbench": str(version), "method": int()}}:
            if _VERSION.fullmatch(version):
                return dict(about)
    expected = "expected made_with.rankbench, a version, and made_with.method"
    raise ValueError(f"{path} is damaged: {expected}")


# --- where a published file differs from the same file made anew ----------------------

# Maximum number of differences that are listed for one file.
_MOST = 20
_WIDTH = 60


def find_differences(name: str, published: bytes, made: bytes) -> list[Finding]:
    """Lines that differ, in a table the first column; none only if no byte does.

    `difflib` would take the square of the time.
    """
    if published == made:
        return []
    is_table = name.endswith(".csv")
    try:
        texts = [one.decode().splitlines() for one in (published, made)]
        sides = [[*csv.reader(t)] if is_table else [[one] for one in t] for t in texts]
    except (UnicodeDecodeError, csv.Error):
        return [Finding(name, "differs from the one made anew; it is no text")]
    header, found = (sides[1] or [[]])[0], []
    for number, (left, right) in enumerate(itertools.zip_longest(*sides), 1):
        if left == right:
            continue
        where = f"{'row' if is_table else 'line'} {number}"
        if left is None or right is None:
            what = "is missing" if left is None else "does not follow from the records"
        else:
            pairs = enumerate(itertools.zip_longest(left, right, fillvalue=""))
            differ = ((at, both) for at, both in pairs if both[0] != both[1])
            # One of them may only have more columns, which are empty.
            place, pair = next(differ, (min(len(left), len(right)), ("", "")))
            if is_table and place < len(header):
                row = dict(zip(header, right, strict=False))
                of = f" of {row['cell']}" if "cell" in row else ""
                where += f"{of}, column {header[place]}"
            # Long lines are shown from where they begin to differ.
            both = zip(*pair, strict=False)
            alike = itertools.takewhile(lambda ends: ends[0] == ends[1], both)
            start = max(0, len([*alike]) - _WIDTH // 3)
            theirs, ours = (one[start : start + _WIDTH] for one in pair)
            what = f"published {theirs!r}, made anew {ours!r}"
            if pair == ("", ""):
                what = f"published {len(left)} columns, made anew {len(right)}"
        found.append(Finding(name, what, where))
    # The files may differ in the kind of line ends, for example.
    said = "differs from the one made anew in white space"
    return found[:_MOST] or [Finding(name, said)]
