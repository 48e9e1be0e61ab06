"""Where a published file differs from the same file made anew."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Sequence

from rankbench.results.bundle.manifest import Finding

# Maximum number of differences that are listed for one file.
_MOST = 20
_WIDTH = 60

_MISSING, _TOO_MUCH = "is missing", "does not follow from the records"


def find_differences(name: str, published: bytes, made: bytes) -> list[Finding]:
    """Lines, columns and cells that differ; none only if the bytes are the same."""
    if published == made:
        return []
    try:
        texts = published.decode(), made.decode()
    except UnicodeDecodeError:
        return [Finding(name, "differs from the one made anew; it is no text")]
    if name.endswith(".csv"):
        compared = _compare_cells(name, *map(_read, texts))
    else:
        compared = _compare_lines(name, *texts)
    found = list(itertools.islice(compared, _MOST))
    # The files may differ in the kind of line ends, for example.
    return found or [Finding(name, "differs from the one made anew in white space")]


def _compare_cells(
    name: str, theirs: Sequence[Sequence[str]], ours: Sequence[Sequence[str]]
) -> Iterator[Finding]:
    """Compare published rows with those made anew."""
    header = ours[0] if ours else []
    for number, (left, right) in enumerate(itertools.zip_longest(theirs, ours), 1):
        if left is None or right is None:
            row = repr(",".join(left or right or [])[:_WIDTH])
            said = _MISSING if left is None else _TOO_MUCH
            yield Finding(name, f"the row {row} {said}", f"row {number}")
            continue
        if len(left) != len(right):
            said = f"has {len(left)} cells, made anew {len(right)}"
            yield Finding(name, said, f"row {number}")
            continue
        for column, (one, other) in enumerate(zip(left, right, strict=True)):
            if one != other:
                title = header[column] if column < len(header) else str(column + 1)
                whose = f" of {right[_key(header)]}" if number > 1 else ""
                yield Finding(
                    name,
                    f"published {one[:_WIDTH]!r}, made anew {other[:_WIDTH]!r}",
                    f"row {number}{whose}, column {title}",
                )


def _read(text: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return [[line] for line in text.splitlines()]


def _key(header: Sequence[str]) -> int:
    """The column that names a row."""
    return header.index("cell") if "cell" in header else 0


def _compare_lines(name: str, published: str, made: str) -> Iterator[Finding]:
    lines = itertools.zip_longest(published.splitlines(), made.splitlines())
    for number, (left, right) in enumerate(lines, start=1):
        if left == right:
            continue
        if left is None or right is None:
            said = _MISSING if left is None else _TOO_MUCH
            yield Finding(name, f"the line {said}", f"line {number}")
            continue
        pairs = enumerate(zip(left, right, strict=False))
        place = next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))
        start = max(0, place - _WIDTH // 3)
        one, other = left[start : start + _WIDTH], right[start : start + _WIDTH]
        yield Finding(
            name,
            f"published {one!r}, made anew {other!r}",
            f"line {number}, character {place + 1}",
        )
