"""What somebody may do to those who read, verify or replay results: one row each.

A row says what is done to a copy of a good bundle (a result folder with SHA256SUMS),
what must be said about it, and the exit status. `test_attacks.py` runs them all.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from rankbench.results.bundle.sums import SUMS, write_sums
from rankbench.results.read.archive import list_files
from unit.synthetic import PHASES, STEPS, WARMUP, change_steps, edited

# Receives a bundle, or the folder of a launch; may return another path to read.
Change = Callable[[Path], object]

VERIFY, STRICT = "verify {b}", "verify --strict {b}"
REPLAY, RUN = "replay {b}", "replay {b} --run"
TABLE, PUBLISH = "table --no-plots {b}", "publish --anonymise {b}"
STATUS, COMPARE = "status {b}", "compare {b} {good}"
SIGNED = "verify {b} --signer {keys}/jdoe.keys"

DDP = "ddp.gloo.1x2.convnet.digits"
LAUNCH = f"records/{DDP}/1/1"
RECORD, TIMES, LOG = (
    f"{LAUNCH}/{n}" for n in ("record.json", "steps.npz", "rank0.log")
)
TERMINAL = "\x1b]0;owned\x07\x1b[2J"
FORMULA = '=HYPERLINK("https://evil.example","well")'
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"
PRIVATE = "a private key"


@dataclass(frozen=True, slots=True)
class Attack:
    """A row of the table.

    Attributes:
        name: of the attack.
        change: what is done.
        said: words that must be printed.
        status: the exit status.
        command: what the victim runs: `{b}` is the attacked bundle, `{good}` another
            one, `{keys}` a folder with public keys.
        base: the bundle that is attacked: `plain`, `own` (with a model of its own),
            `env` (with variables), `signed`.
        sealed: whether SHA256SUMS agrees afterwards, as it does if its author cheats.
    """

    name: str
    change: Change
    said: str
    status: int = 1
    command: str = VERIFY
    base: str = "plain"
    sealed: bool = True


# --- changes --------------------------------------------------------------------------


def _walk(value: Any, path: str) -> tuple[Any, Any]:
    """The place that a path leads to: `ranks.0.window_s` is that of the first rank."""
    *above, last = [int(k) if k.isdecimal() else k for k in path.split(".")]
    for key in above:
        value = value[key]
    return value, last


def put(file: str, path: str, value: Any) -> Change:
    def change(root: Path) -> None:
        with edited(root / file) as whole:
            place, last = _walk(whole, path)
            place[last] = value

    return change


def lacks(file: str, path: str) -> Change:
    def change(root: Path) -> None:
        with edited(root / file) as whole:
            place, last = _walk(whole, path)
            del place[last]

    return change


def text(file: str, data: bytes | str) -> Change:
    def change(root: Path) -> None:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())

    return change


def raw(file: str, old: str, new: str) -> Change:
    """Replace text that JSON could not hold otherwise."""

    def change(root: Path) -> None:
        data = (root / file).read_bytes()
        assert old.encode() in data, file
        (root / file).write_bytes(data.replace(old.encode(), new.encode(), 1))

    return change


def cut(file: str, share: float) -> Change:
    def change(root: Path) -> None:
        data = (root / file).read_bytes()
        (root / file).write_bytes(data[: int(share * len(data))])

    return change


def gone(pattern: str) -> Change:
    def change(root: Path) -> None:
        for path in list(root.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def link(file: str, target: str = "../../private") -> Change:
    """A link in place of a file or folder; `private` lies beside all bundles."""

    def change(root: Path) -> None:
        gone(file)(root)
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).symlink_to(
            root.parent / "private" if "private" in target else target
        )

    return change


def pipe(file: str) -> Change:
    def change(root: Path) -> None:
        gone(file)(root)
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(root / file)

    return change


def folder(file: str) -> Change:
    def change(root: Path) -> None:
        (root / file).unlink()
        (root / file).mkdir()

    return change


def steps(**members: Any) -> Change:
    return lambda root: change_steps(_launch_of(root), **members)


def _launch_of(root: Path) -> Path:
    return root if (root / "steps.npz").exists() else root / LAUNCH


def all_of(*changes: Change) -> Change:
    def change(root: Path) -> object:
        return [one(root) for one in changes][-1]

    return change


def maker(**values: Any) -> Change:
    return all_of(*(put("about.json", f"made_with.{k}", v) for k, v in values.items()))


# --- steps.npz ------------------------------------------------------------------------


class Bomb:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("executed"),))


def _npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def member(data: bytes, kind: int = zipfile.ZIP_STORED) -> Change:
    """Replace the seconds of rank 0."""

    def change(root: Path) -> None:
        path = _launch_of(root) / "steps.npz"
        with np.load(path) as members:
            arrays = {name: _npy(members[name]) for name in members}
        with zipfile.ZipFile(path, "w", kind) as file:
            for name, array in arrays.items():
                file.writestr(f"{name}.npy", data if name == "rank0/seconds" else array)

    return change


def _header(shape: tuple[int, ...]) -> bytes:
    """A header that claims more than follows."""
    file = io.BytesIO()
    said = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, said)
    return file.getvalue()


# --- archives -------------------------------------------------------------------------


def _member(
    name: str, data: bytes = b"{}", **changes: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in changes.items():
        setattr(info, key, value)
    return info, data


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as file:
        for info, data in members:
            file.addfile(info, io.BytesIO(data))
    return plain.getvalue()


def packed(plain: bytes, end: bytes = b"") -> Change:
    """An archive with these bytes in place of a bundle."""

    def change(root: Path) -> Path:
        path = root.parent / "evil.tar.zst"
        path.write_bytes(zstandard.compress(plain) + end)
        return path

    return change


def members(*names: str, **changes: Any) -> Change:
    """An archive of a good file, and of these."""
    good = _member("a/first.json")
    return packed(_tar(good, *(_member(name, **changes) for name in names)))


def special(name: str, kind: bytes, target: str = "") -> Change:
    return members(name, data=b"", type=kind, linkname=target)


def _flip(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


def _endless() -> bytes:
    huge = tarfile.TarInfo("huge")
    huge.type, huge.size = tarfile.XHDTYPE, 2**32
    return huge.tobuf(tarfile.PAX_FORMAT) + bytes(10_240)


def _without_size(root: Path) -> Path:
    path = root.parent / "evil.tar.zst"
    parameters = zstandard.ZstdCompressionParameters(write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    path.write_bytes(compressor.compress(_tar(_member("a.json", bytes(9999)))))
    return path


_SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s"}
_SPARSE |= {"GNU.sparse.realsize": str(2**40)}
_SIG = "signatures/0123456789abcdef.sig"
_TWO, _THREE = (_tar(*map(_member, names)) for names in ("ab", "abc"))

ARCHIVES = [
    *(
        Attack(f"a member named {name!r:.30}", members(name), "is no name of a file")
        for name in (
            *("/evil.json", "../evil", "records/../../evil", "records\\..\\evil"),
            *("./SHA256SUMS", "records//evil", "records/\x1b[2Jevil", "records/e\nvil"),
            *("a/" * 600 + "evil", "signatures/../../evil.sig"),
        )
    ),
    *(
        Attack(
            f"{name} is {kind!r}", special(name, kind, "/etc/passwd"), "is a link, a"
        )
        for name in ("records", _SIG, "signatures")
        for kind in (
            tarfile.SYMTYPE,
            tarfile.LNKTYPE,
            tarfile.DIRTYPE,
            tarfile.FIFOTYPE,
        )
    ),
    Attack("a device", special("zero", tarfile.CHRTYPE), "is a link, a"),
    Attack("a member twice", members("b", "b"), "twice"),
    Attack("members out of order", members("c", "b"), "not in its place"),
    Attack("a file that is a folder", members("b", "b/c"), "a file and a folder"),
    Attack("a sparse file", members("s", pax_headers=_SPARSE), "evil.tar.zst"),
    *(
        Attack(f"a header with {key}", members("b", **{key: value}), "other bytes here")
        for key, value in {
            **{"mode": 0o777, "mtime": 1, "uid": 7, "uname": "jdoe", "linkname": "x"},
            "pax_headers": {"comment": "x"},
        }.items()
    ),
    Attack("a byte behind a file", packed(_flip(_TWO, 612)), "other bytes here"),
    Attack("a damaged header", packed(_flip(_THREE, 1174)), "more follows"),
    Attack("bytes after the last file", packed(_TWO + b"hidden" * 100), "more follows"),
    Attack("bytes after the archive", packed(_TWO, b"more"), "something follows"),
    Attack(
        "a frame after it",
        packed(_TWO, b"\x50\x2a\x4d\x18\4\0\0\0more"),
        "something follows",
    ),
    Attack("an endless header", packed(_endless()), "larger than any"),
    Attack("a size that is not told", _without_size, "does not tell"),
    Attack("a bomb", packed(bytes(300 * 2**20)), "RANKBENCH_BUNDLE_MIB"),
    Attack("no files list", members("plan.json"), f"{SUMS}: is missing"),
    Attack(
        "no archive",
        lambda root: [text("../x.pdf", b"%PDF-1.7")(root), root.parent / "x.pdf"][1],
        "is not compressed by zstd",
        2,
    ),
]

# --- a bundle whose author lies -------------------------------------------------------

PLAN, ABOUT, TREE = "plan.json", "about.json", "work/experiment.yaml"
_DIGEST = "../../../../etc"
_BIG = (
    b'{"schema": 1, "status": "ok", "reason": null, "x": [' + b"0," * 2_200_000 + b"0]}"
)
_LISTS = (
    b'{"schema": 1, "status": "ok", "reason": null, "x": [' + b"[]," * 700_000 + b"0]}"
)
_OLDER = maker(rankbench="0.0.7", method=99)

LIES = [
    # Attacks 3 and 9: what was not derived again is not called verified.
    Attack(
        "a forged table of another method",
        all_of(_OLDER, text("table.csv", "x\n")),
        "not verified: not all was derived again",
        3,
    ),
    Attack(
        "a page of another method",
        all_of(_OLDER, text("table.html", SCRIPT)),
        "not checked: ",
        3,
    ),
    Attack("another method alone", maker(method=999), "has method", 1),
    Attack(
        "a forged page of another version",
        all_of(maker(rankbench="0.0.7"), text("table.html", SCRIPT)),
        "table.html",
        0,
    ),
    Attack(
        "the same, --strict",
        all_of(maker(rankbench="0.0.7"), text("table.html", SCRIPT)),
        "not verified: not all",
        3,
        STRICT,
    ),
    Attack(
        "a forged number of another version",
        all_of(maker(rankbench="0.0.7"), raw("table.csv", "ok", "OK")),
        "table.csv, row",
    ),
    Attack(
        "a plot that shows something else",
        raw("plots/throughput.svg", "<svg", "<svg id='x'"),
        "plots/*.svg",
        0,
    ),
    *(
        Attack(
            f"a plot with {word}",
            raw("plots/throughput.svg", "</svg>", f"{word}</svg>"),
            "has a script",
        )
        for word in (
            "<script>1</script>",
            "<SCRIPT src='x'/>",
            "<a onload='x'/>",
            "<a href='javascript:x'/>",
            "<foreignObject/>",
        )
    ),
    Attack(
        "a crate of another library",
        all_of(maker(rocrate="0.1"), text("ro-crate-metadata.json", "{}")),
        "ro-crate-metadata.json",
        0,
    ),
    *(
        Attack(f"{name} is another", text(name, "another\n"), f"{name}, line 1")
        for name in ("README.md", "ro-crate-metadata.json", "CITATION.cff", "table.md")
    ),
    *(
        Attack(f"{name} is gone", gone(name), f"{name}: is missing")
        for name in (
            "ro-crate-metadata.json",
            "table.csv",
            "plots/throughput.csv",
            "plots/throughput.svg",
        )
    ),
    # Attack 4.
    *(
        Attack(
            f"made by {version!r:.20}", maker(rankbench=version), "made_with.rankbench"
        )
        for version in (TERMINAL, "", "x" * 99, None, 7, "1.0\n")
    ),
    Attack("a method that is a text", maker(method="1"), "made_with.method"),
    # Attack 5.
    Attack("a record of 4.4 MB", text(RECORD, _BIG), "more than 4 MiB"),
    Attack("a record of lists", text(RECORD, _LISTS), "more lists than any"),
    Attack("about.json of lists", text(ABOUT, _LISTS), "more lists than any"),
    Attack("a plan of lists", text(PLAN, _LISTS), "more lists than any"),
    # Attack 8, and other names.
    *(
        Attack(
            f"an experiment named {name!r:.20}",
            put(PLAN, "experiment.name", name),
            "experiment.name must match",
        )
        for name in (
            "../../x",
            "..",
            "/etc/x",
            "a/b",
            ".x",
            "-rf",
            "a\nb",
            "x\n",
            "",
            TERMINAL,
            "x" * 300,
        )
    ),
    *(
        Attack(
            f"a cell named {name!r:.20}",
            put(PLAN, "cells.0.id", name),
            "cells[0].id must match",
        )
        for name in (
            "../../../etc",
            "/etc/cron.d/x",
            "..",
            ".hidden",
            "-rf",
            "a\\b",
            "a\nb",
            "",
            "x" * 300,
        )
    ),
    Attack(
        "an image named as a path",
        put(PLAN, "images", {"../../x": None}),
        "images must be named",
    ),
    *(
        Attack(
            f"a cell with {field}",
            put(PLAN, f"cells.0.cell.{field}", value),
            f"cells[0].cell.{field} must",
        )
        for field, value in (
            ("strategy", SCRIPT),
            ("model", FORMULA),
            ("topology", "1x" + "9" * 50),
            ("batch_size", 10**400),
            ("options", []),
            ("num_workers", -1),
        )
    ),
    Attack("a cell twice", lambda root: _double(root / PLAN), "stands in it twice"),
    Attack("another plan", text(PLAN, b'{"schema": 99}'), "plan schema 99"),
    *(
        Attack(
            f"a digest that is a path, in {file}",
            put(file, place, _DIGEST),
            "etc",
            base="own",
        )
        for file, place in (
            (PLAN, "cells.0.cell.own_files.model.digest"),
            (RECORD.replace("convnet", "net"), "cell.own_files.model.digest"),
        )
    ),
    # Numbers that do not follow.
    Attack(
        "a faster launch",
        put(RECORD, "ranks.0.window_s", 0.01),
        f"{DDP}, column throughput",
    ),
    Attack("a launch less", gone(LAUNCH), "column status"),
    Attack("a cell less", lacks(PLAN, "cells.0"), "table.csv, row 3"),
    Attack(
        "a page with another word",
        raw("table.html", "convnet", "resnet9"),
        "table.html, line",
    ),
    Attack(
        "a plot of other data",
        raw("plots/throughput.csv", "ddp", "zero"),
        "plots/throughput.csv, row",
    ),
    Attack(
        "pickled steps",
        member(_npy(np.array([Bomb()], dtype=object), allow_pickle=True)),
        "object of shape",
    ),
    Attack("a damaged record", text(RECORD, '{"schema": 1, "status": NaN}'), RECORD),
    Attack("other hosts", raw(ABOUT, "Example CPU", "Faster CPU"), "about.json, hosts"),
    Attack(
        "another experiment",
        all_of(put(ABOUT, "anonymised", False), text(TREE, "name: x\n")),
        "is not the file",
    ),
    # Files that no bundle has.
    *(
        Attack(f"a file {name}", text(name, "x"), f"{name}: is no part of a bundle")
        for name in (
            "evil.html",
            "evil.js",
            "a/table.csv",
            "plots/a/b.csv",
            f"{LAUNCH}/x.sh",
            "work/own/a/x.py",
            "manifest.json",
        )
    ),
    *(
        Attack(
            f"a file {name} of another version",
            all_of(_OLDER, text(name, "x")),
            f"{name}: is no part of a bundle",
        )
        for name in ("evil.js", "a/table.csv", "plots/a/b.csv")
    ),
    *(
        Attack(name, change, said, base="own")
        for name, change, said in (
            (
                "their model is another",
                lambda root: _append(root, "work/own/*/net.py"),
                "holds other files",
            ),
            (
                "their model is gone",
                gone("work/own/*"),
                "is missing: a cell was measured",
            ),
            (
                "a file beside their model",
                lambda root: _beside(root, "x.py"),
                "holds other files",
            ),
            (
                "their model compiled",
                lambda root: _beside(root, "__pycache__/net.pyc"),
                "no part of a bundle",
            ),
        )
    ),
    # Attacks 6 and 7: links, pipes.
    *(
        Attack(
            f"{name} is {kind}",
            make(name),
            f"{name}: is a link, a pipe or a device",
            sealed=False,
        )
        for name in (LOG, RECORD, "plots", "records", PLAN, "signatures", _SIG)
        for kind, make in (("a link", link), ("a pipe", pipe))
    ),
    Attack("a loop of links", link("x", "."), "x: is a link", sealed=False),
    Attack("the list is a link", link(SUMS), "is no bundle", 2, sealed=False),
    # SHA256SUMS itself.
    Attack(
        "a file that is not listed",
        text("x.csv", ""),
        "x.csv: is not listed",
        sealed=False,
    ),
    Attack(
        "a changed byte",
        raw(RECORD, "ok", "oK"),
        "record.json: has another SHA-256",
        sealed=False,
    ),
    Attack(
        "a file less",
        gone("table.md"),
        "table.md: is missing: SHA256SUMS",
        sealed=False,
    ),
    Attack(
        "a list of other order",
        lambda root: _rewrite(root, lambda lines: lines[::-1]),
        "is not written as",
        sealed=False,
    ),
    Attack(
        "a line twice",
        lambda root: _rewrite(root, lambda lines: [*lines, lines[0]]),
        "is not written as",
        sealed=False,
    ),
    Attack(
        "a line of something else",
        lambda root: _rewrite(root, lambda lines: [*lines, "# x"]),
        "is not written as",
        sealed=False,
    ),
    Attack("an empty list", text(SUMS, ""), "plan.json: is not listed", sealed=False),
    Attack(
        "a list that is no text",
        text(SUMS, b"\xff\0"),
        "plan.json: is not listed",
        sealed=False,
    ),
    Attack(
        "results that were not published",
        gone(SUMS),
        "publish it first",
        2,
        sealed=False,
    ),
    Attack(
        "the same with a link",
        all_of(gone(SUMS), link("plots")),
        "publish it first",
        2,
        sealed=False,
    ),
]


def _double(plan: Path) -> None:
    with edited(plan) as value:
        value["cells"] *= 2


def _append(root: Path, pattern: str) -> None:
    (path,) = root.glob(pattern)
    path.write_text(path.read_text() + "# faster\n")


def _beside(root: Path, name: str) -> None:
    (folder,) = root.glob("work/own/*")
    text(name, "x")(folder)


def _rewrite(root: Path, how: Callable[[list[str]], list[str]]) -> None:
    lines = (root / SUMS).read_text().splitlines()
    (root / SUMS).write_text("".join(f"{line}\n" for line in how(lines)))


# --- replay: a bundle measures what its plan says, or nothing -------------------------


def experiment(said: str) -> Change:
    return text(TREE, said)


HONEST = """\
name: small
strategy: ddp
topology: [1x1, 1x2]
steps: 8
warmup: 2
launches: 1
"""
_NO_FILE = "the bundle has no file of that name"

REPLAYS = [
    *(
        Attack(
            f"{name} ({command[-5:]})", experiment(HONEST + more), said, status, command
        )
        for command in (REPLAY, RUN)
        for name, more, said, status in (
            ("another cell", "seed: 7\n", "is no cell of the bundle's plan", 2),
            (
                "one more cell",
                "batch_size: [32, 64]\n",
                "is no cell of the bundle's plan",
                2,
            ),
            (
                "a library",
                "env: {LD_PRELOAD: /x.so}\n",
                "is no cell of the bundle's plan",
                2,
            ),
            (
                "a block with a cell",
                "blocks: [{seed: 9}]\n",
                "is no cell of the bundle's plan",
                2,
            ),
            ("a file as a key", "model: [{/x.py: {}}]\n", _NO_FILE, 2),
            ("a file as a value", "model: /etc/evil.py\n", _NO_FILE, 2),
            ("a file in a list", "data: [digits, ../x.py]\n", _NO_FILE, 2),
            ("a strategy", "blocks: [{strategy: /x.py}]\n", _NO_FILE, 2),
            ("a script", "script: ../../evil.py\n", _NO_FILE, 2),
            ("a module", "script: -m http.server\n", _NO_FILE, 2),
        )
    ),
    Attack(
        "an image that is pulled",
        experiment(f"{HONEST}images: {{x: {{source: docker://x}}}}\n"),
        "nothing was run",
        0,
        REPLAY,
    ),
    *(
        Attack(name, experiment(said), word, 2, REPLAY)
        for name, said, word in (
            ("YAML aliases", "a: &a [x]\nb: [*a, *a]\n", "without aliases"),
            ("an experiment that is a list", "- 1\n", "expected a mapping"),
            ("YAML that ends early", "a: [\n", "is not YAML"),
            ("YAML too deep", "[" * 2000, "is not YAML"),
            (
                "YAML that runs",
                "a: !!python/object/apply:os.system [x]\n",
                "is not YAML",
            ),
            ("a long experiment", "#" * 1_100_000, "has more than"),
        )
    ),
    Attack(
        "a name that is a path",
        put(PLAN, "experiment.name", "../../x"),
        "experiment.name must match",
        2,
        RUN,
    ),
    Attack(
        "a faulty bundle", text("table.csv", "cell\n"), "because it has faults", 2, RUN
    ),
    Attack(
        "a record that is a link",
        link(RECORD),
        "because it has faults",
        2,
        RUN,
        sealed=False,
    ),
    Attack(
        "code of theirs", lambda _: None, "code of its own: work/own/", 2, RUN, "own"
    ),
    Attack(
        "their code is listed",
        lambda _: None,
        "their code: work/own/",
        0,
        REPLAY,
        "own",
    ),
    Attack(
        "a variable that loads code",
        lambda _: None,
        "code of its own: LD_AUDIT=",
        2,
        RUN,
        "env",
    ),
    Attack("it is listed", lambda _: None, "their code: LD_AUDIT=", 0, REPLAY, "env"),
]

_FAILED = all_of(
    put(RECORD, "status", "crashed"),
    put(RECORD, "reason", TERMINAL),
    lambda root: text(
        f"requests/{DDP}.json",
        json.dumps(
            {
                "attempt": 1,
                "launches": 1,
                "cell_hash": json.loads((root / PLAN).read_text())["cells"][1]["hash"],
            }
        ),
    )(root),
)

# --- results of a stranger, which are read, or published again ------------------------

READERS = [
    *(
        Attack(
            f"{name} is {kind} ({command.split()[0]})",
            make(name),
            "is a link, a pipe or a device",
            2,
            command,
        )
        for command in (TABLE, STATUS, COMPARE, PUBLISH, "answer {b}")
        for name, kind, make in (
            ("plots", "a link", link),
            (LOG, "a link", link),
            (RECORD, "a pipe", pipe),
            ("site", "a link", link),
        )
    ),
    Attack(
        "a folder of code that leads out",
        link("work/code/0123/containers"),
        "is a link",
        2,
        PUBLISH,
    ),
    Attack(
        "assets that lead out",
        link("work/code/0123/src/rankbench/assets/x/y"),
        "is a link",
        2,
        PUBLISH,
    ),
    *(
        Attack(f"{name} ({command.split()[0]})", change, said, 2, command)
        for command in (TABLE, STATUS, COMPARE)
        for name, change, said in (
            (
                "a plan with a path",
                put(PLAN, "cells.0.id", "../x"),
                "cells[0].id must match",
            ),
            ("a plan without override", lacks(PLAN, "experiment.override"), "override"),
            ("a plan of lists", text(PLAN, _LISTS), "more lists than any"),
        )
    ),
    *(
        Attack(
            f"a record with {word} ({command.split()[0]})",
            change,
            "record.json",
            status,
            command,
        )
        for command, status in ((TABLE, 0), (STATUS, 0))
        for word, change in (
            ("no sense", put(RECORD, "status", "well")),
            ("lists", text(RECORD, _LISTS)),
        )
    ),
    *(
        Attack(
            f"a reason that the terminal obeys, {command}",
            _FAILED,
            "owned",
            status,
            command,
        )
        for command, status in ((TABLE, 0), (STATUS, 1))
    ),
]

# --- signatures -----------------------------------------------------------------------


def signature_of(root: Path) -> Path:
    (path,) = (root / "signatures").iterdir()
    return path


def resigned(namespace: str, data: bytes | None = None) -> Change:
    def change(root: Path) -> None:
        key = root.parents[1] / "keys/jdoe"
        words = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", namespace]
        given = (root / SUMS).read_bytes() if data is None else data
        done = subprocess.run(words, input=given, capture_output=True, check=True)
        signature_of(root).write_bytes(done.stdout)

    return change


def on_signature(how: Callable[[bytes], bytes]) -> Change:
    def change(root: Path) -> None:
        path = signature_of(root)
        path.write_bytes(how(path.read_bytes()))

    return change


def _other_bits(data: bytes) -> bytes:
    """Bits that decoders of base64 ignore."""
    place = data.index(b"=\n-----END") - 1
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    last = letters[letters.index(data[place : place + 1]) + 1]
    return data[:place] + bytes([last]) + data[place + 1 :]


def _huge(root: Path) -> None:
    with signature_of(root).open("wb") as file:
        file.truncate(2**40)


def _renamed(root: Path) -> None:
    path = signature_of(root)
    path.rename(path.with_name(f"{'0' * 16}.sig"))


def _copied(name: str) -> Change:
    return lambda root: text(f"signatures/{name}", signature_of(root).read_bytes())(
        root
    )


def _listed(root: Path) -> None:
    path = signature_of(root)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    line = f"{digest}  signatures/{path.name}"
    _rewrite(root, lambda lines: [*lines, line])


def _many(root: Path) -> None:
    for number in range(100):
        (root / f"signatures/{number:016x}.sig").write_bytes(b"")


_NOT_OURS = "is not written as ssh-keygen"
SIGNATURES = [
    Attack(name, change, said, 1, SIGNED, "signed", sealed)
    for name, change, said, sealed in (
        (
            "a signature of something else",
            resigned("git"),
            "namespace does not match",
            False,
        ),
        (
            "a signature of another text",
            resigned("rankbench", b"{}"),
            "is no valid signature of",
            False,
        ),
        ("other bits of it", on_signature(_other_bits), _NOT_OURS, False),
        (
            "other lines of it",
            on_signature(lambda d: d.replace(b"\nU1NIU0lH", b"\nU1NI\nU0lH")),
            _NOT_OURS,
            False,
        ),
        ("it is cut off", on_signature(lambda d: d[:-40]), _NOT_OURS, False),
        ("it is huge", _huge, _NOT_OURS, False),
        ("it is empty", on_signature(lambda _: b""), _NOT_OURS, False),
        ("another name", _renamed, "another name than its key", False),
        (
            "a copy of another name",
            _copied("jdoe.sig"),
            "signatures/jdoe.sig: is not listed",
            False,
        ),
        (
            "a copy in a folder",
            _copied(f"sub/{'a' * 16}.sig"),
            "is not listed in",
            False,
        ),
        ("it is listed", _listed, "is a signature, but", False),
        ("a hundred more", _many, "no more than 100", False),
        ("it is gone", gone("signatures/*"), "there is none by jdoe", False),
        (
            "sealed after it",
            raw(RECORD, "Example CPU", "Faster CPU"),
            "is no valid signature of",
            True,
        ),
        (
            "another version after it",
            maker(rankbench="0.0.7"),
            "is no valid signature of",
            True,
        ),
    )
] + [
    Attack(
        "a stranger has signed",
        lambda _: None,
        "does not count in",
        1,
        "verify {b} --signer {keys}/roe.keys",
        "signed",
        False,
    ),
    Attack(
        "one of two has signed",
        lambda _: None,
        "there is none by roe",
        1,
        f"{SIGNED} --signer {{keys}}/roe.keys",
        "signed",
        False,
    ),
    Attack(
        "nobody has signed",
        lambda _: None,
        "there are none: nobody in",
        1,
        "verify {b} --signers {keys}/allowed_signers",
        "plain",
        False,
    ),
    Attack(
        "faults are not signed",
        text("table.csv", ""),
        "is not signed, because",
        2,
        "publish --sign {keys}/roe --add-to {b}",
        "signed",
        False,
    ),
]

ATTACKS = [*ARCHIVES, *LIES, *REPLAYS, *READERS, *SIGNATURES]


# --- damaged files: the row of their cell is stale, and no other is changed -----------

_R, _T = "record.json", "steps.npz"
_SHAPE = (STEPS, len(PHASES))
_HOST = {"host": "node1", "foreign": 0.0, "steal": 0.0, "throttled": 0.0}

# Of the folder of a launch: file -> name -> change.
DAMAGES: dict[str, dict[str, Change]] = {
    _R: {
        "empty": text(_R, b""),
        "half of it": cut(_R, 0.5),
        "another format": text(_R, b"\x89PNG\r\n\x1a\n"),
        "not UTF-8": text(_R, b'{"schema": 1, "reason": "\xff"}'),
        "a list": text(_R, b"[1, 2]"),
        "null": text(_R, b"null"),
        "an empty object": text(_R, b"{}"),
        "too deep": text(_R, b"[" * 900),
        "a folder": folder(_R),
        "half a character": raw(_R, '"spawn"', '"\\ud800"'),
        **{
            f"samples {new:.12}": raw(_R, '"samples": 1024', f'"samples": {new}')
            for new in ("NaN", "-Infinity", "1e999", "1" + "0" * 300, "1" + "0" * 9000)
        },
        **{
            f"no {path}": lacks(_R, path)
            for path in (
                *(
                    "status",
                    "reason",
                    "ranks",
                    "samples",
                    "phases",
                    "hosts",
                    "software",
                ),
                *("cell_hash", "wanted", "ranks.0.window_s", "ranks.1.memory"),
            )
        },
        **{
            f"{path} {value!r:.24}": put(_R, path, value)
            for path, value in (
                ("schema", 0),
                ("schema", "1"),
                ("schema", TERMINAL),
                ("status", "fine"),
                ("status", 1),
                ("reason", 3),
                ("ranks", []),
                ("ranks", [3]),
                ("ranks.1.rank", 7),
                ("ranks.0.window_s", -1.0),
                ("ranks.0.window_s", 0),
                ("ranks.0.window_s", "fast"),
                ("samples", True),
                ("hosts", [1]),
                ("software", {}),
                ("phases", []),
                ("phases", [PHASES[0]] * len(PHASES)),
                ("steps", 0),
                ("steps", 10**9),
                ("accuracy.overall", 7),
                ("loss.last", 1e300),
                ("marks", "none"),
                ("round", {"seed": 1}),
                ("surroundings", [_HOST]),
                ("devices", [{"before": {"others": 1}}]),
                ("launch", 2),
                ("attempt", 2),
                ("cell_id", "ddp.gloo.2x2.convnet.digits"),
            )
        },
    },
    _T: {
        "none": gone(_T),
        "empty": text(_T, b""),
        "half of it": cut(_T, 0.5),
        "no archive": text(_T, b"no archive at all"),
        "a folder": folder(_T),
        "a flipped bit": lambda at: (at / _T).write_bytes(
            _flip((at / _T).read_bytes(), 300)
        ),
        "fewer steps": steps(rank0_seconds=np.ones((STEPS - 1, len(PHASES)))),
        "fewer phases": steps(rank0_seconds=np.ones((STEPS, 2))),
        "a longer warm-up": steps(rank1_warmup=np.ones((WARMUP + 1, len(PHASES)))),
        "fewer losses": steps(rank0_loss=np.ones(STEPS)),
        "whole numbers": steps(rank0_seconds=np.ones(_SHAPE, dtype=int)),
        "NaN": steps(rank0_seconds=np.full(_SHAPE, np.nan)),
        "negative times": steps(rank0_seconds=np.full(_SHAPE, -1.0)),
        "huge times": steps(rank1_seconds=np.full(_SHAPE, 1e300)),
        "no times": steps(
            rank0_seconds=np.zeros(_SHAPE), rank1_seconds=np.zeros(_SHAPE)
        ),
        "huge losses": steps(rank0_loss=np.full(WARMUP + STEPS, 1e80)),
        "of no rank": lambda at: np.savez(at / _T),
        "of others": lambda at: np.savez(at / _T, other=np.ones(3)),
        "objects": member(_npy(np.array([Bomb()], dtype=object), allow_pickle=True)),
        "a pickle": member(pickle.dumps(Bomb())),
        "a header alone": member(_header(_SHAPE)),
        "a header that claims much": member(_header((2**40, 6))),
        "half a header": member(b"\x93NUMPY\x01\x00\x3c\x00x"),
        "a bomb": member(_header(_SHAPE) + bytes(2**24), zipfile.ZIP_DEFLATED),
    },
}


# --- random changes of a signed bundle ------------------------------------------------


def random_change(root: Path, dice: Any) -> Iterator[str]:
    """Change something; yields what it was, and the names of the files."""
    names = list_files(root)[0]
    kind = dice.choice(
        ("byte", "sealed byte", "swap", "remove", "add", "link", "version")
    )
    one, other = dice.sample(names, 2)
    yield kind
    if kind == "swap":
        yield from (one, other)
        a, b = (root / one).read_bytes(), (root / other).read_bytes()
        (root / one).write_bytes(b)
        (root / other).write_bytes(a if a != b else b"x")
    elif kind == "remove":
        yield one
        (root / one).unlink()
    elif kind == "add":
        suffix = dice.choice((".sig", ".json", ".csv", ".html", ""))
        name = str(Path(one).parent / f"{dice.getrandbits(64):016x}{suffix}")
        yield name
        (root / name).write_bytes(dice.choice((b"", (root / other).read_bytes())))
    elif kind == "link":
        yield one
        link(one, dice.choice(("private", ".", "/dev/zero")))(root)
    elif kind == "version":
        yield ABOUT
        value = dice.choice(("0.0.7", "9.9", TERMINAL))
        maker(rankbench=value, method=dice.choice((1, 2, 99)))(root)
        write_sums(root)
    else:
        yield one
        data = (root / one).read_bytes()
        changed = bytearray(data or b" ")
        changed[dice.randrange(len(changed))] ^= dice.randint(1, 255)
        (root / one).write_bytes(changed)
        if kind == "sealed byte" and one != SUMS:
            write_sums(root)
