"""Sections become documents, and documents files of every format."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import pandas as pd

from rankbench.record import Layout
from rankbench.results.numbers.result_set import read
from rankbench.results.read.archive import open_results
from rankbench.results.sections import load_sections


def load_table(folder: str | PathLike[str]) -> pd.DataFrame:
    """As `rankbench.load`."""
    with open_results(Path(folder)) as root:
        section, found = load_sections()["table"], read(Layout(root))
        content = section.make(found)
        assert content is not None
        return section.frame(content)
