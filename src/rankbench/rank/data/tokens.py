"""Synthetic tokens: words of a Zipf distribution, half of which follow a habit."""

from __future__ import annotations

import numpy as np

from rankbench.rank.data import TokenArrays

SHAPE = {
    "vocabulary": 512,
    "context": 128,
    "longest_context": 131072,
    "train": 2048,
    "test": 256,
}
PREPARED = False

# Fraction of tokens that are the favourite successor of the token before.
_HABIT = 0.5

# Tokens that are drawn for each sequence; a longer one goes on with those of the
# sequences that follow.
_DRAWN = 16384


def generate(seed: int, *, context: int = SHAPE["context"]) -> TokenArrays:
    """Draw the sequences; equal arguments give equal sequences.

    Token i is drawn with a probability proportional to 1 / (i + 1), as Zipf's law has
    it for words. Each token has a favourite successor, drawn in the same way, which
    follows it half of the time. So the loss can fall from the logarithm of the
    vocabulary to less than the entropy of single tokens.
    """
    rng = np.random.default_rng(seed)
    vocabulary = SHAPE["vocabulary"]
    heights = 1 / np.arange(1, vocabulary + 1)
    edges = np.cumsum(heights / heights.sum())

    def draw(shape: int | tuple[int, int]) -> np.ndarray:
        # The last edge may be rounded to less than a number that is drawn.
        found = np.searchsorted(edges[:-1], rng.random(shape), side="right")
        return found.astype(np.int32)

    favourite = draw(vocabulary)
    length = min(context, _DRAWN)
    ids = draw((SHAPE["train"] + SHAPE["test"], length + 1))
    follows = rng.random(ids.shape, np.float32) < _HABIT
    for position in range(1, length + 1):
        habit = favourite[ids[:, position - 1]]
        ids[:, position] = np.where(follows[:, position], habit, ids[:, position])
    parts = ids[: SHAPE["train"]], ids[SHAPE["train"] :]
    if context > length:
        parts = _lengthen(parts[0], context), _lengthen(parts[1], context)
    return TokenArrays(train=parts[0], test=parts[1])


def _lengthen(ids: np.ndarray, context: int) -> np.ndarray:
    """As many sequences of `context` + 1 tokens, which overlap, without a copy."""
    stream = ids[:, :-1].ravel()
    stream = np.concatenate([stream, stream[: context + 1]])
    windows = np.lib.stride_tricks.sliding_window_view(stream, context + 1)
    return windows[: len(ids) * (ids.shape[1] - 1) : ids.shape[1] - 1]
