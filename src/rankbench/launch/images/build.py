"""Makes an image: a verified file with its sidecar."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from rankbench import __version__
from rankbench.assets import find_asset
from rankbench.launch.hosts.base import output_of, run_to_end, take_lock
from rankbench.launch.images import apptainer, store
from rankbench.launch.images.verify import (
    ask_facts,
    check_file,
    list_packages,
    make_bill,
    read_image,
)
from rankbench.launch.processes import end_processes
from rankbench.own_files import hash_file
from rankbench.record import BILL, write_json

# Flavour -> GiB for the unpacked image during a build, and GiB that stay: downloads and
# image.
SPACE = {"cpu": (5.0, 1.5), "cuda": (15.0, 10.0)}

DOWNLOADS = ".downloads"
MIRROR_TIMEOUT = 20.0  # seconds
GIB = 1024**3

# Levels of compression. A zstd image is no larger than a gzip image, is made in a third
# of the time, and is read faster. mksquashfs defaults to the highest level of gzip:
# this takes minutes more and saves a few MiB.
_LEVELS = {"zstd": 3, "gzip": 4}


@dataclass
class Work:
    """The making of one image.

    Attributes:
        step: the name of the one that is under way.
    """

    image: store.Image
    log: TextIO
    tell: Callable[[str], None]
    step: str = "preparation"
    _begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def say(self, text: str) -> None:
        line = f"{self.image.name}  {self.seconds:4.0f} s  {text}"
        print(f"== {line}", file=self.log, flush=True)
        self.tell(line)

    def begin(self, step: str) -> None:
        self.step = step
        self.say(step)

    def follow(self, lines: Iterable[str]) -> None:
        """Write the output of Apptainer to the log, and report messages of %post."""
        for line in lines:
            self.log.write(line)
            if line.startswith("== "):
                # The seconds before the message are dropped.
                self.say(line.rstrip().rpartition(": ")[2])


def make_image(
    image: store.Image,
    tell: Callable[[str], None],
    settings: Mapping[str, Any] | None = None,
    log_path: Path | None = None,
    *,
    force: bool = False,
) -> None:
    """Build or pull an image, look into it, and move it to its place.

    If the image is up to date, its file is only compared with its sidecar.

    Args:
        image: from `store.load_images`.
        tell: receives a line for each step.
        settings: keys of a site file, of `store.SETTINGS`; an image that is built here
            is signed by its `image_key`.
        log_path: file for the output of all steps; None: beside the image.
        force: whether to make the image even if it is up to date.

    Raises:
        ValueError: a step failed; says which, why, and what to do. An earlier image
            is kept.
    """
    settings, log_path = settings or {}, log_path or image.sidecar.with_suffix(".log")
    # Also in a shared folder that is read-only.
    if not force and store.reason_to_make(image) is None:
        check_file(read_image(image.describe()))
        return
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(image, tell), open(log_path, "w") as log:
        if not force and store.reason_to_make(image) is None:
            return  # It was just made.
        work = Work(image, log, tell)
        try:
            _make(work, settings)
        except (ValueError, OSError) as error:
            if isinstance(error, OSError):
                error = ValueError(store.explain_folder(error, image.sidecar))
            print(f"== {work.step} failed: {error}", file=log)
            raise ValueError(
                f"image {image.name}: {work.step} failed after {work.seconds:.0f} s: "
                f"{error}\n  log: {log_path}"
            ) from None
        finally:
            # Apptainer removes its unpacked files when it receives a signal to end.
            end_processes(grace=60)


def _make(work: Work, settings: Mapping[str, Any]) -> None:
    image = work.image
    key = settings.get("image_key") if image.definition else None
    begun = datetime.now(UTC)
    program = apptainer.find_program()
    beside = image.sidecar.with_name(f".{image.name}.sif")
    beside.unlink(missing_ok=True)
    try:
        sif = _obtain(work, settings, beside)
        work.begin("verify")
        # Checked before a program in it runs.
        sha256 = hash_file(sif)
        given = image.given or {}
        if (wanted := given.get("sha256", sha256)) != sha256:
            raise ValueError(
                f"{sif} has the SHA-256 {sha256}, the key images: {image.name} says "
                f"{wanted}: use the right file, or correct the key if you "
                "trust this one"
            )
        facts = ask_facts(image, sif)
        work.begin("provenance")
        packages = list_packages(sif)
        if key:
            work.begin("sign")
            sign(sif, key)
            sha256 = hash_file(sif)
        sidecar: store.Sidecar = {
            "schema": store.SIDECAR_VERSION,
            "name": image.name,
            "sha256": sha256,
            "bytes": sif.stat().st_size,
            "recipe": image.recipe,
            "definition": image.promise["definition"] if image.definition else None,
            "inputs": image.inputs,
            "source": given.get("source"),
            "state": image.state,
            "built": begun.isoformat(timespec="seconds"),
            "apptainer": output_of(program, "--version"),
            "facts": facts,
            "packages": packages,
            "signed": bool(key),
            "seconds": round(work.seconds, 1),
        }
        # A sidecar must never describe another file.
        image.sidecar.unlink(missing_ok=True)
        if sif == beside:
            os.replace(beside, image.file)
        bill = image.sidecar.with_suffix(BILL)
        write_json(bill, make_bill(sidecar))
        # Last, because it says that all is up to date.
        write_json(image.sidecar, sidecar)
    finally:
        beside.unlink(missing_ok=True)
    work.say(f"done: {image.file}, {sidecar['bytes'] / 2**20:.0f} MiB")
    files = (image.file, image.sidecar, bill)
    if closed := [str(f) for f in files if not f.stat().st_mode & stat.S_IROTH]:
        work.say(f"other users cannot read it (umask): chmod o+r {' '.join(closed)}")


def _obtain(work: Work, settings: Mapping[str, Any], beside: Path) -> Path:
    """Return the file of an image; it is at `beside` if it was made here."""
    image = work.image
    if image.given and "source" in image.given:
        work.begin("pull")
        source = image.given["source"]
        work.follow(apptainer.run("pull", "--force", beside, source, lines=5))
        return beside
    if image.definition is None:
        if not image.file.exists():
            raise ValueError(f"{image.file} is missing: correct the key images")
        return image.file
    building, kept = SPACE[image.flavour]
    needed = {apptainer.build_dir(): building, beside.parent: kept}
    check_space({place: gib for place, gib in needed.items() if place.exists()})
    check_builds(settings.get("image_key"))
    find_debootstrap()
    if archive := settings.get("debian_archive"):
        address = f"{archive.rstrip('/')}/{image.snapshot}/"
    else:
        address = find_mirror(settings.get("debian_mirror", "auto"))
    work.say(f"Debian's packages from {address}")
    check_mirror(address, image.promise["suite"])
    work.begin("fetch")
    index = settings.get("torch_index", "auto")
    with fetched(image, torch_index=index, log=work.log.write) as wheels:
        options = ["--force", "--warn-unused-build-args", *_squash_options()]
        values = {"mirror": address, "flavour": image.flavour, "wheels": str(wheels)}
        commit = output_of("git", "-C", str(image.containers), "rev-parse", "HEAD")
        values["version"] = __version__
        values["revision"] = commit or "unknown"
        options += [f"--build-arg={name}={value}" for name, value in values.items()]
        # Definitions contain paths relative to this folder.
        work.begin("build")
        with chdir(image.containers.parent):
            paths = (beside, image.definition)
            work.follow(apptainer.run("build", *options, *paths, lines=5))
    for name, sha256 in image.inputs.items():
        if hash_file(image.containers / name) != sha256:
            raise ValueError(f"{name} has changed during the build: run it again")
    return beside


def find_mirror(configured: str) -> str:
    """Return the Debian mirror to build images from.

    Args:
        configured: site key `debian_mirror`: an address, or ``auto`` for the mirror
            that this machine's own apt uses, or else debootstrap's default.

    Raises:
        ValueError: ``auto``, and neither apt nor debootstrap names a mirror.
    """
    if configured != "auto":
        return configured
    fields = ("--format", "$(LABEL)|$(REPO_URI)", "Created-By: Packages")
    sources = output_of("apt-get", "indextargets", *fields) or ""
    # Without package lists there is no label. debootstrap cannot use Debian's security
    # archive or backports.
    address = r"^(?:Debian\|((?:http|file)\S+)|\|((?:http|file)\S*/debian/?))$"
    if found := re.search(address, sources, re.MULTILINE):
        return found[1] or found[2]
    program = find_debootstrap()
    # debootstrap is a shell script on every distribution.
    said = program.read_text(errors="replace")
    default = re.search(r"(?m)^DEF_MIRROR=[\"']?(\w+://[^\s\"']+)", said)
    if default is None:
        raise ValueError(
            f"this machine's apt names no Debian mirror, and {program} names no "
            "default: set `debian_mirror` in site.yaml to the address of a mirror"
        )
    return default[1]


def find_debootstrap() -> Path:
    """Return the path of debootstrap, which installs Debian into an image.

    Raises:
        ValueError: it is not installed; the message names the package.
    """
    if program := _which("debootstrap"):
        return Path(program)
    raise ValueError(
        "debootstrap is not installed, and building images needs it: have the "
        "machine's operator install the package `debootstrap` (Debian, Ubuntu: "
        "`apt-get install debootstrap`; RHEL, Rocky, Alma: `dnf install epel-release`, "
        "then `dnf install debootstrap`), or build on another machine and copy the "
        ".sif and .json"
    )


def _which(program: str) -> str | None:
    """The path of a program, also in folders that a user's PATH may lack."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def check_mirror(mirror: str, suite: str) -> None:
    """Check the mirror: request the file that a build requests first.

    Raises:
        ValueError: the file cannot be fetched.
    """
    address = f"{mirror.rstrip('/')}/dists/{suite}/InRelease"
    try:
        with urllib.request.urlopen(address, timeout=MIRROR_TIMEOUT) as answer:  # noqa: S310 (the mirror is the user's own)
            answer.read(1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"the Debian mirror cannot be reached: {address}: {reason}: "
            f"{apptainer.MIRROR_REMEDY}"
        ) from None


def check_builds(key: str | None) -> None:
    """Build an image of nothing, before anything is downloaded: half a second.

    Args:
        key: file with the key to sign it with, if any.

    Raises:
        ValueError: this machine does not build images, or the key cannot sign; says
            why, and what to do.
    """
    with tempfile.TemporaryDirectory() as folder:
        nothing, definition = Path(folder, "nothing.sif"), Path(folder, "nothing.def")
        definition.write_text("Bootstrap: scratch\n")
        said = "".join(apptainer.run("build", nothing, definition))
        # Without a range of user ids, only images with something in them fail.
        if why := apptainer.diagnose(said):
            raise ValueError(why)
        if key:
            sign(nothing, key)


def check_space(needed: Mapping[Path, float]) -> None:
    """Check that there is enough disk space to build.

    Args:
        needed: folder that the build writes to -> GiB that it needs there.

    Raises:
        ValueError: a folder has too little space; the message names the first.
    """
    for place, needs in needed.items():
        free = shutil.disk_usage(place).free / GIB
        if free < needs:
            raise ValueError(
                f"{place} has {free:.1f} GiB free, the build needs {needs:g} GiB: "
                f"{apptainer.SPACE_REMEDY}"
            )


def _squash_options() -> tuple[str, str]:
    """Return options that compress by zstd, if mksquashfs supports it (4.3 may not)."""
    name = "gzip"
    if program := _which("mksquashfs"):
        said = run_to_end([program, "-help"])
        if "zstd" in said.stdout + said.stderr:
            name = "zstd"
    return "--mksquashfs-args", f"-comp {name} -Xcompression-level {_LEVELS[name]}"


def sign(sif: Path, key: str) -> None:
    """Add a signature to the file of an image; that changes its SHA-256.

    Raises:
        ValueError: Apptainer does not sign, or others can read the key; says why.
    """
    if said := apptainer.why_not("sign", "--key", key, str(sif)):
        raise ValueError(
            f"site key image_key: {key} does not sign: {said}; it must be a private "
            "key in PEM format without a passphrase: `openssl genpkey -algorithm "
            "ed25519 -out KEY.pem` makes one"
        )
    if os.stat(key).st_mode & 0o077:
        raise ValueError(
            f"site key image_key: other users can read {key}: `chmod 600 {key}`"
        )


@contextmanager
def fetched(
    image: store.Image, *, torch_index: str, log: Callable[[str], object]
) -> Iterator[Path]:
    """Yield a temporary folder with all wheels and sources of an image.

    During the build, `%post` reaches only the Debian mirror: it does not trust a site's
    own certificate authority, and it must install exactly the packages checked here.
    Earlier downloads are used again. So a machine without a network needs only a copy
    of the folder `.downloads` from beside the image.

    Args:
        image: an image to build.
        torch_index: site key `torch_index`.
        log: receives the output of pip.

    Raises:
        ValueError: a package cannot be fetched, or has another hash.
    """
    downloads = image.sidecar.parent / DOWNLOADS
    downloads.mkdir(parents=True, exist_ok=True)
    folders = [
        _fetch(image, file, downloads, torch_index, log)
        for file in store.requirements_of(image.promise)
    ]
    with tempfile.TemporaryDirectory(prefix=".build-", dir=downloads) as together:
        # Two requirements files may name the same package.
        files = {path.name: path for folder in folders for path in folder.iterdir()}
        for name, path in files.items():
            os.link(path, Path(together, name))
        yield Path(together)


def _fetch(
    image: store.Image,
    file: str,
    downloads: Path,
    torch_index: str,
    log: Callable[[str], object],
) -> Path:
    """Return the folder of one requirements file; it exists only when complete."""
    name, key = Path(file).name, image.inputs[file][:12]
    place, options = downloads / f"{name}-{key}", []
    if name != store.SOURCES:
        python = image.promise["python"]
        place = downloads / f"{name}-{python}-{key}"
        options = ["--python", python]
    lock = take_lock(Path(f"{place}.lock"), wait=True)
    assert lock is not None
    with lock:
        if place.exists():
            return place
        partial = Path(f"{place}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        program = [sys.executable, str(find_asset("containers") / "torch_build.py")]
        files = [str(image.containers / file), str(partial)]
        options += ["--index", torch_index]
        done = run_to_end([*program, "download", *files, *options])
        log(done.stdout)
        if done.returncode:
            shutil.rmtree(partial, ignore_errors=True)
            raise ValueError(done.stderr.strip())
        partial.rename(place)
    return place


@contextmanager
def _alone(image: store.Image, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of an image: a second process waits and finds the image made."""
    try:
        image.lock.parent.mkdir(parents=True, exist_ok=True)
        if (lock := take_lock(image.lock)) is None:
            tell(f"{image.name}  waiting: another process is making it")
            lock = take_lock(image.lock, wait=True)
    except OSError as error:
        why = store.explain_folder(error, image.lock)
        raise ValueError(f"image {image.name}: {why}") from error
    assert lock is not None
    with lock:
        yield
