"""Files of token ids: what planning and ranks both know of them.

Standard library only. Such a file holds raw ids one after the other, little-endian, as
nanoGPT and Megatron write them: no header, no gaps.
"""

from __future__ import annotations

import array
import sys
from pathlib import Path

SUFFIX = ".bin"
# Name of a type of ids -> bytes of an id, and the code of Python's arrays.
TYPES = {"uint16": (2, "H"), "uint32": (4, "I")}
# Tokens of a sequence unless the experiment says otherwise, or the file has fewer.
CONTEXT = 1024

_CHUNK = 2**20  # ids
# One of so many sequences is held out.
_HELD_OUT = 20


def describe_tokens(
    path: Path, dtype: str, vocabulary: int | None = None
) -> dict[str, int]:
    """The `SHAPE` of a file of token ids, and under `tokens` their number.

    Args:
        path: the file.
        dtype: a key of `TYPES`.
        vocabulary: number of tokens; by default the largest id of the file plus one.

    Raises:
        ValueError: the file has no whole ids, too few, or ids beyond the vocabulary.
    """
    width, _ = TYPES[dtype]
    size = path.stat().st_size
    if size % width:
        raise ValueError(f"{path}: {size} bytes are no whole number of {dtype} ids")
    count = size // width
    # Two sequences of one token, and the token that follows the last.
    if count < 3:
        raise ValueError(f"{path}: {count} ids are too few for two sequences")
    needed = _find_largest(path, dtype) + 1
    if vocabulary is not None and vocabulary < needed:
        raise ValueError(
            f"{path}: vocabulary {vocabulary}, but the file has the id {needed - 1}"
        )
    longest = (count - 1) // 2
    context = min(CONTEXT, longest)
    train, test = count_sequences(count, context)
    return {
        "vocabulary": vocabulary or needed,
        "context": context,
        "longest_context": longest,
        "train": train,
        "test": test,
        "tokens": count,
    }


def count_sequences(tokens: int, context: int) -> tuple[int, int]:
    """Numbers of sequences to train on and held out; the latter end the file."""
    whole = max(0, (tokens - 1) // context)
    held_out = min(whole, max(1, whole // _HELD_OUT))
    return whole - held_out, held_out


def _find_largest(path: Path, dtype: str) -> int:
    width, code = TYPES[dtype]
    largest = 0
    with path.open("rb") as file:
        while chunk := file.read(width * _CHUNK):
            ids = array.array(code)
            ids.frombytes(chunk)
            if sys.byteorder == "big":
                ids.byteswap()
            largest = max(largest, max(ids))
    return largest
