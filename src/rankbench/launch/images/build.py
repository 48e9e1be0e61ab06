"""From what an image is made of to a verified file with its sidecar."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from rankbench.launch.environment import SOURCE
from rankbench.launch.images import apptainer, checks
from rankbench.launch.images.fetch import fetched
from rankbench.launch.images.store import (
    SIDECAR_VERSION,
    TEST,
    Image,
    Sidecar,
    check_sif,
    hash_file,
    reason_to_make,
)
from rankbench.launch.processes import end_descendants
from rankbench.record import write_json

# GiB that a build takes at its largest, unpacked; and that its downloads and the image
# take, which stay.
SPACE = {"cpu": (5.0, 1.5), "cuda": (30.0, 10.0)}

# What Apptainer says when a step begins.
_STEPS = {
    "Starting build": "bootstrap",
    "Running post scriptlet": "%post",
    "Running testscript": "%test",
    "Creating SIF file": "squash",
}

# Every image has one.
_INSIDE = "/mnt"


@dataclass
class Work:
    """One image in the making: its log, and how far it is.

    Attributes:
        steps: seconds of each step, the last one unfinished.
    """

    image: Image
    log: TextIO
    tell: Callable[[str], None]
    steps: dict[str, float] = field(default_factory=dict)
    _begun: float = field(default_factory=time.monotonic)
    _step_begun: float = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def say(self, text: str) -> None:
        line = f"{self.image.name}  {self.seconds:4.0f} s  {text}"
        print(f"== {line}", file=self.log, flush=True)
        self.tell(line)

    def begin(self, step: str) -> None:
        self.end()
        self.steps[step], self._step_begun = 0.0, time.monotonic()
        self.say(step)

    def end(self) -> None:
        if self.steps:
            seconds = time.monotonic() - self._step_begun
            self.steps[next(reversed(self.steps))] = round(seconds, 1)

    def follow(self, lines: Iterable[str]) -> None:
        """Write what Apptainer says to the log, and tell of the steps.

        Raises:
            ValueError: it failed; by what it said, or its last words.
        """
        said: list[str] = []
        try:
            for line in lines:
                self.log.write(line)
                said.append(line)
                self._notice(line)
        except subprocess.CalledProcessError:
            text = "".join(said)
            cause = checks.diagnose(text) or "it says:\n  " + checks.last_words(
                text, lines=5
            ).replace("\n", "\n  ")
            raise ValueError(cause) from None

    def _notice(self, line: str) -> None:
        for sign, step in _STEPS.items():
            if line.startswith("INFO:") and sign in line and step not in self.steps:
                self.begin(step)
        if line.startswith("== "):
            # What %post says of its own progress; how long it took stands before it.
            self.say(f"%post: {line.rstrip().rpartition(': ')[2]}")


def make_image(
    image: Image,
    *,
    mirror: str,
    log_path: Path,
    tell: Callable[[str], None],
    force: bool = False,
) -> Sidecar:
    """Build or take an image, prove what it promises, and put it into its place.

    An image that is there as it is wanted is left alone, and its sidecar written anew:
    it is up to date as of now.

    Args:
        image: from `store.load_images`.
        mirror: site key `debian_mirror`.
        log_path: gets everything that is said meanwhile.
        tell: gets a line for each step.
        force: also if it is there.

    Raises:
        ValueError: which step failed, why, and what to do. What was there before is
            there still.
    """
    image.request.parent.mkdir(parents=True, exist_ok=True)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(image, tell), open(log_path, "w") as log:
        if not force and reason_to_make(image) is None:
            known = check_sif(image)
            write_json(image.sidecar, known)
            return known
        work = Work(image, log, tell)
        try:
            return _make(work, mirror)
        except (ValueError, OSError) as error:
            step = next(reversed(work.steps), "preparation")
            work.say(f"{step} failed: {error}")
            raise ValueError(
                f"image {image.name}: {step} failed after {work.seconds:.0f} s: "
                f"{error}\n  log: {log_path}"
            ) from None
        finally:
            # Apptainer removes what it has unpacked when it is told to end.
            end_descendants(grace=60)


def verify(image: Image, sif: Path, work: Work) -> dict[str, Any]:
    """Hold an image to what it promises; returns what was found in it.

    Raises:
        ValueError: a promise is not kept.
    """
    gpu = ("--nv",) if _has_gpu(image) else ()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, TEST).write_bytes((image.containers / TEST).read_bytes())
        write_json(Path(folder, "image.json"), image.promise)
        test = ["python3", f"{_INSIDE}/{TEST}", "--image-json", f"{_INSIDE}/image.json"]
        binds = [f"{folder}:{_INSIDE}:ro"]
        options = [*apptainer.APART, *gpu]
        work.follow(apptainer.execute(sif, test, binds=binds, options=options))
    return ask_facts(image, sif)


def ask_facts(image: Image, sif: Path) -> dict[str, Any]:
    """What planning must know of an image, found by the project's own code in it.

    Raises:
        ValueError: it differs from what the image promises.
    """
    probe = ["python3", "-m", "rankbench.rank.probe", *image.promise["programs"]]
    options = [*apptainer.APART, "--env", f"PYTHONPATH={_INSIDE}"]
    said = _ask(sif, probe, binds=[f"{SOURCE}:{_INSIDE}:ro"], options=options)
    facts: dict[str, Any] = json.loads(said.splitlines()[-1])
    # Of this machine, not of the image.
    for key in ("cores", "cuda_devices"):
        facts.pop(key, None)
    broken = [
        f"{key}: promised {image.promise[key]}, found {facts[key]}"
        for key, kept in _kept(image.promise, facts).items()
        if not kept
    ]
    if broken:
        raise ValueError(f"it is not as images.yaml promises: {'; '.join(broken)}")
    return facts


def _make(work: Work, mirror: str) -> Sidecar:
    image = work.image
    begun = datetime.now(UTC)
    apptainer.find_program()
    beside = image.sidecar.with_name(f".{image.name}.sif")
    beside.unlink(missing_ok=True)
    try:
        sif = _obtain(work, mirror, beside)
        work.begin("verify")
        facts = verify(image, sif, work) if image.given else ask_facts(image, sif)
        work.begin("provenance")
        sidecar: Sidecar = {
            "schema": SIDECAR_VERSION,
            "name": image.name,
            "sha256": hash_file(sif),
            "bytes": sif.stat().st_size,
            "recipe": image.recipe,
            "definition": image.promise["definition"] if image.definition else None,
            "inputs": image.inputs,
            "source": image.given.source if image.given else None,
            "built": begun.isoformat(timespec="seconds"),
            "apptainer": apptainer.version(),
            "facts": facts,
            "packages": list_packages(sif),
        }
        if image.given and image.given.sha256 not in (None, sidecar["sha256"]):
            raise ValueError(
                f"{sif} has the SHA-256 {sidecar['sha256']}, the site key images: "
                f"{image.name} says {image.given.sha256}: take the right file, or "
                "correct the key if this one is trusted"
            )
        work.end()
        sidecar |= {"seconds": round(work.seconds, 1), "steps": work.steps}
        # Never a sidecar beside a file that it does not describe.
        image.sidecar.unlink(missing_ok=True)
        if sif == beside:
            os.replace(beside, image.file)
        write_json(image.sidecar, sidecar)
    finally:
        beside.unlink(missing_ok=True)
    work.say(f"done: {image.file}, {sidecar['bytes'] / 2**20:.0f} MiB")
    return sidecar


def _obtain(work: Work, mirror: str, beside: Path) -> Path:
    """The file of an image, not yet in its place if it is made here."""
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
    address = checks.find_mirror(mirror)
    checks.check_mirror(address, image.promise["suite"])
    work.begin("fetch")
    with fetched(image, log=work.log.write) as wheels:
        options = ["--force", "--warn-unused-build-args"]
        values = {"mirror": address, "flavour": image.flavour, "wheels": str(wheels)}
        for name, value in values.items():
            options += ["--build-arg", f"{name}={value}"]
        with checks.explaining_full_disks((checks.build_dir(), beside.parent)):
            work.follow(apptainer.build(beside, image.definition, options))
    for name, sha256 in image.inputs.items():
        if hash_file(image.containers / name) != sha256:
            raise ValueError(f"{name} was changed meanwhile: run it again")
    return beside


def list_packages(sif: Path) -> dict[str, dict[str, str]]:
    """Packages and their versions: of Debian, and of the Python of the ranks."""
    dpkg = _ask(sif, ["dpkg-query", "-W", "-f", "${Package} ${Version}\\n"])
    return {
        "dpkg": dict(line.split() for line in dpkg.splitlines()),
        "pip": json.loads(_ask(sif, ["python3", "-c", _LIST])),
    }


# What `pip list` lists, also where there is no pip.
_LIST = """
import importlib.metadata, json
found = importlib.metadata.distributions()
print(json.dumps({one.metadata["Name"]: one.version for one in found}))
"""


def _ask(sif: Path, command: list[str], **settings: Any) -> str:
    """What a command in the image prints."""
    said: list[str] = []
    try:
        said.extend(apptainer.execute(sif, command, stream="stdout", **settings))
    except subprocess.CalledProcessError:
        shown = " ".join(command)
        raise ValueError(f"`{shown}` fails in the image: see above") from None
    return "".join(said)


def _kept(promise: dict[str, Any], facts: dict[str, Any]) -> dict[str, bool]:
    """For each promise that the facts speak of, whether it is kept."""
    return {
        "torch": facts["torch"].partition("+")[0] == promise["torch"],
        "backends": set(promise["backends"]) <= set(facts["backends"]),
        "rpc": facts["rpc"] or not promise["rpc"],
        "horovod": set(promise["horovod"]) <= set(facts["horovod"]),
        "programs": all(facts["programs"].values()),
    }


def _has_gpu(image: Image) -> bool:
    return image.flavour == "cuda" and os.path.exists("/dev/nvidiactl")


@contextmanager
def _alone(image: Image, tell: Callable[[str], None]) -> Iterator[None]:
    """Two at once: the second waits, and finds the image of the first."""
    lock = FileLock(image.request.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        tell(f"{image.name}  waiting: another process makes it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
