"""Synthetic tokens: words of a Zipf distribution, half of which follow a habit."""

from __future__ import annotations

import numpy as np

from rankbench.rank.data._tokens import TokenArrays

SHAPE = {
    "vocabulary": 512,
    "context": 128,
    "longest_context": 16384,
    "train": 2048,
    "test": 256,
}
PREPARED = False

# Fraction of tokens that are the favourite successor of the token before.
_HABIT = 0.5


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
    ids = draw((SHAPE["train"] + SHAPE["test"], context + 1))
    follows = rng.random(ids.shape, np.float32) < _HABIT
    for position in range(1, context + 1):
        habit = favourite[ids[:, position - 1]]
        ids[:, position] = np.where(follows[:, position], habit, ids[:, position])
    return TokenArrays(train=ids[: SHAPE["train"]], test=ids[SHAPE["train"] :])
