"""Changes of a signed bundle, at random but from a seed, and what `verify` says."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import subprocess
import tarfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from rankbench.cli import main
from rankbench.results.bundle import sign_bundle, write_bundle
from rankbench.results.bundle.manifest import MANIFEST, list_files, write_manifest
from rankbench.results.read.archive import pack
from unit.synthetic import make_cell, plan_cell, write_launches, write_plan

SIGNERS = ("author", "reviewer")


@dataclass(frozen=True, slots=True)
class Trial:
    """A change, and what `rankbench verify` said about it.

    Attributes:
        what: the change.
        names: one of these must occur in what was said.
        status: exit status; None if there was a traceback.
        said: what was printed.
        idle: whether the bundle has the same contents as before.
    """

    what: str
    names: tuple[str, ...]
    status: int | None
    said: str
    idle: bool = False

    @property
    def refused(self) -> bool:
        return self.status in (1, 2)

    @property
    def named(self) -> bool:
        return self.refused and any(name in self.said for name in self.names)


class Target:
    """A small bundle with two signatures, as a folder and as an archive.

    Keys are new each time. Bundles have the same sizes and names, except for the names
    of signatures.

    Args:
        folder: an empty folder for all files.
    """

    def __init__(self, folder: Path) -> None:
        cells = [plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))]
        layout = write_plan(folder / "results", cells, launches=1)
        for cell in cells:
            write_launches(layout, cell, count=1, wanted=1)
        self.bundle, self.archive = folder / "bundle", folder / "bundle.tar.zst"
        self._options = []
        for name in SIGNERS:
            make_key(folder / name)
            shutil.copy(folder / f"{name}.pub", folder / f"{name}.keys")
            self._options += ["--signer", str(folder / f"{name}.keys")]
        keys = [folder / name for name in SIGNERS]
        write_bundle(layout, self.bundle, anonymise=False, key=keys[0])
        names, _ = list_files(self.bundle)
        pack(self.bundle, names, self.archive)
        for path in (self.bundle, self.archive):
            sign_bundle(path, keys[1])
        self.files = {
            path.relative_to(self.bundle).as_posix(): path.read_bytes()
            for path in sorted(self.bundle.rglob("*"))
            if path.is_file()
        }
        self._packed = self.archive.read_bytes()
        self._tar = zstandard.decompress(self._packed)

    def verify(self, path: Path) -> tuple[int | None, str]:
        """Exit status and output; the status is None if there was a traceback."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                status = main(["verify", str(path), *self._options])
            except Exception:
                status = None
                traceback.print_exc()
        return status, said.getvalue()

    def try_folder(self, what: str, *names: str) -> Trial:
        """Verify the folder, and undo what was changed in it."""
        trial = Trial(what, names, *self.verify(self.bundle))
        for path in sorted(self.bundle.rglob("*"), reverse=True):
            name = path.relative_to(self.bundle).as_posix()
            if path.is_dir():
                with contextlib.suppress(OSError):
                    path.rmdir()
            elif name not in self.files:
                path.unlink()
        for name, data in self.files.items():
            path = self.bundle / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)
        return trial

    def try_archive(self, what: str, data: bytes, *names: str) -> Trial:
        """Verify other bytes in place of the archive, and put its own back."""
        self.archive.write_bytes(data)
        status, said = self.verify(self.archive)
        self.archive.write_bytes(self._packed)
        idle = status == 0 and zstandard.decompress(data) == self._tar
        return Trial(what, (self.archive.name, *names), status, said, idle)

    def flip_file(self, dice: random.Random) -> Trial:
        """One byte of a file of the folder."""
        name = dice.choice(list(self.files))
        changed, what = flip(self.files[name], dice)
        (self.bundle / name).write_bytes(changed)
        return self.try_folder(f"{name}: {what}", name)

    def flip_archive(self, dice: random.Random) -> Trial:
        """One byte of the archive as it is."""
        changed, what = flip(self._packed, dice)
        return self.try_archive(what, changed)

    def flip_member(self, dice: random.Random) -> Trial:
        """One byte of the archive before it is compressed: contents, or a header."""
        changed, what = flip(self._tar, dice)
        place = int(what.split()[1])
        with tarfile.open(fileobj=io.BytesIO(self._tar)) as tar:
            name = [one.name for one in tar if one.offset <= place][-1]
        return self.try_archive(f"{name}: {what}", zstandard.compress(changed), name)

    def flip_and_seal(self, dice: random.Random) -> Trial:
        """One byte of a file that the manifest then agrees with."""
        listed = [n for n in self.files if n != MANIFEST and not n.endswith(".sig")]
        name = dice.choice(listed)
        changed, what = flip(self.files[name], dice)
        (self.bundle / name).write_bytes(changed)
        write_manifest(self.bundle)
        return self.try_folder(f"{name} and manifest: {what}", MANIFEST)

    def swap(self, dice: random.Random) -> Trial:
        """Two files change places."""
        while True:
            one, other = dice.sample(list(self.files), 2)
            if self.files[one] != self.files[other]:
                break
        (self.bundle / one).write_bytes(self.files[other])
        (self.bundle / other).write_bytes(self.files[one])
        return self.try_folder(f"{one} and {other} swapped", one, other)

    def remove(self, dice: random.Random) -> Trial:
        """A file is gone; if it is a signature, its signer is named."""
        name = dice.choice(list(self.files))
        (self.bundle / name).unlink()
        names = SIGNERS if name.endswith(".sig") else (name,)
        return self.try_folder(f"{name} removed", *names)

    def add(self, dice: random.Random) -> Trial:
        """A new file anywhere, or a copy of another one under a new name."""
        folder = dice.choice(sorted({str(Path(n).parent) for n in self.files}))
        stem = f"{dice.getrandbits(64):016x}"
        suffix = dice.choice([".sig", ".json", ".csv", ".html", ""])
        name = Path(folder, stem + suffix).as_posix()
        data = dice.choice([b"", b"{}\n", *self.files.values()])
        (self.bundle / name).write_bytes(data)
        return self.try_folder(f"{name} added", name)


def run(target: Target, kind: str, count: int, seed: int) -> Iterator[Trial]:
    """Trials of one kind, which only depend on the seed and the bundle."""
    dice = random.Random(f"{kind} {seed}")
    make: Callable[[random.Random], Trial] = getattr(target, kind)
    for _ in range(count):
        yield make(dice)


def flip(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    """The bytes with another value of one of them, and which one."""
    place, change = dice.randrange(len(data)), dice.randint(1, 255)
    changed = bytearray(data)
    changed[place] ^= change
    return bytes(changed), f"byte {place} xor {change:#04x}"


def make_key(path: Path, *, passphrase: str = "", comment: str = "") -> Path:
    """A key pair, PATH and PATH.pub."""
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", comment]
    subprocess.run([*words, "-f", str(path)], check=True, stdin=subprocess.DEVNULL)
    return path
