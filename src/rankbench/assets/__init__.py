"""Files of the project that are no Python: workflow, definitions of images, profiles.

They stand at the top of a checkout, where people look for them. Here are links to them,
so that a wheel has them too, as data of this package.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

# What the jobs of a run read.
OF_JOBS = ("Snakefile", "workflow", "containers", "CITATION.cff")


def find_asset(name: str) -> Path:
    """The file or folder of that name, such as ``workflow/schemas``."""
    return Path(str(files(__name__))).joinpath(name).resolve()
