"""Finds the extra of rankbench that installs a package, and missing packages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata

from rankbench.environ import version_of

# Format in the metadata of the installed package: pandas>=2.2; extra == "results"
_REQUIREMENT = re.compile(r"([\w.-]+)[^\[]*\bextra == ['\"]([\w-]+)['\"]")


def find_extra(module: str) -> str | None:
    """The extra that installs a module; None if there is none."""
    name = module.partition(".")[0].lower()
    for package, extra in _read_requirements():
        if package.replace("-", "_").lower() == name:
            return extra
    return None


def require(*extras: str) -> None:
    """Check that the packages of these extras are installed.

    Raises:
        ValueError: a package is missing; the message has the command that installs it.
    """
    missing = [
        (package, extra)
        for package, extra in _read_requirements()
        if extra in extras and version_of(package) is None
    ]
    if missing:
        packages = [package for package, _ in missing]
        wanted = dict.fromkeys(extra for _, extra in missing)
        raise ValueError(say_missing(packages, list(wanted)))


def say_missing(packages: list[str], extras: list[str]) -> str:
    """An error message: the missing packages, and the command that installs them."""
    are = "is" if len(packages) == 1 else "are"
    return (
        f"this needs {', '.join(packages)}, which {are} not installed: "
        f"pip install 'rankbench[{','.join(extras)}]'"
    )


def _read_requirements() -> Iterator[tuple[str, str]]:
    """Package and extra of each optional requirement, from installed metadata.

    Yields nothing if rankbench is not installed but only copied.
    """
    try:
        requirements = metadata.requires("rankbench")
    except metadata.PackageNotFoundError:
        return
    for requirement in requirements or ():
        if found := _REQUIREMENT.match(requirement):
            yield found[1], found[2]
