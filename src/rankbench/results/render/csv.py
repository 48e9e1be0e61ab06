"""Data frames as CSV."""

from __future__ import annotations

import pandas as pd

from rankbench.results.elements.text import figures

# Spreadsheets evaluate fields that begin with these characters.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(table: pd.DataFrame) -> str:
    """A table as text that is the same on every machine and safe for spreadsheets.

    Numbers have 4 significant digits.
    """
    words = table.select_dtypes(exclude="number")
    safe = {str(name): _defuse(column) for name, column in words.items()}
    text: str = table.assign(**safe).to_csv(
        index=False, float_format=_figures, lineterminator="\n"
    )
    return text


def _defuse(column: pd.Series) -> pd.Series:
    """Make text of formulas; look at each text once, because most occur often."""
    return column.map(
        {
            value: f"'{value}"
            if isinstance(value, str) and value.startswith(_FORMULA)
            else value
            for value in column.unique()
        }
    )


def _figures(value: object) -> str:
    assert isinstance(value, float)
    return figures(value)
