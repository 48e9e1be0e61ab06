"""Chooses and installs the build of torch for `make quickstart`.

Standard library only, because the Makefile runs this file before anything is installed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# The index for CPU builds according to PyTorch's installation page. It is the default
# of the site key `torch_index` and of the variable TORCH_INDEX.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OFF = "off"

# Only these come from the index above; otherwise it could replace any package.
PACKAGES = ("torch", "torchvision")

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements-torch.txt"
BUILDS = ("auto", "cpu", "cuda", "own")

# Platform of the CPU build of torch whose hash is in containers/requirements/cpu.txt.
_HASHED_CPU = ("linux", "x86_64", (3, 11))
# Platform of the CUDA libraries in containers/requirements/cuda.txt.
_HASHED_CUDA = ("linux", "x86_64")


class PipError(ValueError):
    """pip failed to fetch or install; the message is the line with the cause.

    Attributes:
        said: the complete output of pip.
    """

    def __init__(self, said: str) -> None:
        super().__init__(find_cause(said))
        self.said = said


@dataclass(frozen=True, slots=True)
class Choice:
    """The build of torch to install.

    Attributes:
        build: ``cpu``; ``cuda``, the default build, which is for CUDA on Linux; or
            ``own``, the build that pip's configuration leads to, without hash checks.
        why: reason for this build, shown to the user.
    """

    build: str
    why: str


def find_index(configured: str, name: str) -> str:
    """The address of the index for CPU builds, or ``off``.

    Args:
        configured: an address, ``off``, or ``auto`` for PyTorch's own index.
        name: key or variable with this value, for the error message.

    Raises:
        ValueError: `configured` is none of these.
    """
    if configured == "auto":
        return CPU_INDEX
    if configured != OFF and not re.fullmatch(r"(https?|file)://\S+", configured):
        raise ValueError(
            f"{name}: {configured!r} is neither an address (https://...) nor {OFF} nor "
            "auto: give the address of an index with CPU builds of torch"
        )
    return configured


def split_requirements(text: str) -> tuple[dict[str, str], str]:
    """Split requirements: those of torch and torchvision by name, and the others."""
    ours, others = {}, []
    for entry in re.split(r"(?m)^(?=\S)", text):
        name = re.match(r"[\w.-]*", entry)
        if name and name[0].lower() in PACKAGES:
            ours[name[0].lower()] = entry
        else:
            others.append(entry)
    return ours, "".join(others)


def run_pip(
    command: Sequence[str], requirements: str, log: Callable[[str], object]
) -> None:
    """Run pip on requirements, with the machine's own configuration.

    Raises:
        PipError: it failed.
    """
    # Without the option, pip would ask the index for a newer version of itself.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        done = subprocess.run(
            [*pip, *command, "-r", file.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    log(done.stdout)
    if done.returncode:
        raise PipError(done.stdout)


def run_pip_for_torch(
    command: Sequence[str],
    requirement: str,
    index: str,
    log: Callable[[str], object],
) -> None:
    """Run pip on one requirement of `PACKAGES`: configured sources, then the index.

    Args:
        command: command of pip.
        requirement: one requirement, which may have hashes.
        index: index to use if the configured sources lack the package, or ``off``.
        log: receives the output of pip.

    Raises:
        PipError: pip failed with the configured sources, and with the index.
    """
    try:
        run_pip(command, requirement, log)
    except PipError as error:
        if index == OFF or "No matching distribution found" not in error.said:
            raise
        log(f"the configured sources lack it; asking {index}\n")
        run_pip([*command, "--no-deps", "--index-url", index], requirement, log)


def find_cause(said: str) -> str:
    """The line of pip's output that says why it failed."""
    errors = [
        line.removeprefix("ERROR: ")
        for line in said.splitlines()
        if line.startswith("ERROR: ")
    ]
    # Prefer these errors: the first error may list versions that are irrelevant.
    for sign in ("No matching distribution found", "DO NOT MATCH THE HASHES"):
        for line in errors:
            if sign in line:
                return line
    return errors[-1] if errors else "pip printed no error"


def where_looked(index: str) -> str:
    """The places where torch was looked for, for a message."""
    configured = "the sources that pip's configuration names (`pip config list`)"
    if index == OFF:
        return f"looked in {configured}; the index for CPU builds of torch is off"
    return f"looked in {configured}, then in {index}"


def has_driver() -> bool:
    """Whether this machine has an NVIDIA driver."""
    traces = ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/libcuda.so.1")
    return any(map(os.path.exists, traces)) or shutil.which("nvidia-smi") is not None


def choose(
    asked: str,
    release: str,
    *,
    versions: Collection[str],
    driver: bool,
    index: str,
    system: str = sys.platform,
) -> Choice:
    """Choose the build of torch.

    Args:
        asked: one of `BUILDS`.
        release: release of torch, without the label of a build.
        versions: versions of torch in the configured sources.
        driver: whether this machine has an NVIDIA driver.
        index: the index for CPU builds, or ``off``.
        system: value of `sys.platform`.
    """
    if asked != "auto":
        return Choice(asked, f"TORCH={asked}")
    builds = {version for version in versions if version.startswith(f"{release}+")}
    cpu = f"{release}+cpu"
    if cpu in builds and (not driver or builds == {cpu}):
        return Choice("cpu", "pip's configuration leads to it")
    if builds:
        return Choice(
            "own", f"pip's configuration leads to {', '.join(sorted(builds))}"
        )
    if driver:
        return Choice("cuda", "there is an NVIDIA driver")
    if system != "linux":
        return Choice("cuda", "this system has one build only")
    if index == OFF:
        return Choice("cuda", f"no NVIDIA driver, but TORCH_INDEX={OFF}")
    return Choice("cpu", "no NVIDIA driver")


def find_versions() -> set[str]:
    """The versions of torch in the configured sources; empty if they do not answer."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"(?m)^Available versions: (.*)$", done.stdout)
    return set(found[1].split(", ")) if found else set()


def requirements_for(build: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """The requirements of a build by name, with their hashes if these are known.

    Args:
        build: ``cpu`` or ``cuda``.
        wanted: name -> release.
    """
    file = ROOT / "containers/requirements" / f"{build}.txt"
    known, _ = split_requirements(file.read_text())
    pins = {name: f"{name}=={release}" for name, release in wanted.items()}
    # `===` excludes builds with a label.
    torch = {"cpu": f"=={wanted['torch']}+cpu", "cuda": f"==={wanted['torch']}"}
    pins["torch"] = f"torch{torch[build]}"
    here = (sys.platform, platform.machine(), sys.version_info[:2])
    if build == "cpu" and here != _HASHED_CPU:
        del known["torch"]
    return {
        # If a user has changed the pin, the known hashes are of another release.
        name: known[name] if known.get(name, "").startswith(f"{pin} ") else f"{pin}\n"
        for name, pin in pins.items()
    }


def libraries_for(build: str, wanted: Mapping[str, str]) -> str:
    """The libraries that a build of torch needs, with hashes; empty if not known.

    Args:
        build: ``cpu`` or ``cuda``; the needs of ``cpu`` are all in requirements.lock.
        wanted: name -> release.
    """
    known = (ROOT / "containers/requirements/cuda.txt").read_text()
    if (
        build != "cuda"
        or (sys.platform, platform.machine()) != _HASHED_CUDA
        or f"\ntorch==={wanted['torch']} " not in f"\n{known}"
    ):
        return ""
    entries = dict(re.findall(r"(?m)^(([\w.-]+)=.*\n(?:[ \t].*\n)*)", known))
    # pip-compile notes below each entry which packages require it.
    needed_by = {
        name: set(re.findall(r"(?m)#[ ]+(?:via )?([a-z][\w.-]*)$", entry))
        for entry, name in entries.items()
    }
    found = set(PACKAGES)
    while more := {name for name, by in needed_by.items() if by & found} - found:
        found |= more
    found -= set(PACKAGES)
    return "".join(entry for entry, name in entries.items() if name in found)


def install(choice: Choice, index: str, log: Callable[[str], object]) -> None:
    """Install a build and the packages that it needs into this environment.

    Raises:
        PipError: pip failed.
    """
    text = REQUIREMENTS.read_text()
    if choice.build != "own":
        pins, _ = split_requirements(text)
        wanted = {name: pins[name].strip().partition("==")[2] for name in PACKAGES}
        for entry in requirements_for(choice.build, wanted).values():
            command = ["install", "-q", "--no-deps"]
            if choice.build == "cpu":
                run_pip_for_torch(command, entry, index, log)
            else:
                run_pip(command, entry, log)
        if libraries := libraries_for(choice.build, wanted):
            command = ["install", "-q", "--no-deps", "--require-hashes"]
            run_pip(command, libraries, log)
    # The packages that torch needs come from the configured sources only.
    run_pip(["install", "-q"], text, log)


def main() -> int:
    """Choose and install a build.

    Returns:
        Exit status: 0 installed, 1 pip failed, 2 bad input.
    """
    asked = os.environ.get("TORCH") or "auto"
    try:
        index = find_index(os.environ.get("TORCH_INDEX") or "auto", "TORCH_INDEX")
        if asked not in BUILDS:
            known = ", ".join(BUILDS)
            raise ValueError(
                f"TORCH: {asked!r} is not a build of torch (known: {known})"
            )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    release = split_requirements(REQUIREMENTS.read_text())[0]["torch"].strip()
    choice = choose(
        asked,
        release.partition("==")[2],
        versions=find_versions() if asked == "auto" else (),
        driver=has_driver(),
        index=index,
    )
    try:
        try:
            _tell(choice)
            install(choice, index, _ignore)
        except PipError as error:
            # Fall back only if the build is missing, never after a wrong hash.
            missing = "No matching distribution found" in error.said
            if asked != "auto" or choice.build != "cpu" or not missing:
                raise
            print(f"{error}: {where_looked(index)}")
            choice = Choice("cuda", "the CPU build is not available")
            _tell(choice)
            install(choice, index, _ignore)
    except PipError as error:
        print(_explain(error, index), file=sys.stderr)
        return 1
    return 0


_NAMES = {
    "cpu": "the CPU build",
    "cuda": "the default build (for CUDA on Linux: several GB)",
    "own": "the build that pip's configuration leads to, unchecked",
}
_OTHERS = {"cpu": "cuda", "cuda": "cpu", "own": "cpu or TORCH=cuda"}


def _tell(choice: Choice) -> None:
    print(
        f"torch: {_NAMES[choice.build]} ({choice.why}); "
        f"for another: make quickstart TORCH={_OTHERS[choice.build]}",
        flush=True,
    )


def _explain(error: PipError, index: str) -> str:
    if "DO NOT MATCH THE HASHES" in error.said:
        return (
            f"{error}: a configured source serves another build of torch than the "
            "official one: TORCH=own installs it without a check"
        )
    return (
        f"{error}: {where_looked(index)}: check the network, or name another index "
        "for CPU builds: TORCH_INDEX=https://..."
    )


def _ignore(_: str) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
