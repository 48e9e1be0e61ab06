"""rankbench: how should I train on this machine, and can I trust the number?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from os import PathLike

    import pandas as pd

__version__ = "1.0.0"


def load(folder: str | PathLike[str]) -> pd.DataFrame:
    """Read the table of a results folder or a bundle, from its plan and its records.

    Args:
        folder: such as `results/quickstart`, or `results.tar.zst`.

    Returns:
        A row for each cell, with the columns of `table.csv`: `speedup` is a ratio,
        `speedup_lo` and `speedup_hi` are the ends of its bracket. Numbers are not
        rounded.

    Raises:
        ValueError: there are no results, or the plan is damaged; the message names it.
    """
    # By name: all rooms import this package, and ranks must not import pandas.
    table = import_module("rankbench.results.render.files").load_table(folder)
    return cast("pd.DataFrame", table)
