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


def find_differences(name: str, published: bytes, made: bytes) -> list[Finding]:
    """Lines, columns and cells that differ; none only if the bytes are the same."""
    if published == made:
        return []
    try:
        texts = published.decode(), made.decode()
        if name.endswith(".csv"):
            rows = [list(csv.reader(io.StringIO(text, newline=""))) for text in texts]
            places = _compare_rows(*rows)
        else:
            places = _compare_lines(*(text.splitlines() for text in texts))
    except (UnicodeDecodeError, csv.Error):
        return [Finding(name, "differs from the one made anew; it is no text")]
    found: list[Finding] = []
    for where, *sides in itertools.islice(places, _MOST):
        if None in sides:
            missing = sides[0] is None
            said = "is missing" if missing else "does not follow from the records"
            found.append(Finding(name, said, where))
        else:
            theirs, ours = (repr(side)[: _WIDTH + 2] for side in sides)
            found.append(Finding(name, f"published {theirs}, made anew {ours}", where))
    # The files may differ in the kind of line ends, for example.
    return found or [Finding(name, "differs from the one made anew in white space")]


# Where it is, and what is there in the published file and in the other; None if the
# line is missing.
_Difference = tuple[str, str | None, str | None]


def _compare_rows(
    published: Sequence[Sequence[str]], made: Sequence[Sequence[str]]
) -> Iterator[_Difference]:
    header = made[0] if made else []
    key = header.index("cell") if "cell" in header else 0
    for number, (left, right) in enumerate(itertools.zip_longest(published, made), 1):
        where = f"row {number}"
        if left is None or right is None:
            row = ",".join(left or right or [])[:_WIDTH]
            missing = left is None
            yield f"{where} ({row})", None if missing else row, row if missing else None
        elif len(left) != len(right):
            yield where, f"{len(left)} cells", f"{len(right)} cells"
        else:
            whose = f" of {right[key]}" if number > 1 else ""
            for title, theirs, ours in zip(header, left, right, strict=False):
                if theirs != ours:
                    yield f"{where}{whose}, column {title}", theirs, ours


def _compare_lines(
    published: Sequence[str], made: Sequence[str]
) -> Iterator[_Difference]:
    for number, (left, right) in enumerate(itertools.zip_longest(published, made), 1):
        if left is None or right is None:
            yield f"line {number}", left, right
        elif left != right:
            pairs = enumerate(zip(left, right, strict=False))
            shorter = min(len(left), len(right))
            place = next((i for i, (a, b) in pairs if a != b), shorter)
            start = max(0, place - _WIDTH // 3)
            yield (
                f"line {number}, character {place + 1}",
                left[start : start + _WIDTH],
                right[start : start + _WIDTH],
            )
