"""Short names of cells: without the parts of their ids that all cells share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# Strategy, backend and topology always stay.
_KEPT = 3

# The decimal point of `learning_rate=0.1` does not separate parts.
_DOT = re.compile(r"\.(?!\d+(?:e[+-]?\d+)?(?:\.|$))")


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
