"""Check a bundle: its files, and that its tables and plots follow from its records."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rankbench.failures import find_failures
from rankbench.own_files import files_below, hash_files
from rankbench.record import Layout, Record, read_json
from rankbench.results.bundle import contents
from rankbench.results.bundle.about import ABOUT, ALWAYS, describe
from rankbench.results.bundle.crating import write_crate
from rankbench.results.bundle.finding import Finding, Verification
from rankbench.results.bundle.keys import is_signature
from rankbench.results.bundle.listing import (
    LISTING,
    Listed,
    assign,
    list_ours,
    read_listing,
)
from rankbench.results.bundle.manifest import (
    MANIFEST,
    check_manifest,
    hash_file,
    list_files,
)
from rankbench.results.bundle.sections import check_sections
from rankbench.results.bundle.signatures import check_signatures
from rankbench.results.bundle.signers import Signers
from rankbench.results.crate.links import check_links
from rankbench.results.crate.names import CRATE, CRATE_NAME, OF_CRATE
from rankbench.results.numbers.found import read
from rankbench.results.read.archive import Damaged, find_foreign, unpack
from rankbench.results.read.rows import READABLE_PLANS
from rankbench.results.read.schema import read_checked
from rankbench.results.render.files import write_results


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
    if path.is_dir():
        return _verify_folder(path, signers)
    if not path.is_file():
        raise ValueError(f"{path} does not exist: give a bundle")
    with tempfile.TemporaryDirectory(prefix="rankbench-verify-") as place:
        root = Path(place) / "bundle"
        root.mkdir()
        try:
            unpack(path, root)
        except Damaged as error:
            said = str(error).removeprefix(str(path)).removeprefix(":")
            return Verification([Finding(path.name, said.strip())])
        if not (root / MANIFEST).is_file():
            return Verification([Finding(MANIFEST, "is missing")])
        verified = _verify_folder(root, signers)
        names, _ = list_files(root)
        if not verified.findings and (member := find_foreign(path, root, names)):
            said = "the archive has other bytes here than rankbench writes"
            verified.files.append(Finding(path.name, said, f"at {member}"))
        return verified


def _verify_folder(root: Path, signers: Signers | None) -> Verification:
    names, odd = list_files(root)
    if odd:
        # A link may lead anywhere, so nothing behind it is read.
        return Verification(odd)
    found = Verification(check_manifest(root))
    check_signatures(root, names, signers, found)
    with tempfile.TemporaryDirectory(prefix="rankbench-verify-") as place:
        anew = Path(place) / "bundle"
        try:
            _rederive(root, anew, found)
        except ValueError as error:
            found.files.append(_locate(str(error), root, anew))
    return found


def _rederive(root: Path, anew: Path, into: Verification) -> None:
    """Make everything anew that follows from plan and records, and compare.

    Args:
        root: the bundle.
        anew: a new folder for the files that are made.
        into: receives the findings.

    Raises:
        ValueError: the plan, a record or its steps are damaged; the message names it.
    """
    if not (root / "plan.json").is_file():
        return  # The check of the manifest has reported this file.
    listed = read_listing(root)
    plan = read_checked(root / "plan.json", "plan", versions=READABLE_PLANS)
    cells = [cell["id"] for cell in plan["cells"]]
    layout = Layout(root)
    records = contents.read_records(layout, cells)
    raw = _copy_raw(root, anew, plan, records)
    _make(Layout(anew), listed)
    about = _read_about(root)
    files = {name for name in list_files(root)[0] if not is_signature(name)}
    into.files += [Finding(CRATE, what) for what in check_links(root)]
    published, rest = assign(files - raw, listed)
    made, _ = assign(set(list_files(anew)[0]) - raw, listed)
    if CRATE_NAME in listed:
        # It names all files. Those that are missing have findings of their own.
        expected = (files - rest).union(*made.values())
        anonymised = bool(about.get("anonymised"))
        write_crate(root, expected, anew, plan, records, anonymised=anonymised)
        made[CRATE_NAME] = {name for name in OF_CRATE if (anew / name).is_file()}
    into.unlisted += [name for name in list_ours() if name not in listed]
    into.sections += check_sections(root, anew, listed, published, made)
    for name in sorted(rest):
        said = "is no part of a bundle, or of nothing that was measured"
        into.files.append(Finding(name, said))
    into.files += _check_about(root, about, plan, records.values())
    into.files += _check_own(layout, plan, records.values())


def _make(layout: Layout, listed: dict[str, Listed]) -> None:
    """Write the listed sections and the data of the plots."""
    write_results(read(layout), only=listed, draw=False)


def _copy_raw(
    root: Path, anew: Path, plan: Record, records: Mapping[str, Record]
) -> set[str]:
    """Copy the measurements; returns the names of files that are not derived."""
    layout = Layout(root)
    cells = [cell["id"] for cell in plan["cells"]]
    paths = [*contents.find_measured(layout, cells), *find_failures(layout, plan)]
    for path in paths:
        target = anew / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    paths += contents.find_definitions(layout, records.values())
    paths += contents.find_own(layout, plan, records.values())
    names = {path.relative_to(root).as_posix() for path in paths}
    beside = ("json", *contents.BILLS)
    names |= {f"{contents.IMAGES}{n}.{end}" for n in plan["images"] for end in beside}
    names.add(layout.experiment.name)
    return names | {contents.CITATION, ABOUT, LISTING, MANIFEST}


def _check_own(
    layout: Layout, plan: Record, records: Collection[Record]
) -> Iterator[Finding]:
    """Check that files of the user's own are those that the cells name; run none."""
    for digest in contents.own_digests(plan, records):
        folder = layout.own(digest)
        name = folder.relative_to(layout.root).as_posix()
        if not folder.is_dir():
            yield Finding(name, "is missing: a cell was measured with these files")
        elif hash_files(files_below(folder)) != digest:
            yield Finding(name, "holds other files than those that were measured")


def _read_about(root: Path) -> dict[str, Any]:
    """about.json; {} if it is missing or damaged, which other checks report."""
    about = read_json(root / ABOUT) if (root / ABOUT).is_file() else None
    return about if isinstance(about, dict) else {}


def _check_about(
    root: Path, about: dict[str, Any], plan: Record, records: Collection[Record]
) -> Iterator[Finding]:
    layout = Layout(root)
    for path in (root / ABOUT, layout.experiment, root / contents.CITATION):
        if not path.is_file():
            yield Finding(path.name, "is missing")
            return
    if not about:
        yield Finding(ABOUT, "is damaged: not a JSON object")
        return
    for key, value in describe(plan, records).items():
        # An older bundle lacks keys that were added later.
        if (key in about or key in ALWAYS) and about.get(key) != value:
            yield Finding(ABOUT, "does not follow from plan and records", key)
    wanted = plan["experiment"].get("sha256")
    if not about.get("anonymised") and wanted != hash_file(layout.experiment):
        said = "is not the file that the plan was made of"
        yield Finding(layout.experiment.name, said)


def _locate(said: str, root: Path, anew: Path) -> Finding:
    """A finding from an error, with the name of the file in the bundle."""
    for place in (anew, root):
        if said.startswith(f"{place}/"):
            name, _, what = said.removeprefix(f"{place}/").partition(" ")
            return Finding(name, what)
    return Finding("plan.json", said)
