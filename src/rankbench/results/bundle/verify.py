"""Check a bundle: its files, and that its tables and plots follow from its records."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankbench.record import Layout, Record, read_json
from rankbench.results import plots, summary, table
from rankbench.results.bundle import contents
from rankbench.results.bundle.about import ABOUT, describe
from rankbench.results.bundle.archive import Damaged, find_foreign, unpack
from rankbench.results.bundle.differences import find_differences
from rankbench.results.bundle.finding import Finding
from rankbench.results.bundle.manifest import (
    MANIFEST,
    check_manifest,
    hash_file,
    list_files,
)
from rankbench.results.load import PLAN_VERSION
from rankbench.results.schema import read_checked

# A picture is the drawing of a csv file of the same name: that one is compared.
_PICTURES = (".svg", ".png")


def verify_bundle(path: Path) -> list[Finding]:
    """Everything that is wrong with a bundle, an archive or a folder; [] if nothing is.

    Nothing that it holds is executed, and nothing is written but in a temporary folder.

    Raises:
        ValueError: it is no bundle at all.
        OSError: it cannot be read.
    """
    if path.is_dir():
        return _verify_folder(path)
    if not path.is_file():
        raise ValueError(f"{path} does not exist: give a bundle")
    with tempfile.TemporaryDirectory(prefix="rankbench-verify-") as place:
        root = Path(place) / "bundle"
        root.mkdir()
        try:
            unpack(path, root)
        except Damaged as error:
            said = str(error).removeprefix(str(path)).removeprefix(":")
            return [Finding(path.name, said.strip())]
        if not (root / MANIFEST).is_file():
            return [Finding(MANIFEST, "is missing")]
        findings = _verify_folder(root)
        names, _ = list_files(root)
        if not findings and (member := find_foreign(path, root, names)):
            said = "the archive has other bytes here than rankbench writes"
            findings.append(Finding(path.name, said, f"at {member}"))
        return findings


def _verify_folder(root: Path) -> list[Finding]:
    if odd := list_files(root)[1]:
        return odd  # a link may lead anywhere: nothing is read
    findings = check_manifest(root)
    with tempfile.TemporaryDirectory(prefix="rankbench-verify-") as place:
        anew = Path(place) / "bundle"
        try:
            for finding in _recompute(root, anew):
                findings.append(finding)
        except ValueError as error:
            findings.append(_locate(str(error), root, anew))
    return findings


def _recompute(root: Path, anew: Path) -> Iterator[Finding]:
    """Make everything anew that follows from plan and records, and compare.

    Raises:
        ValueError: the plan, a record or its steps are damaged; the message names it.
    """
    if not (root / "plan.json").is_file():
        return  # the manifest has told of it
    plan = read_checked(root / "plan.json", "plan", version=PLAN_VERSION)
    cells = [cell["id"] for cell in plan["cells"]]
    raw = _copy_raw(root, anew, plan, cells)
    found = summary.read(Layout(anew))
    table.build(Layout(anew), found)
    plots.write_data(Layout(anew), found)
    published = set(list_files(root)[0]) - raw
    made = set(list_files(anew)[0]) - raw
    drawn = {
        name.removesuffix(".csv") + suffix
        for name in made
        if name.startswith("plots/")
        for suffix in _PICTURES
    }
    for name in sorted((made | drawn) - published):
        yield Finding(name, "is missing: it follows from the records")
    for name in sorted(published - made - drawn):
        yield Finding(name, "is no part of a bundle, or of nothing that was measured")
    for name in sorted(made & published):
        yield from find_differences(
            name, (root / name).read_bytes(), (anew / name).read_bytes()
        )
    yield from _check_about(root, plan, cells)


def _copy_raw(root: Path, anew: Path, plan: Record, cells: Sequence[str]) -> set[str]:
    """Copy what was measured; names of all that follows from nothing else."""
    layout = Layout(root)
    records = contents.read_records(layout, cells)
    paths = [*contents.find_measured(layout, cells)]
    for path in paths:
        target = anew / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    paths += contents.find_definitions(layout, records)
    names = {path.relative_to(root).as_posix() for path in paths}
    names |= {f"{contents.IMAGES}{name}.json" for name in plan["images"]}
    names.add(layout.experiment.name)
    return names | {contents.CITATION, ABOUT, MANIFEST}


def _check_about(root: Path, plan: Record, cells: Sequence[str]) -> Iterator[Finding]:
    layout = Layout(root)
    for path in (root / ABOUT, layout.experiment, root / contents.CITATION):
        if not path.is_file():
            yield Finding(path.name, "is missing")
            return
    about = read_json(root / ABOUT)
    if not isinstance(about, dict):
        yield Finding(ABOUT, "is damaged: not a JSON object")
        return
    for key, value in describe(layout, cells).items():
        if about.get(key) != value:
            yield Finding(ABOUT, "does not follow from plan and records", key)
    wanted = plan["experiment"].get("sha256")
    if not about.get("anonymised") and wanted != hash_file(layout.experiment):
        said = "is not the file that the plan was made of"
        yield Finding(layout.experiment.name, said)


def _locate(said: str, root: Path, anew: Path) -> Finding:
    """What an error says, with the file's name in the bundle."""
    for place in (anew, root):
        if said.startswith(f"{place}/"):
            name, _, what = said.removeprefix(f"{place}/").partition(" ")
            return Finding(name, what)
    return Finding("plan.json", said)
