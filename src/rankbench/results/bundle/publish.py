"""Publish results: write a bundle, and the site that shows it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rankbench.record import Layout
from rankbench.results.bundle.signatures import BundleSignature
from rankbench.results.bundle.write import write_bundle
from rankbench.results.numbers.result_set import read
from rankbench.results.read.archive import unpack
from rankbench.results.render.files import make_document
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
    signature: BundleSignature | None = None


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
        unpack(bundle, Path(place))
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
        downloads = _measure_files(beside)
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


def _measure_files(folder: Path) -> dict[str, int]:
    """Files below a folder, by name, and their bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


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
