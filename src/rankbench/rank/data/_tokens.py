"""Data sets of tokens: packed sequences, each sample with the token that follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from rankbench.own_files import count_sequences

# So many sequences are checked: a file that is mapped into memory may be large.
_CHECKED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenArrays:
    """Token ids from 0, of any integer type, [sequences, context + 1] or longer.

    The last token of a sequence is only a target. The arrays may be memory maps.
    """

    train: npt.NDArray[Any]
    test: npt.NDArray[Any]

    def check(self, vocabulary: int, context: int) -> None:
        """Compare the arrays with what a data set declares.

        Raises:
            ValueError: they differ; names the difference.
        """
        for split, ids in (("train", self.train), ("test", self.test)):
            if ids.ndim != 2 or ids.shape[1] <= context or not len(ids):
                raise ValueError(
                    f"{split} has ids {list(ids.shape)}, not [N, {context + 1}] for "
                    f"sequences of {context} tokens"
                )
            if not np.issubdtype(ids.dtype, np.integer):
                raise ValueError(f"{split} has ids of {ids.dtype}, not integers")
            some = ids[:: max(1, len(ids) // _CHECKED)]
            if some.min() < 0 or some.max() >= vocabulary:
                raise ValueError(
                    f"{split} has ids {some.min()}..{some.max()}, "
                    f"not 0..{vocabulary - 1}"
                )


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    """Samples (token ids, the token that follows each), both int64 [context]."""

    def __init__(self, ids: npt.NDArray[Any], context: int) -> None:
        self._ids = ids
        self.context = context

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = self._ids[index, : self.context + 1]
        sequence = torch.from_numpy(row.astype(np.int64))
        return sequence[:-1], sequence[1:]


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
