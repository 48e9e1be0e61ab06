"""Chooses and installs the build of torch, and downloads the packages of an image.

    python containers/torch_build.py
    python containers/torch_build.py download REQUIREMENTS FOLDER [--python VERSION]

The first is a step of `make quickstart`; TORCH and TORCH_INDEX are in the environment.
The second is the first step of building an image. Standard library only, because the
Makefile runs this file before anything is installed.
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements-torch.txt"
HASHES = Path(__file__).with_name("requirements")
BUILDS = ("auto", "cpu", "cuda", "own")

# Platform of the CPU build of torch whose hash is in requirements/cpu.txt.
HASHED_CPU = ("linux", "x86_64", (3, 11))
# Platform of the CUDA libraries in requirements/cuda.txt.
HASHED_CUDA = ("linux", "x86_64")


# Minor version of glibc in Debian 12: wheels for newer ones would not load there.
NEWEST_GLIBC = 36


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
    file = HASHES / f"{build}.txt"
    known, _ = split_requirements(file.read_text())
    pins = {name: f"{name}=={release}" for name, release in wanted.items()}
    # `===` excludes builds with a label.
    torch = {"cpu": f"=={wanted['torch']}+cpu", "cuda": f"==={wanted['torch']}"}
    pins["torch"] = f"torch{torch[build]}"
    here = (sys.platform, platform.machine(), sys.version_info[:2])
    if build == "cpu" and here != HASHED_CPU:
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
    known = (HASHES / "cuda.txt").read_text()
    if (
        build != "cuda"
        or (sys.platform, platform.machine()) != HASHED_CUDA
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


def download(requirements: Path, folder: Path, index: str, python: str | None) -> None:
    """Download the packages of an image, with their hashes checked.

    Args:
        requirements: their names, versions and hashes.
        folder: a new one for them.
        index: index for torch and torchvision if pip's configured sources lack them;
            ``off``: no such index.
        python: version of the image's Python, for wheels; None downloads sources.

    Raises:
        PipError: pip failed.
    """
    command = ["download", "--no-deps", "--require-hashes", "--progress-bar", "off"]
    command += ["--dest", str(folder)]
    if python is None:
        # pip reads the metadata of sources with the build tools installed here.
        command += ["--no-binary", ":all:", "--no-build-isolation"]
    else:
        # The image's Python and system, not this machine's.
        command += ["--only-binary", ":all:", "--implementation", "cp"]
        command += ["--python-version", python]
        names = [f"manylinux_2_{minor}" for minor in range(NEWEST_GLIBC, 4, -1)]
        names += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
        for name in names:
            command += ["--platform", f"{name}_{platform.machine()}"]
    torch, others = split_requirements(requirements.read_text())
    for requirement in torch.values():
        run_pip_for_torch(command, requirement, index, _show)
    run_pip(command, others, _show)


def main() -> int:
    """Install torch, or download the packages of an image.

    Returns:
        Exit status: 0 done, 1 pip failed, 2 bad input.
    """
    parser = argparse.ArgumentParser(description="Install torch for `make quickstart`.")
    commands = parser.add_subparsers()
    parts = commands.add_parser("download", help="download the packages of an image")
    parts.add_argument("requirements", type=Path)
    parts.add_argument("folder", type=Path)
    parts.add_argument("--index", default="auto", help="site key torch_index")
    parts.add_argument("--python", help="version that wheels are for; without: sources")
    arguments = parser.parse_args()
    if not hasattr(arguments, "requirements"):
        return _install()
    file = arguments.requirements
    try:
        index = find_index(arguments.index, "torch_index")
        download(file, arguments.folder, index, arguments.python)
    except PipError as error:
        print(_explain_download(error, file, index), file=sys.stderr)
        return 1
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _explain_download(error: PipError, requirements: Path, index: str) -> str:
    if "No space left on device" in error.said:
        return f"the disk is full: {error}"
    if "DO NOT MATCH THE HASHES" in error.said:
        return (
            f"pip got other files than {requirements} names: the index has changed, or "
            "serves its own builds: do not use it"
        )
    configured = "pip uses the indexes of its own configuration (`pip config list`)"
    if "distribution found for torch" in str(error):
        configured = f"{where_looked(index)} (`torch_index` in site.yaml)"
    return (
        f"{error}: {configured}; check the network and the configuration; without a "
        "network, copy the folder .downloads here from a machine with a network"
    )


def _install() -> int:
    """Choose and install a build."""
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


def _show(text: str) -> None:
    print(text, end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
