"""Finds project files that are not Python: workflow, image definitions, profiles.

They are at the top of a checkout, where people look for them. This folder has links to
them, so that a wheel contains them as package data.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from rankbench.own_files import Files, files_at, files_below

# Files that the jobs of a run read.
OF_JOBS = ("Snakefile", "workflow", "containers", "CITATION.cff")


def find_asset(name: str) -> Path:
    """The path of a file or folder, such as ``workflow/schemas``."""
    return Path(str(files(__name__))).joinpath(name).resolve()


def list_code(package: Path) -> tuple[Files, Files]:
    """The files of a package, and those of jobs, to which its folder `assets` links.

    Profiles are left out, because they have facts about the machine.
    """
    folder = package / "assets"
    own = {
        name: path
        for name, path in files_below(package).items()
        if folder not in path.parents or path.name == "__init__.py"
    }
    linked: Files = {}
    for name in OF_JOBS:
        linked |= files_at(folder, name)
    return own, linked
