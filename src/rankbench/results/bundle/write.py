"""Publish results: write a bundle, and the site that shows it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rankbench import __version__
from rankbench.plan import PLAN_VERSION
from rankbench.record import Layout, Record
from rankbench.results.bundle import contents, signatures
from rankbench.results.bundle.disguise import Disguise, describe_names
from rankbench.results.numbers.result_set import read
from rankbench.results.read import archive
from rankbench.results.read.records import read_checked
from rankbench.results.render.files import make_document, write_results
from rankbench.results.render.formats import to_html

BUNDLE, SITE = "results.tar.zst", "site"

# The site shows only the end of a longer log.
LONGEST_LOG = 64 * 1024

# Files beside the page, and the plots that it shows. All others are in the bundle.
DOWNLOADS = (
    *("answer.*", "table.csv", "table.md", "table.tex", "sections/*.csv"),
    "plots/*.svg",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The files that were written, and their sizes.

    Attributes:
        bundle: everything behind the table, as one file; the site has a copy.
        page: the file to open.
        cells: how many cells the page shows.
        bundle_bytes: size of the bundle.
        bytes: size of the site without logs and bundle.
        signature: of the bundle, if it is signed.
    """

    bundle: Path
    page: Path
    cells: int
    bundle_bytes: int
    bytes: int
    signature: signatures.BundleSignature | None = None


def publish(
    layout: Layout,
    *,
    anonymise: bool = False,
    key: Path | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Publication:
    """Write R/results.tar.zst, and R/site/ from its contents; old ones are replaced.

    Args:
        layout: the result directory R.
        anonymise: whether names of hosts, users, jobs and paths become placeholders.
        key: signs the bundle; None: it is not signed.
        tell: receives lines about names and secrets in it, before it is written.

    Raises:
        ValueError: as `write_bundle`.
    """
    bundle = layout.root / BUNDLE
    signature = write_bundle(layout, bundle, anonymise=anonymise, key=key, tell=tell)
    with tempfile.TemporaryDirectory(prefix=".publish-", dir=layout.root) as place:
        archive.unpack(bundle, Path(place))
        site = write_site(Layout(Path(place)), bundle, layout.root / SITE)
    return replace(site, signature=signature)


def write_site(layout: Layout, bundle: Path, folder: Path) -> Publication:
    """Write the site of a bundle.

    It is written beside and then renamed: there is always one complete site.

    Args:
        layout: the bundle, unpacked.
        bundle: the bundle.
        folder: the folder of the site; it is replaced.

    Raises:
        ValueError: the plan, a record or its steps are damaged; the message names it.
    """
    found = read(layout, strict=True)
    document = make_document(found)
    with tempfile.TemporaryDirectory(prefix=".site-", dir=folder.parent) as place:
        beside = Path(place) / folder.name
        beside.mkdir()
        sources = [file for one in DOWNLOADS for file in sorted(layout.root.glob(one))]
        for source in sources:
            target = beside / source.relative_to(layout.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        shutil.copyfile(bundle, beside / bundle.name)
        files = sorted(path for path in beside.rglob("*") if path.is_file())
        downloads = {
            path.relative_to(beside).as_posix(): path.stat().st_size for path in files
        }
        names = {
            summary.id: _copy_logs(layout, summary.id, beside) for summary in found.rows
        }
        page = beside / "index.html"
        text = to_html(document, found, {"downloads": downloads, "logs": names})
        page.write_text(text, encoding="utf-8")
        page_bytes = page.stat().st_size
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
    bundle_bytes = downloads[bundle.name]
    return Publication(
        bundle=bundle,
        page=folder / page.name,
        cells=len(found.rows),
        bundle_bytes=bundle_bytes,
        bytes=sum(downloads.values()) + page_bytes - bundle_bytes,
    )


def _copy_logs(layout: Layout, cell: str, beside: Path) -> list[str]:
    """Copy the logs of a cell and its launches; of long ones the end. Their names."""
    names = []
    for log in (layout.log(cell), *sorted((layout.records / cell).glob("**/*.log"))):
        if data := log.read_bytes() if log.exists() else b"":
            name = log.relative_to(layout.root).as_posix()
            left_out = max(0, len(data) - LONGEST_LOG)
            said = f"[the first {left_out} bytes are left out]\n" if left_out else ""
            (beside / name).parent.mkdir(parents=True, exist_ok=True)
            (beside / name).write_bytes(said.encode() + data[left_out:])
            names.append(name)
    return names


# --- the bundle -----------------------------------------------------------------------


def write_bundle(
    layout: Layout,
    out: Path,
    *,
    anonymise: bool,
    key: Path | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> signatures.BundleSignature | None:
    """Write the bundle of a result directory, with tables and plots made anew.

    Args:
        layout: the result directory; nothing in it is changed.
        out: an archive, which is replaced, if its name ends in ``.tar.zst``; else a new
            folder.
        anonymise: whether names of people and machines become placeholders.
        key: signs the bundle, see `sign`; None: it is not signed.
        tell: receives lines about names and secrets in it, before it is written.

    Returns:
        The signature, if there is one.

    Raises:
        ValueError: there is a link in the directory, the plan, a record or its steps
            are damaged, the experiment file is not the one that was measured, or the
            key does not sign.
        FileExistsError: the folder is there already.
    """
    from rankbench.results.bundle.crate import write_crate

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=out.parent) as place:
        root = Path(place) / "bundle"
        root.mkdir()
        plan, records = _collect(layout, root, anonymise=anonymise)
        for line in describe_names(Layout(root), anonymised=anonymise):
            tell(line)
        write_results(read(Layout(root), strict=True))
        contents.write_page(root)
        write_crate(
            root, archive.list_files(root)[0], plan, records, anonymised=anonymise
        )
        signatures.write_sums(root)
        signature = signatures.add_signature(root, key) if key else None
        if out.name.endswith(archive.SUFFIX):
            archive.pack(root, archive.list_files(root)[0], out)
        else:
            shutil.copytree(root, out)
    return signature


def sign_bundle(bundle: Path, key: Path) -> signatures.BundleSignature:
    """Add a signature to a bundle, an archive or a folder; the others stay.

    Raises:
        ValueError: it is no bundle, it differs from its list of files, one of its
            signatures is wrong, or the key does not sign.
    """
    with archive.open_folder(bundle) as root:
        before, faults = signatures.check_sums(root)
        faults = faults or signatures.check_signatures(root, before, None)[1]
        if faults:
            raise ValueError(
                f"{bundle} is not signed, because it has faults. {faults[0]} "
                "(`rankbench verify` lists all)"
            )
        signature = signatures.add_signature(root, key)
        names, _ = archive.list_files(root)
        if root != bundle and names != before:
            archive.pack(root, names, bundle)
    return signature


def _collect(
    layout: Layout, root: Path, *, anonymise: bool
) -> tuple[Record, dict[str, Record]]:
    """Copy all files that do not follow from other files.

    Returns:
        Plan and records as they are in the bundle.
    """
    if not layout.plan.exists():
        raise ValueError(f"{layout.plan} is missing: no experiment was run here")
    archive.refuse_links(layout.root)
    plan, records = _read(layout)
    disguise = Disguise.of(layout, plan) if anonymise else None
    # In an order that does not depend on the disk.
    paths = [
        *contents.find_measured(layout, plan),
        *contents.find_code(layout, plan, records.values()),
    ]
    named = [(path.relative_to(layout.root).as_posix(), path) for path in paths]
    name = layout.experiment.relative_to(layout.root).as_posix()
    experiment = name, contents.find_experiment(layout, plan)
    for name, source in (experiment, *named, *contents.find_sidecars(plan)):
        target = root / (disguise.in_identity(name) if disguise else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        # These files are identified by their bytes, which must not change.
        if disguise and not name.startswith((contents.DEFINITIONS, contents.OWN)):
            disguise.in_file(source, target)
        else:
            shutil.copyfile(source, target)
    contents.pack_code(root / contents.CODE.format(__version__))
    if disguise:
        layout = Layout(root)
        plan, records = _read(layout)
    contents.write_about(Layout(root), plan, records.values(), anonymised=anonymise)
    return plan, records


def _read(layout: Layout) -> tuple[Record, dict[str, Record]]:
    plan = read_checked(layout.plan, "plan", version=PLAN_VERSION)
    cells = [cell["id"] for cell in plan["cells"]]
    return plan, contents.read_records(layout, cells)
