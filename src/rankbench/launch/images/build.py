"""Makes an image: a verified file with its sidecar."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from rankbench.launch.images import apptainer, checks
from rankbench.launch.images.bills import KINDS, write_bills
from rankbench.launch.images.fetch import fetched
from rankbench.launch.images.signing import check_key, sign
from rankbench.launch.images.spinning import spinning_steps_back
from rankbench.launch.images.store import (
    SIDECAR_VERSION,
    Image,
    Sidecar,
    hash_file,
    reason_to_make,
)
from rankbench.launch.images.verify import (
    ask_facts,
    check_sif,
    list_packages,
    prove,
    read_status,
)
from rankbench.launch.images.work import Work
from rankbench.launch.process.processes import end_descendants
from rankbench.record import write_json

# Flavour -> GiB for the unpacked image during a build, and GiB that stay: downloads and
# image.
SPACE = {"cpu": (5.0, 1.5), "cuda": (30.0, 10.0)}

# Levels of compression. A zstd image is no larger than a gzip image, is made in a third
# of the time, and is read faster. mksquashfs defaults to the highest level of gzip:
# this takes minutes more and saves a few MiB.
_LEVELS = {"zstd": 3, "gzip": 4}


def make_image(
    image: Image,
    *,
    mirror: str,
    torch_index: str,
    log_path: Path,
    tell: Callable[[str], None],
    force: bool = False,
    key: Path | None = None,
) -> Sidecar:
    """Build or pull an image, test its promises, and move it to its place.

    If the image is up to date, only its sidecar is written again, so that Snakemake
    finds it newer than the request.

    Args:
        image: from `store.load_images`.
        mirror: site key `debian_mirror`.
        torch_index: site key `torch_index`.
        log_path: file for the output of all steps.
        tell: receives a line for each step.
        force: whether to make the image even if it is up to date.
        key: signs an image that is built here; None: it is not signed.

    Raises:
        ValueError: a step failed; says which, why, and what to do. An earlier image
            is kept.
    """
    if key:
        check_key(key)
    image.request.parent.mkdir(parents=True, exist_ok=True)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(image, tell), open(log_path, "w") as log:
        if not force and reason_to_make(image) is None:
            known = check_sif(image)
            write_json(image.sidecar, known)
            return known
        work = Work(image, log, tell)
        try:
            return _make(work, mirror, torch_index, key)
        except (ValueError, OSError) as error:
            step = next(reversed(work.steps), "preparation")
            print(f"== {step} failed: {error}", file=log)
            raise ValueError(
                f"image {image.name}: {step} failed after {work.seconds:.0f} s: "
                f"{error}\n  log: {log_path}"
            ) from None
        finally:
            # Apptainer removes its unpacked files when it receives a signal to end.
            end_descendants(grace=60)


def _make(work: Work, mirror: str, torch_index: str, key: Path | None) -> Sidecar:
    image = work.image
    begun = datetime.now(UTC)
    apptainer.find_program()
    beside = image.sidecar.with_name(f".{image.name}.sif")
    beside.unlink(missing_ok=True)
    try:
        sif = _obtain(work, mirror, torch_index, beside)
        work.begin("verify")
        sha256 = _check_given(image, sif)
        facts = prove(image, sif, work) if image.given else ask_facts(image, sif)
        work.begin("provenance")
        packages = list_packages(sif)
        if key and image.definition:
            work.begin("sign")
            sign(sif, key)
            sha256 = hash_file(sif)
        sidecar: Sidecar = {
            "schema": SIDECAR_VERSION,
            "name": image.name,
            "sha256": sha256,
            "bytes": sif.stat().st_size,
            "recipe": image.recipe,
            "definition": image.promise["definition"] if image.definition else None,
            "inputs": image.inputs,
            "source": image.given.source if image.given else None,
            "built": begun.isoformat(timespec="seconds"),
            "apptainer": apptainer.version(),
            "facts": facts,
            "packages": packages,
            "signed": bool(key and image.definition),
        }
        work.end()
        sidecar |= {"seconds": round(work.seconds, 1), "steps": work.steps}
        # A sidecar must never describe another file.
        image.sidecar.unlink(missing_ok=True)
        if sif == beside:
            os.replace(beside, image.file)
        write_json(image.sidecar, sidecar)
        _write_bills(work, sidecar)
    finally:
        beside.unlink(missing_ok=True)
    work.say(f"done: {image.file}, {sidecar['bytes'] / 2**20:.0f} MiB")
    return sidecar


def _write_bills(work: Work, sidecar: Sidecar) -> None:
    """Write bills of materials beside the sidecar; an image is as good without."""
    try:
        written = write_bills(
            work.image.sidecar,
            sha256=sidecar["sha256"],
            built=sidecar["built"],
            status=read_status(work.image.file),
            python=sidecar["packages"]["pip"],
        )
    except (ValueError, OSError, subprocess.SubprocessError) as error:
        work.say(f"no bill of materials: {error}")
        return
    if len(written) < len(KINDS):
        work.say("a bill of materials is missing: pip install 'rankbench[bills]'")


def _obtain(work: Work, mirror: str, torch_index: str, beside: Path) -> Path:
    """Return the file of an image; it is at `beside` if it was made here."""
    image = work.image
    if image.given and image.given.file:
        return image.file
    building, kept = SPACE[image.flavour]
    checks.check_space({checks.build_dir(): building, beside.parent: kept})
    if image.given and image.given.source:
        work.begin("pull")
        work.follow(apptainer.pull(beside, image.given.source))
        return beside
    assert image.definition
    checks.find_debootstrap()
    address = checks.find_mirror(mirror, tell=work.say)
    checks.check_mirror(address, image.promise["suite"])
    work.begin("fetch")
    with fetched(image, torch_index=torch_index, log=work.log.write) as wheels:
        options = ["--force", "--warn-unused-build-args", *_squash_options()]
        values = {"mirror": address, "flavour": image.flavour, "wheels": str(wheels)}
        for name, value in values.items():
            options += ["--build-arg", f"{name}={value}"]
        with (
            checks.explaining_full_disks((checks.build_dir(), beside.parent)),
            spinning_steps_back(apptainer.find_program()),
            # Definitions contain paths relative to this folder.
            chdir(image.containers.parent),
        ):
            work.follow(apptainer.build(beside, image.definition, options))
    for name, sha256 in image.inputs.items():
        if hash_file(image.containers / name) != sha256:
            raise ValueError(f"{name} has changed during the build: run it again")
    return beside


def _squash_options() -> tuple[str, str]:
    """Return options that compress by zstd, if mksquashfs supports it (4.3 may not)."""
    # An ordinary user's PATH may lack the folder of mksquashfs.
    folders = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    name = "gzip"
    if program := shutil.which("mksquashfs", path=folders):
        command = [program, "-help"]  # its exit status depends on the version
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if "zstd" in said.stdout + said.stderr:
            name = "zstd"
    return "--mksquashfs-args", f"-comp {name} -Xcompression-level {_LEVELS[name]}"


def _check_given(image: Image, sif: Path) -> str:
    """Return the SHA-256 of a file, checked before a program in it runs."""
    found = hash_file(sif)
    if image.given and image.given.sha256 not in (None, found):
        raise ValueError(
            f"{sif} has the SHA-256 {found}, the site key images: {image.name} says "
            f"{image.given.sha256}: use the right file, or correct the key if you "
            "trust this one"
        )
    return found


@contextmanager
def _alone(image: Image, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of an image: a second process waits and finds the image made."""
    lock = FileLock(image.request.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        tell(f"{image.name}  waiting: another process is making it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
