"""The files of a result directory that are published."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import shutil
from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import rankbench
from rankbench.assets import find_asset, list_code
from rankbench.failures import find_failures
from rankbench.own_files import files_below, hash_file
from rankbench.record import (
    BILL,
    GATE,
    PROFILE,
    RECORD_VERSION,
    Layout,
    Record,
    complete,
    numbered,
    read_json,
    write_json,
)
from rankbench.results.read.records import read_checked
from rankbench.results.sections import METHOD

PAGE, CRATE = "README.md", "ro-crate-metadata.json"

# Of a bundle, for people who have nothing but this folder; it follows the results.
_PAGE = """
## Check this bundle
This folder is a bundle of [rankbench](CITATION.cff): everything that is needed to check
its tables.

```sh
sha256sum --check --quiet SHA256SUMS   # no file was changed
ssh-keygen -Y verify -n rankbench -f allowed_signers -I WHO \\
    -s signatures/FILE.sig < SHA256SUMS   # WHO has signed it
python3 -m venv ../check
../check/bin/pip install './{code}[results]'
../check/bin/rankbench verify .   # the tables follow from the records
```

If the bundle is signed, a file `allowed_signers` of yours has a line with WHO and the
public key. The wheel is the code that made this bundle: take your own rankbench of this
version, if you do not trust the author. `ro-crate-metadata.json` describes files and
launches for programs (RO-Crate).
"""

_LIBRARIES = ("numpy", "scipy", "pandas", "jinja2", "matplotlib", "seaborn", "rocrate")

CITATION = "CITATION.cff"
# Parts of the code that a reader of the bundle needs, and the crate names.
_OF_CODE = ("Snakefile", "containers", "workflow/rules")

ABOUT, MADE_WITH = "about.json", "made_with"

DEFINITIONS, IMAGES, OWN = "work/code/", "images/", "work/own/"

# The package that made the tables, by its version.
CODE = DEFINITIONS + "rankbench-{}-py3-none-any.whl"

_WHEEL = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"

_DIGEST = re.compile("[0-9a-f]{64}")

_OF_LAUNCH = ("record.json", "steps.npz", "*.log", "trace*.json.gz")


def read_records(layout: Layout, cells: Sequence[str]) -> dict[str, Record]:
    """Folder in the bundle -> record, of every launch, gate and profile of these cells.

    Raises:
        ValueError: one is damaged; the message names it.
    """
    return {
        place.relative_to(layout.root).as_posix(): complete(
            read_checked(place / "record.json", "record", version=RECORD_VERSION)
        )
        for cell in cells
        for place in find_launches(layout, cell)
    }


def find_measured(layout: Layout, plan: Record) -> Iterator[Path]:
    """Plan, requests, summaries, logs, records, and notes of what could not be made."""
    yield layout.plan
    for cell in (planned["id"] for planned in plan["cells"]):
        for path in (layout.request(cell), layout.log(cell)):
            if path.is_file():
                yield path
        for place in find_launches(layout, cell):
            for pattern in _OF_LAUNCH:
                yield from sorted(place.glob(pattern))
    yield from sorted(layout.network.glob("*/record.json"))
    yield from find_failures(layout, plan)


def find_launches(layout: Layout, cell: str) -> Iterator[Path]:
    """Folders of the launches of a cell that ended, gates and profiles included."""
    for attempt in layout.attempts(cell):
        place = layout.attempt(cell, attempt)
        for folder in (place, place / GATE, place / PROFILE):
            for number in numbered(folder):
                if (folder / str(number) / "record.json").is_file():
                    yield folder / str(number)


def find_code(
    layout: Layout, plan: Record, records: Collection[Record]
) -> Iterator[Path]:
    """Frozen copies of what measured, with the user's own files.

    Of rankbench, they are workflow, image definitions and commit. Programs in Python
    are in `CODE`.
    """
    measured = {record["code"].get("rank") for record in records}
    for description in sorted(layout.code.glob("*/code.json")):
        if read_json(description).get("rank") in measured:
            yield description
            copy = description.parent
            for part in _OF_CODE:
                found = [copy / part, *sorted((copy / part).rglob("*"))]
                yield from (p for p in found if p.is_file() and p.suffix != ".py")
    for digest in own_digests(plan, records):
        yield from files_below(layout.own(digest)).values()


def own_files(entries: Iterable[Record]) -> Iterator[Record]:
    """What entries of a plan, or records, say of each file of the user's own."""
    for entry in entries:
        cell = entry["cell"]
        yield from (cell.get("own_files") or {}).values()
        if strategy := cell.get("own_strategy"):
            yield strategy


def own_digests(plan: Any, records: Iterable[Record]) -> list[str]:
    """The digests of these files, sorted.

    Raises:
        ValueError: one is none: it would be a path.
    """
    found = {str(one["digest"]) for one in own_files((*plan["cells"], *records))}
    for digest in found:
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"plan.json is damaged: {digest!r:.80} is no digest")
    return sorted(found)


def find_sidecars(plan: Any) -> Iterator[tuple[str, Path]]:
    """Name in the bundle, and file, of what lies beside each image of the plan."""
    for name, image in sorted(plan["images"].items()):
        sidecar = Path((image or {}).get("sidecar") or "")
        is_file = sidecar.is_file() and not sidecar.is_symlink()
        if is_file and read_json(sidecar).get("sha256") == image["sha256"]:
            yield f"{IMAGES}{name}.json", sidecar
            bill = sidecar.with_suffix(BILL)
            if bill.is_file() and not bill.is_symlink():
                yield f"{IMAGES}{name}{BILL}", bill


def find_experiment(layout: Layout, plan: Any) -> Path:
    """The experiment file as it was when the plan was made.

    Raises:
        ValueError: it is gone, or was changed since.
    """
    named = Path(str(plan["experiment"].get("file")))
    wanted = plan["experiment"].get("sha256")
    for path in (layout.experiment, named):
        if path.is_file() and hash_file(path) == wanted:
            return path
    raise ValueError(
        f"{named} is not the file that {layout.plan} was made of: it was changed or "
        "moved; bring it back, or run the experiment again"
    )


def pack_code(target: Path) -> None:
    """Write the package that makes the tables as a wheel, which pip installs."""
    package = Path(rankbench.__file__).parent
    own, linked = list_code(package)
    files = {f"rankbench/{name}": path.read_bytes() for name, path in own.items()}
    for name, path in linked.items():
        files[f"rankbench/assets/{name}"] = path.read_bytes()
    about = f"rankbench-{rankbench.__version__}.dist-info"
    installed = importlib.metadata.distribution("rankbench")
    for name in ("METADATA", "entry_points.txt"):
        files[f"{about}/{name}"] = (installed.read_text(name) or "").encode()
    files[f"{about}/WHEEL"] = _WHEEL
    lines = [
        f"{name},sha256={urlsafe_b64encode(sha256(data).digest()).decode().rstrip('=')},"
        for name, data in files.items()
    ]
    files[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,", ""]).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(target, "w", ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(ZipInfo(name), data, ZIP_DEFLATED)


def write_page(root: Path) -> None:
    """Add how to cite the results, and to their page how a reader checks the bundle."""
    shutil.copyfile(find_asset(CITATION), root / CITATION)
    path = root / PAGE
    text = path.read_text() if path.exists() else "# Results measured by rankbench\n"
    path.write_text(text + _PAGE.format(code=CODE.format(rankbench.__version__)))


def write_about(
    layout: Layout, plan: Record, records: Collection[Record], *, anonymised: bool
) -> None:
    """Write about.json into a bundle, with the versions that made the tables."""
    maker = {
        "rankbench": rankbench.__version__,
        "method": METHOD,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _LIBRARIES},
    }
    about = describe(plan, records) | {"anonymised": anonymised, MADE_WITH: maker}
    write_json(layout.root / ABOUT, about)


def describe(plan: Record, records: Collection[Record]) -> dict[str, Any]:
    """The facts in plan and records, each one once."""
    hosts = [host for record in records for host in record["hosts"]]
    return {
        "experiment": plan["experiment"]["name"],
        "site": plan.get("site"),
        "hosts": _distinct(hosts),
        "software": _distinct(record.get("software") for record in records),
        "code": _distinct(record["code"] for record in records),
        "images": _distinct(record["image"] for record in records),
    }


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in order of appearance, without empty ones."""
    found = {json.dumps(value, sort_keys=True): value for value in values if value}
    return list(found.values())
