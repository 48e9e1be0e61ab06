"""A data set of tokens in a file of raw ids, which is mapped into memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rankbench.rank.data._tokens import TokenArrays
from rankbench.token_file import count_sequences


@dataclass
class TokenFile:
    """What a file of Python with a data set defines, for a file of token ids.

    Args:
        file: raw ids, little-endian.
        dtype: uint16 or uint32.
        vocabulary: number of tokens.
    """

    file: Path
    dtype: str
    vocabulary: int
    SHAPE: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        count = self.file.stat().st_size // np.dtype(self.dtype).itemsize
        longest = (count - 1) // 2
        self.SHAPE = {
            "vocabulary": self.vocabulary,
            "context": longest,
            "longest_context": longest,
        }

    def generate(self, *, context: int) -> TokenArrays:
        """Cut the file into sequences; each ends with the first token of the next."""
        kind = np.dtype(self.dtype).newbyteorder("<")
        ids = np.memmap(self.file, kind, mode="r")
        train, test = count_sequences(len(ids), context)
        # Overlapping rows without a copy: row i begins at token i * context.
        rows = np.lib.stride_tricks.as_strided(
            ids,
            (train + test, context + 1),
            (context * kind.itemsize, kind.itemsize),
            writeable=False,
        )
        return TokenArrays(train=rows[:train], test=rows[train:])
