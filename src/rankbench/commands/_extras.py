"""Which packages are missing, and the extra of rankbench that installs them."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata

from rankbench.environ import version_of

# Format in the metadata of the installed package: pandas>=2.2; extra == "results"
_REQUIREMENT = re.compile(r"([\w.-]+)[^\[]*\bextra == ['\"]([\w-]+)['\"]")


def require(*extras: str) -> None:
    """Check that the packages of these extras are installed.

    Raises:
        ValueError: a package is missing; the message has the command that installs it.
    """

    def is_missing(package: str, extra: str) -> bool:
        return extra in extras and version_of(package) is None

    if said := _explain(is_missing):
        raise ValueError(said)


def explain_module(name: str) -> str | None:
    """The extra that installs a module, in words; None if there is none."""
    sought = name.partition(".")[0].lower()
    return _explain(lambda package, _: package.replace("-", "_").lower() == sought)


def _explain(is_missing: Callable[[str, str], bool]) -> str | None:
    """The missing packages, and the command that installs them; None if none is.

    Args:
        is_missing: asked for package and extra of each optional requirement. There is
            none if rankbench is not installed but only copied.
    """
    try:
        listed = metadata.requires("rankbench") or ()
    except metadata.PackageNotFoundError:
        return None
    known = [match.groups() for match in map(_REQUIREMENT.match, listed) if match]
    missing = [
        (package, extra) for package, extra in known if is_missing(package, extra)
    ]
    if not missing:
        return None
    packages, extras = (dict.fromkeys(words) for words in zip(*missing, strict=True))
    are = "is" if len(packages) == 1 else "are"
    return (
        f"this needs {', '.join(packages)}, which {are} not installed: "
        f"pip install 'rankbench[{','.join(extras)}]'"
    )
