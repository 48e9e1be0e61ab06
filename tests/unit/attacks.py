"""What somebody may do to those who read, verify or replay results: one row each.

A row says what is done to a copy of a good bundle (a result folder with SHA256SUMS),
what must be said about it, and the exit status. `test_attacks.py` runs them all.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import string
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from rankbench.results.bundle.signatures import SUMS, write_sums
from rankbench.results.read.archive import list_files
from unit.synthetic import PHASES, STEPS, WARMUP, change_steps, edited

# Receives a bundle, or the folder of a launch; may return another path to read.
Change = Callable[[Path], object]

VERIFY, STRICT = "verify {b}", "verify --strict {b}"
REPLAY, RUN = "replay {b}", "replay {b} --run"
TABLE, PUBLISH = "table --no-plots {b}", "publish --anonymise {b}"
STATUS, COMPARE = "status {b}", "compare {b} {good}"
SIGNED, ROE = "verify {b} --signer {keys}/jdoe.keys", "--signer {keys}/roe.keys"
ALLOWED = "verify {b} --signers {keys}/allowed_signers"
ADD = "publish {b} --sign {keys}/roe"

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


def rows(*cases: Sequence[Any], **shared: Any) -> list[Attack]:
    """Rows of a name, a change, words, and perhaps a status and a command."""
    keys = ("name", "change", "said", "status", "command")
    return [Attack(**{**shared, **dict(zip(keys, case))}) for case in cases]  # noqa: B905


# --- changes --------------------------------------------------------------------------


def change(how: Callable[..., object]) -> Callable[..., Change]:
    """Changes that do `how` with the root and further arguments."""
    return lambda *args, **kwargs: lambda root: how(root, *args, **kwargs)


def _walk(value: Any, path: str) -> tuple[Any, Any]:
    """The place that a path leads to: `ranks.0.window_s` is that of the first rank."""
    *above, last = [int(k) if k.isdecimal() else k for k in path.split(".")]
    for key in above:
        value = value[key]
    return value, last


def _make_room(path: Path) -> Path:
    """The path, at which nothing is any more, in a folder that is there."""
    is_folder = path.is_dir() and not path.is_symlink()
    shutil.rmtree(path) if is_folder else path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@change
def put(root: Path, file: str, path: str, value: Any) -> None:
    with edited(root / file) as whole:
        place, last = _walk(whole, path)
        place[last] = value


@change
def lacks(root: Path, file: str, path: str) -> None:
    with edited(root / file) as whole:
        place, last = _walk(whole, path)
        del place[last]


@change
def text(root: Path, file: str, data: bytes | str) -> None:
    data = data if isinstance(data, bytes) else data.encode()
    _make_room(root / file).write_bytes(data)


@change
def on(root: Path, pattern: str, how: Callable[[bytes], bytes]) -> None:
    """Change the bytes of a file."""
    (path,) = root.glob(pattern)
    path.write_bytes(how(path.read_bytes()))


def raw(file: str, old: str, new: str) -> Change:
    """Replace text that JSON could not hold otherwise."""

    def replace(data: bytes) -> bytes:
        assert old.encode() in data, file
        return data.replace(old.encode(), new.encode(), 1)

    return on(file, replace)


def cut(file: str, share: float) -> Change:
    return on(file, lambda data: data[: int(share * len(data))])


@change
def gone(root: Path, pattern: str) -> None:
    for path in list(root.glob(pattern)):
        _make_room(path)


@change
def link(root: Path, file: str, target: str = "private") -> None:
    """A link in place of a file or folder; `private` lies beside all bundles."""
    private = root.parent / target
    _make_room(root / file).symlink_to(private if target == "private" else target)


@change
def pipe(root: Path, file: str) -> None:
    os.mkfifo(_make_room(root / file))


@change
def folder(root: Path, file: str) -> None:
    _make_room(root / file).mkdir()


@change
def steps(root: Path, **members: Any) -> None:
    change_steps(_launch_of(root), **members)


def _launch_of(root: Path) -> Path:
    return root if (root / "steps.npz").exists() else root / LAUNCH


@change
def all_of(root: Path, *changes: Change) -> object:
    return [one(root) for one in changes][-1]


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


@change
def member(root: Path, data: bytes, kind: int = zipfile.ZIP_STORED) -> None:
    """Replace the seconds of rank 0."""
    path = _launch_of(root) / "steps.npz"
    with np.load(path) as arrays:
        files = {name: _npy(arrays[name]) for name in arrays} | {"rank0/seconds": data}
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, array in files.items():
            file.writestr(f"{name}.npy", array)


PICKLED = _npy(np.array([Bomb()], dtype=object), allow_pickle=True)


def _header(shape: tuple[int, ...]) -> bytes:
    """A header that claims more than follows."""
    file = io.BytesIO()
    said = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, said)
    return file.getvalue()


# --- archives -------------------------------------------------------------------------


def _member(
    name: str, data: bytes = b"{}", **own: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    for key, value in {"size": len(data), **own}.items():
        setattr(info, key, value)
    return info, data


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as file:
        for info, data in members:
            file.addfile(info, io.BytesIO(data))
    return plain.getvalue()


@change
def packed(root: Path, plain: bytes, end: bytes = b"", **how: bool) -> Path:
    """An archive with these bytes in place of a bundle."""
    path = root.parent / "evil.tar.zst"
    path.write_bytes(zstandard.ZstdCompressor(**how).compress(plain) + end)
    return path


def members(*names: str, **own: Any) -> Change:
    """An archive of a good file, and of these."""
    good = _member("a/first.json")
    return packed(_tar(good, *(_member(name, **own) for name in names)))


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


def _no_archive(root: Path) -> Path:
    path = root.parent / "x.pdf"
    path.write_bytes(b"%PDF-1.7")
    return path


_SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s"}
_SPARSE |= {"GNU.sparse.realsize": str(2**40)}
_KINDS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)
_FRAME = b"\x50\x2a\x4d\x18\4\0\0\0more"
_SIG = "signatures/0123456789abcdef.sig"
_TWO, _THREE = (_tar(*map(_member, names)) for names in ("ab", "abc"))

ARCHIVES = rows(
    *(
        (f"a member named {name!r:.30}", members(name), "is no name of a file")
        for name in (
            *("/evil.json", "../evil", "records/../../evil", "records\\..\\evil"),
            *("./SHA256SUMS", "records//evil", "records/\x1b[2Jevil", "records/e\nvil"),
            *("a/" * 600 + "evil", "signatures/../../evil.sig"),
        )
    ),
    *(
        (f"{name} is {kind!r}", special(name, kind, "/etc/passwd"), "is a link, a")
        for name in ("records", _SIG, "signatures")
        for kind in _KINDS
    ),
    *(
        (f"a header with {key}", members("b", **{key: value}), "other bytes here")
        for key, value in {
            **{"mode": 0o777, "mtime": 1, "uid": 7, "uname": "jdoe", "linkname": "x"},
            "pax_headers": {"comment": "x"},
        }.items()
    ),
    ("a device", special("zero", tarfile.CHRTYPE), "is a link, a"),
    ("a member twice", members("b", "b"), "twice"),
    ("members out of order", members("c", "b"), "not in its place"),
    ("a file that is a folder", members("b", "b/c"), "a file and a folder"),
    ("a sparse file", members("s", pax_headers=_SPARSE), "evil.tar.zst"),
    ("a byte behind a file", packed(_flip(_TWO, 612)), "other bytes here"),
    ("a damaged header", packed(_flip(_THREE, 1174)), "more follows"),
    ("bytes after the last file", packed(_TWO + b"hidden" * 100), "more follows"),
    ("bytes after the archive", packed(_TWO, b"more"), "something follows"),
    ("a frame after it", packed(_TWO, _FRAME), "something follows"),
    ("an endless header", packed(_endless()), "larger than any"),
    ("no size", packed(_TWO, write_content_size=False), "does not tell"),
    ("a bomb", packed(bytes(300 * 2**20)), "RANKBENCH_BUNDLE_MIB"),
    ("no files list", members("plan.json"), f"{SUMS}: is missing"),
    ("no archive", _no_archive, "is not compressed by zstd", 2),
)

# --- a bundle whose author lies -------------------------------------------------------

PLAN, ABOUT, TREE = "plan.json", "about.json", "work/experiment.yaml"
SVG, CRATE = "plots/throughput.svg", "ro-crate-metadata.json"
CODE = "work/code/rankbench-0.0.7-py3-none-any.whl"
V7, OLDER = (
    all_of(maker(rankbench="0.0.7", **method), gone("work/code/*.whl"), text(CODE, ""))
    for method in ({}, {"method": 99})
)
SHOWN = all_of(V7, text("table.html", SCRIPT))
_BEGIN = '{"schema": 1, "status": "ok", "reason": null, "x": ['
LONG, LISTS = f"{_BEGIN}{'0,' * 2_200_000}0]}}", f"{_BEGIN}{'[],' * 700_000}0]}}"
PATHS = ("../../x", "..", "/etc/x", ".x", "-rf", "a\nb", "x\n", "", "x" * 300)
OWN, CACHED = "work/own/*/net.py", "__pycache__/net.pyc"
OWN_RECORD = RECORD.replace("convnet", "net")
_MODEL = "cell.own_files.model.digest"
NO, MISWRITTEN = "not verified: not all was derived again", "not written as"


def rewritten(how: Callable[[list[bytes]], list[bytes]]) -> Change:
    """Change the lines of SHA256SUMS."""
    return on(SUMS, lambda data: b"".join(how(data.splitlines(keepends=True))))


@change
def beside_own(root: Path, name: str) -> None:
    (place,) = root.glob("work/own/*")
    text(name, "x")(place)


def double(root: Path) -> None:
    with edited(root / PLAN) as value:
        value["cells"] *= 2


LIES = [
    *rows(
        # What was not derived again is not called verified.
        ("a table of another method", all_of(OLDER, text("table.csv", "x\n")), NO, 3),
        ("a page of another method", all_of(OLDER, SHOWN), "table.html", 3),
        ("another method alone", maker(method=999), "has method"),
        ("a page of another version", SHOWN, "table.html", 0),
        ("a number of it", all_of(V7, raw("table.csv", "ok", "OK")), "table.csv, row"),
        ("a plot of something else", raw(SVG, "<svg", "<svg id='x'"), "plots/*.svg", 0),
        ("another library", all_of(maker(rocrate="0"), text(CRATE, "{}")), CRATE, 0),
        ("a method that is a text", maker(method="1"), "made_with.method"),
        # Memory.
        ("a record of 4.4 MB", text(RECORD, LONG), "more than 4 MiB"),
        *(
            (f"{file} of lists", text(file, LISTS), "more lists than any")
            for file in (RECORD, ABOUT, PLAN)
        ),
        # Names that lead elsewhere, and values that no experiment has.
        *(
            (f"{path} {name!r:.20}", put(PLAN, path, name), "must match")
            for path in ("experiment.name", "cells.0.id")
            for name in (*PATHS, TERMINAL)
        ),
        ("an image's path", put(PLAN, "images", {"../../x": None}), "images must be"),
        *(
            (f"{key} {value!r:.20}", put(PLAN, f"cells.0.cell.{key}", value), key)
            for key, value in (
                *(("strategy", SCRIPT), ("model", FORMULA), ("batch_size", 10**400)),
                *(("topology", "1x" + "9" * 50), ("options", []), ("num_workers", -1)),
            )
        ),
        ("a cell twice", double, "stands in it twice"),
        ("another plan", text(PLAN, '{"schema": 99}'), "plan schema 99"),
        # Scripts and escapes.
        *(
            (f"a plot with {it}", raw(SVG, "</svg>", f"{it}</svg>"), "has a script")
            for it in (
                *("<script>1</script>", "<SCRIPT src='x'/>", "<a onload='x'/>"),
                *("<a href='javascript:x'/>", "<foreignObject/>", "<svg:script/>"),
                *("<use href='http://x'/>", "<!ENTITY x 'y'>", "\0", "<set to='x'/>"),
            )
        ),
        *(
            (f"made by {version!r:.20}", maker(rankbench=version), "made_with.rankb")
            for version in (TERMINAL, "", "x" * 99, None, 7, "1.0\n")
        ),
        # Numbers and texts that do not follow.
        ("a faster launch", put(RECORD, "ranks.0.window_s", 0.01), "throughput: publ"),
        ("a launch less", gone(LAUNCH), "column status"),
        ("a cell less", lacks(PLAN, "cells.0"), "table.csv, row 3"),
        ("another word", raw("table.html", "convnet", "resnet9"), "table.html, line"),
        ("other data", raw("sections/scaling.csv", "ddp", "zero"), "scaling.csv, row"),
        ("pickled steps", member(PICKLED), "not floats"),
        ("a record of NaN", text(RECORD, '{"schema": 1, "status": NaN}'), RECORD),
        ("other hosts", raw(ABOUT, "Example CPU", "Faster CPU"), "about.json, hosts"),
        (
            "another experiment",
            all_of(put(ABOUT, "anonymised", False), text(TREE, "name: x\n")),
            "is not the file",
        ),
        *(
            (f"{name} is another", text(name, "another\n"), f"{name}, line 1")
            for name in ("README.md", CRATE, "CITATION.cff", "table.md")
        ),
        *(
            (f"{name} is gone", gone(name), f"{name}: is missing")
            for name in (CRATE, "table.csv", "sections/scaling.csv", SVG)
        ),
        # Files that no bundle has.
        *(
            (f"a file {name}", text(name, "x"), f"{name}: is no part of a bundle")
            for name in (
                *("evil.html", "evil.js", "a/table.csv", "plots/a/b.csv"),
                *(f"{LAUNCH}/x.sh", "work/own/a/x.py", "manifest.json"),
            )
        ),
        *(
            (f"an older file {name}", all_of(OLDER, text(name, "x")), "is no part of")
            for name in ("evil.js", "a/table.csv", "plots/a/b.csv")
        ),
    ),
    *rows(("a page, --strict", SHOWN, NO), command=STRICT, status=3),
    *rows(
        ("a path as digest", put(PLAN, f"cells.0.{_MODEL}", "../../etc"), "etc"),
        ("one in a record", put(OWN_RECORD, _MODEL, "../../etc"), "etc"),
        ("another model", on(OWN, lambda data: data + b"#"), "holds other files"),
        ("no model", gone("work/own/*"), "is missing: a cell was"),
        ("a file beside it", beside_own("x.py"), "holds other files"),
        ("a compiled model", beside_own(CACHED), "no part of a bundle"),
        base="own",
    ),
    *rows(
        # Links and pipes are not followed.
        *(
            (f"{name} is {kind}", make(name), f"{name}: is a link, a pipe or a device")
            for name in (LOG, RECORD, "plots", "records", PLAN, "signatures", _SIG)
            for kind, make in (("a link", link), ("a pipe", pipe))
        ),
        ("a loop of links", link("x", "."), "x: is a link"),
        ("the list is a link", link(SUMS), "is no bundle", 2),
        # SHA256SUMS itself.
        ("a file too much", text("x.csv", ""), "x.csv: is not listed"),
        ("a changed byte", raw(RECORD, "ok", "oK"), "record.json: has another SHA-256"),
        ("a file less", gone("table.md"), "table.md: is missing: SHA256SUMS"),
        ("a list of other order", rewritten(lambda lines: lines[::-1]), MISWRITTEN),
        ("a line twice", rewritten(lambda lines: [*lines, lines[0]]), MISWRITTEN),
        ("something else", rewritten(lambda lines: [*lines, b"# x\n"]), MISWRITTEN),
        ("an empty list", text(SUMS, ""), "plan.json: is not listed"),
        ("a list that is no text", text(SUMS, b"\xff\0"), "plan.json: is not listed"),
        ("results that are no bundle", gone(SUMS), "is no bundle", 2),
        ("and have a link", all_of(gone(SUMS), link("plots")), "is no bundle", 2),
        sealed=False,
    ),
]


# --- replay: a bundle measures what its plan says, or nothing -------------------------

HONEST = """\
name: small
strategy: ddp
topology: [1x1, 1x2]
steps: 8
warmup: 2
launches: 1
"""
NO_FILE, NO_CELL = "the bundle has no file of", "is no cell of the bundle's plan"
PULLED = f"{HONEST}images: {{x: {{source: docker://x}}}}\n"


def same(_: Path) -> None:
    """Change nothing."""


REPLAYS = [
    *(
        Attack(f"{more.strip()} ({how[-5:]})", text(TREE, HONEST + more), said, 2, how)
        for how in (REPLAY, RUN)
        for said, experiments in {
            NO_CELL: (
                *("seed: 7\n", "batch_size: [32, 64]\n", "env: {LD_PRELOAD: /x.so}\n"),
                "blocks: [{seed: 9}]\n",
            ),
            NO_FILE: (
                *("model: [{/x.py: {}}]\n", "model: /etc/evil.py\n"),
                *("data: [digits, ../x.py]\n", "blocks: [{strategy: /x.py}]\n"),
                *("script: ../../evil.py\n", "script: -m http.server\n"),
            ),
        }.items()
        for more in experiments
    ),
    *rows(
        *(
            (f"YAML {said[:20]!r}", text(TREE, said), word)
            for said, word in (
                ("a: &a [x]\nb: [*a, *a]\n", "without aliases"),
                ("- 1\n", "expected a mapping"),
                ("a: [\n", "is not YAML"),
                ("[" * 2000, "is not YAML"),
                ("a: !!python/object/apply:os.system [x]\n", "is not YAML"),
                ("#" * 1_100_000, "has more than"),
            )
        ),
        ("an image to be pulled", text(TREE, PULLED), "nothing was run", 0),
        command=REPLAY,
        status=2,
    ),
    *rows(
        ("a path as name", put(PLAN, "experiment.name", "../../x"), "must match"),
        ("a faulty bundle", text("table.csv", "cell\n"), "because it has faults"),
        ("a link as record", link(RECORD), "because it has faults"),
        command=RUN,
        status=2,
    ),
    *(
        Attack(f"{name} ({how[-5:]})", same, f"{code}{said}", status, how, base)
        for name, base, said in (
            ("their code", "own", "work/own/"),
            ("their variable", "env", "LD_AUDIT="),
        )
        for how, status, code in ((RUN, 2, "code of its own: "), (REPLAY, 0, "code: "))
    ),
]

# --- results of a stranger, which are read, or published again ------------------------


def _ask(root: Path) -> None:
    """As if the cell had been asked for, which `status` looks at."""
    digest = json.loads((root / PLAN).read_text())["cells"][1]["hash"]
    asked = {"attempt": 1, "launches": 1, "cell_hash": digest}
    text(f"requests/{DDP}.json", json.dumps(asked))(root)


def _no_sha256(root: Path) -> None:
    image = {"recipe": "0" * 64, "sha256": None}
    put(PLAN, "images", {"x": image})(root)
    put(PLAN, "cells.1.image", "x")(root)
    put(RECORD, "image", {"name": "x", **image})(root)


FAILED = all_of(put(RECORD, "status", "crashed"), put(RECORD, "reason", TERMINAL), _ask)
ASKED = f"requests/{DDP}.json"

READERS = [
    *(
        row
        for command in (TABLE, STATUS, COMPARE, PUBLISH, "answer {b}")
        for row in rows(
            *(
                (f"{name} is {kind}, {command}", make(name), "is a link, a pipe or a")
                for name, kind, make in (
                    *(("plots", "a link", link), (LOG, "a link", link)),
                    *((RECORD, "a pipe", pipe), ("site", "a link", link)),
                )
            ),
            (
                f"a cell's path, {command}",
                put(PLAN, "cells.0.id", "../x"),
                "must match",
            ),
            (f"a plan of lists, {command}", text(PLAN, LISTS), "more lists than any"),
            command=command,
            status=2,
        )
    ),
    *rows(
        ("a folder of code", link("work/code/0123/containers"), "is a link"),
        ("its assets", link("work/code/0123/src/rankbench/assets/x/y"), "is a link"),
        ("half a record, publish", cut(RECORD, 0.5), "record.json is damaged"),
        ("no steps, publish", text(TIMES, ""), "steps.npz is damaged"),
        command=PUBLISH,
        status=2,
    ),
    *rows(
        *(
            (f"half of {file[-11:]}, {command}", cut(file, 0.5), "ddp", 3, command)
            for file in (RECORD, TIMES)
            for command in (COMPARE, "answer {b}")
        ),
        ("half a record, of a cell", cut(RECORD, 0.5), RECORD, 2, f"{STATUS} {DDP}"),
    ),
    *rows(
        ("no sense, table", put(RECORD, "status", "well"), "record.json"),
        ("lists, table", text(RECORD, LISTS), "record.json"),
        ("no steps, table", text(TIMES, ""), f"{TIMES} is damaged"),
        ("escapes, table", FAILED, "owned"),
        ("an image without sha256", _no_sha256, "1x2"),
        command=TABLE,
        status=0,
    ),
    *rows(
        *(
            (f"{key}, status", all_of(_ask, change), f"{file} is damaged")
            for key, file, change in (
                ("no sense", RECORD, put(RECORD, "status", "well")),
                ("lists", RECORD, text(RECORD, LISTS)),
                ("no start", RECORD, lacks(RECORD, "started")),
                ("no number", RECORD, lacks(RECORD, "launch")),
                ("an empty image", RECORD, put(RECORD, "image", {})),
                ("empty hosts", RECORD, put(RECORD, "hosts", [{}])),
                ("launches", ASKED, put(ASKED, "launches", [])),
                ("an attempt", ASKED, put(ASKED, "attempt", "../../elsewhere")),
                ("another key", ASKED, put(ASKED, "unknown", 1)),
            )
        ),
        ("escapes, status", FAILED, "owned", 1),
        command=STATUS,
        status=0,
    ),
]

# --- signatures -----------------------------------------------------------------------


ANY_SIG = "signatures/*"


def signature_of(root: Path) -> Path:
    (path,) = root.glob(ANY_SIG)
    return path


@change
def resigned(root: Path, namespace: str, data: bytes | None = None) -> None:
    key = root.parents[1] / "keys/jdoe"
    words = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", namespace]
    given = (root / SUMS).read_bytes() if data is None else data
    done = subprocess.run(words, input=given, capture_output=True, check=True)
    signature_of(root).write_bytes(done.stdout)


def _other_bits(data: bytes) -> bytes:
    """Bits that decoders of base64 ignore."""
    place = data.index(b"=\n-----END") - 1
    letters = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    last = letters[letters.index(chr(data[place])) + 1]
    return data[:place] + last.encode() + data[place + 1 :]


def _huge(root: Path) -> None:
    os.truncate(signature_of(root), 2**40)


def _renamed(root: Path) -> None:
    path = signature_of(root)
    path.rename(path.with_name(f"{'0' * 16}.sig"))


@change
def _copied(root: Path, name: str) -> None:
    text(f"signatures/{name}", signature_of(root).read_bytes())(root)


def _listed(root: Path) -> None:
    line = f"{'0' * 64}  signatures/{signature_of(root).name}\n".encode()
    rewritten(lambda lines: [*lines, line])(root)


def _many(root: Path) -> None:
    for number in range(100):
        (root / f"signatures/{number:016x}.sig").write_bytes(b"")


def _lines(data: bytes) -> bytes:
    return data.replace(b"\nU1NIU0lH", b"\nU1NI\nU0lH")


NOT_OURS, INVALID = "is not written as ssh-keygen", "is no valid signature of"
SIGNATURES = [
    *rows(
        ("a signature for git", resigned("git"), "namespace does not match"),
        ("a signature of a text", resigned("rankbench", b"{}"), INVALID),
        ("other bits of it", on(ANY_SIG, _other_bits), NOT_OURS),
        ("other lines of it", on(ANY_SIG, _lines), NOT_OURS),
        ("it is cut off", on(ANY_SIG, lambda data: data[:-40]), NOT_OURS),
        ("it is huge", _huge, NOT_OURS),
        ("it is empty", on(ANY_SIG, lambda _: b""), NOT_OURS),
        ("another name", _renamed, "another name than its key"),
        ("a copy", _copied("jdoe.sig"), "signatures/jdoe.sig: is not listed"),
        ("a copy in a folder", _copied(f"sub/{'a' * 16}.sig"), "is not listed in"),
        ("it is listed", _listed, "is a signature, but"),
        ("a hundred more", _many, "no more than 100"),
        ("it is gone", gone(ANY_SIG), "there is none by jdoe"),
        command=SIGNED,
        base="signed",
        sealed=False,
    ),
    *rows(
        ("sealed after it", raw(RECORD, "Example CPU", "Faster CPU"), INVALID),
        ("another version after it", V7, INVALID),
        command=SIGNED,
        base="signed",
    ),
    *rows(
        ("a stranger", same, "does not count in", 1, f"verify {{b}} {ROE}"),
        ("one of two", same, "there is none by roe", 1, f"{SIGNED} {ROE}"),
        ("faults", text("table.csv", ""), "is not signed, because", 2, ADD),
        base="signed",
        sealed=False,
    ),
    Attack("nobody", same, "there are none: nobody in", 1, ALLOWED, sealed=False),
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
                *("status", "reason", "ranks", "samples", "phases", "hosts"),
                "software",
                *("cell_hash", "wanted", "ranks.0.window_s", "ranks.1.memory"),
            )
        },
        **{
            f"{path} {value!r:.24}": put(_R, path, value)
            for path, value in (
                *(("schema", 0), ("schema", "1"), ("schema", TERMINAL)),
                ("marks", "none"),
                *(("status", "fine"), ("status", 1), ("reason", 3), ("ranks", [])),
                *(("ranks", [3]), ("ranks.1.rank", 7), ("ranks.0.window_s", -1.0)),
                *(("ranks.0.window_s", 0), ("ranks.0.window_s", "fast")),
                *(("samples", True), ("hosts", [1]), ("software", {}), ("phases", [])),
                ("phases", [PHASES[0]] * len(PHASES)),
                *(("steps", 0), ("steps", 10**9), ("accuracy.overall", 7)),
                *(("loss.last", 1e300), ("round", {"seed": 1}), ("launch", 2)),
                *(("surroundings", [_HOST]), ("devices", [{"before": {"others": 1}}])),
                *(("attempt", 2), ("cell_id", "ddp.gloo.2x2.convnet.digits")),
            )
        },
    },
    _T: {
        "none": gone(_T),
        "empty": text(_T, b""),
        "half of it": cut(_T, 0.5),
        "no archive": text(_T, b"no archive at all"),
        "a folder": folder(_T),
        "a flipped bit": on(_T, lambda data: _flip(data, 300)),
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
        "objects": member(PICKLED),
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
