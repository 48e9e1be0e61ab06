"""Patches for faults of Snakemake and its Slurm plugin; one file per fault."""

from __future__ import annotations

from importlib.metadata import version


def check_version(package: str, major: int) -> None:
    """Check that the installed version is one that rankbench knows how to patch.

    Raises:
        ValueError: it is not; the message says which version to install.
    """
    found = version(package)
    if int(found.partition(".")[0]) != major:
        raise ValueError(
            f"{package} {found}: rankbench corrects faults of version {major} at run "
            f"time and knows no other version: pip install '{package}=={major}.*'"
        )
