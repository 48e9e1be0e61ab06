"""Finds project files that are not Python: workflow, image definitions, profiles.

They are at the top of a checkout, where people look for them. This folder has links to
them, so that a wheel contains them as package data.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

# Files that the jobs of a run read.
OF_JOBS = ("Snakefile", "workflow", "containers", "CITATION.cff")


def find_asset(name: str) -> Path:
    """The path of a file or folder, such as ``workflow/schemas``."""
    return Path(str(files(__name__))).joinpath(name).resolve()
