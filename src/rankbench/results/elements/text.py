"""Fields, tables and notes as text, the same in every format, and names of cells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from rankbench.results.numbers.result_set import Summary
    from rankbench.results.numbers.statistics import Estimate

# Strategy, backend and topology always stay.
_KEPT = 3

# The decimal point of `learning_rate=0.1` does not separate parts.
_DOT = re.compile(r"\.(?!\d+(?:e[+-]?\d+)?(?:\.|$))")

# As `Estimate.printed` has them.
_MOST_DIGITS = 4


class Note(NamedTuple):
    """A term and its explanation, in plain text.

    Attributes:
        more: of an answer, said if there are lines for it, each on a line of its own.
    """

    term: str
    text: str
    more: Sequence[str] = ()


class Text(NamedTuple):
    """One field of a table.

    Attributes:
        value: may be the id of a cell, which a document then shows by its short name.
        interval: such as ``[801, 821]``.
        href: a file below the result directory that the field leads to.
        cell: id of a cell that the field leads to.
    """

    value: str
    interval: str = ""
    href: str = ""
    cell: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.interval}".strip()


@dataclass(frozen=True, slots=True)
class Grid:
    """A table for readers.

    Attributes:
        title: of the table.
        columns: heading -> whether its fields are numbers.
        rows: as many fields as there are columns.
    """

    title: str
    columns: Mapping[str, bool]
    rows: Sequence[Sequence[Text]]


def figures(value: float, digits: int = _MOST_DIGITS) -> str:
    """The value with so many significant digits, never in scientific notation."""
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    return str(np.format_float_positional(float(text), trim="-"))


def show_estimate(number: Estimate | None) -> Text:
    """``812`` and ``[801, 821]``, with a verdict behind it if there is one.

    There is an interval only where there are enough launches. Digits follow it.
    """
    if number is None:
        return Text("")
    if number.low == number.high and (number.low is None or number.verdict):
        return Text(figures(number.value), number.verdict)
    shown, places = number.printed()
    value, low, high = (
        figures(end) if places is None else f"{end:.{max(0, places)}f}"
        for end in (shown.value, *(shown.interval or ()))
    )
    return Text(value, f"[{low}, {high}] {number.verdict}".rstrip())


def describe_base(base: Summary) -> str:
    """``single.none.1x1.convnet.digits = 812.3 samples/s``."""
    return f"{base.id} = {figures(base.rate)} {base.cell.unit}/s"


def one_line(text: str) -> str:
    """The text without line breaks, and without characters that a terminal obeys."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())


def shorten(ids: Sequence[str]) -> tuple[dict[str, str], str]:
    """Id of each cell -> its short name; and the parts that were left out.

    ``ddp.gloo.1x2.convnet.digits`` is ``ddp.gloo.1x2`` if all cells train a convnet on
    digits. One cell alone keeps its id.
    """
    parts = {name: _DOT.split(name) for name in ids}
    rests = [one[_KEPT:] for one in parts.values()]
    shared = (
        [part for part in rests[0] if all(part in rest for rest in rests)]
        if len(rests) > 1
        else []
    )
    names = {
        name: ".".join(
            [*one[:_KEPT], *(part for part in one[_KEPT:] if part not in shared)]
        )
        for name, one in parts.items()
    }
    return names, ".".join(shared)


def replace_ids(text: str, names: Mapping[str, str]) -> str:
    """The text with short names instead of ids."""
    if text in names:
        return names[text]
    # Ids also occur within sentences and lists.
    words = [(word.rstrip(",.:;"), word) for word in text.split(" ")]
    return " ".join(names.get(stem, stem) + word[len(stem) :] for stem, word in words)
