"""Write a bundle: the measurements, with or without names, and the results."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rankbench import __version__
from rankbench.plan import PLAN_VERSION
from rankbench.record import Layout, Record
from rankbench.results.bundle import contents
from rankbench.results.bundle.disguise import Disguise, describe_names
from rankbench.results.bundle.signatures import (
    BundleSignature,
    add_signature,
    check_signatures,
)
from rankbench.results.bundle.sums import check_sums, write_sums
from rankbench.results.numbers.result_set import read
from rankbench.results.read.archive import (
    SUFFIX,
    list_files,
    open_folder,
    pack,
    refuse_links,
)
from rankbench.results.read.records import read_checked
from rankbench.results.render.files import write_results


def write_bundle(
    layout: Layout,
    out: Path,
    *,
    anonymise: bool,
    key: Path | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> BundleSignature | None:
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
        write_crate(root, list_files(root)[0], plan, records, anonymised=anonymise)
        write_sums(root)
        signature = add_signature(root, key) if key else None
        if out.name.endswith(SUFFIX):
            pack(root, list_files(root)[0], out)
        else:
            shutil.copytree(root, out)
    return signature


def sign_bundle(bundle: Path, key: Path) -> BundleSignature:
    """Add a signature to a bundle, an archive or a folder; the others stay.

    Raises:
        ValueError: it is no bundle, it differs from its list of files, one of its
            signatures is wrong, or the key does not sign.
    """
    with open_folder(bundle) as root:
        before, faults = check_sums(root)
        faults = faults or check_signatures(root, before, None)[1]
        if faults:
            raise ValueError(
                f"{bundle} is not signed, because it has faults. {faults[0]} "
                "(`rankbench verify` lists all)"
            )
        signature = add_signature(root, key)
        names, _ = list_files(root)
        if root != bundle and names != before:
            pack(root, names, bundle)
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
    refuse_links(layout.root)
    plan = read_checked(layout.plan, "plan", version=PLAN_VERSION)
    cells = [cell["id"] for cell in plan["cells"]]
    records = contents.read_records(layout, cells)
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
        plan = read_checked(layout.plan, "plan", version=PLAN_VERSION)
        cells = [cell["id"] for cell in plan["cells"]]
        records = contents.read_records(layout, cells)
    contents.write_about(Layout(root), plan, records.values(), anonymised=anonymise)
    return plan, records
