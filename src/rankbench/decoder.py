"""Parameters and arithmetic of a decoder of tokens, from its options alone.

And how consecutive parts of a model are split evenly. Standard library only: planning
estimates a model's memory by it, ranks write it into records.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Options of every decoder; a model may declare more.
OPTIONS: dict[str, dict[str, Any]] = {
    # Number of blocks.
    "layers": {"type": "integer", "minimum": 1, "default": 4},
    # Numbers that stand for a token.
    "width": {"type": "integer", "minimum": 1, "default": 128},
    # Heads of attention; they share the width.
    "heads": {"type": "integer", "minimum": 1, "default": 4},
    # Heads of keys and values, each for several heads; 0: all heads.
    "kv_heads": {"type": "integer", "minimum": 0, "default": 0},
    # Number of tokens, at least as in the data; 0: as in the data.
    "vocabulary": {"type": "integer", "minimum": 0, "default": 0},
    # The head uses the weights of the embedding.
    "tie_embeddings": {"type": "boolean", "default": False},
}

# Name of the formula below, as tables show it.
FORMULA = "6N + 12 layers x width x context (PaLM)"


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder: blocks of attention and MLP between an embedding and a head.

    Attributes:
        blocks: weights of the linear layers in all blocks.
        idle: of these, weights of experts that a token does not use.
        head: weights of the head's linear layer.
        looked_up: weights of embeddings that no matrix product uses: of positions, and
            of tokens unless they are those of the head.
        norms: weights and biases of all norms.
        attention: layers x width x context.
        again: checkpointing -> weights of the matrix products that backward repeats;
            of selective checkpointing it is not known with experts.
        context: tokens of a sequence.
    """

    blocks: int
    idle: int
    head: int
    looked_up: int
    norms: int
    attention: int
    context: int
    again: Mapping[str, int]

    @property
    def parameters(self) -> int:
        """All weights of the model."""
        return self.blocks + self.head + self.looked_up + self.norms

    @property
    def flops(self) -> int:
        """Operations of a sequence, forward and backward; `FORMULA` is for a token.

        N counts weights of matrix products: all blocks and the head, tied or not, but
        neither look-ups of embeddings, nor norms, nor idle experts. Each takes a
        multiplication and an addition in forward, and twice as many in backward.
        Attention to all tokens counts in full, also where a mask hides half of it
        (Chowdhery et al. 2022, PaLM, appendix B, arXiv 2204.02311).
        """
        weights = self.blocks - self.idle + self.head
        return self.context * (6 * weights + 12 * self.attention)

    def flops_again(self, checkpointing: str) -> int | None:
        """Operations of a sequence that backward repeats; None if it is not known."""
        if checkpointing not in self.again:
            return None
        # Selective checkpointing keeps the results of attention.
        attention = 4 * self.attention if checkpointing == "full" else 0
        return self.context * (2 * self.again[checkpointing] + attention)


def describe_decoder(
    options: Mapping[str, Any], *, vocabulary: int, context: int
) -> Decoder:
    """The sizes of the model `gpt` or `llama`.

    Args:
        options: of the model. Only `llama` has rope_theta instead of a table of
            positions, norms without biases, and experts. A vocabulary of 0 is that of
            the data.
        vocabulary: of the data.
        context: tokens of a sequence.
    """
    layers, width = options["layers"], options["width"]
    heads = options["heads"]
    shared = width * (options["kv_heads"] or heads) // heads
    attention = 2 * width * width + 2 * width * shared
    rotary = "rope_theta" in options
    matrices = 2 if options.get("mlp") == "gelu" else 3
    matrix = width * mlp_width(options)
    mlp = matrices * matrix
    experts = options.get("experts", 0)
    idle = experts and (experts - options["top_k"]) * mlp
    # Nothing needs the last product of a block again, unless it is one of several.
    again = {"full": attention + mlp - matrix}
    if experts:
        again = {"full": attention + options["top_k"] * mlp + experts * width}
        mlp = experts * (mlp + width)  # each has a line of the router
    else:
        # Every second one is kept: keys, the sum of heads, and `up` of a gated MLP.
        gated = matrix if matrices == 3 else 0
        again["selective"] = width * shared + width * width + gated
    head = width * (options["vocabulary"] or vocabulary)
    positions = 0 if rotary else width * context
    return Decoder(
        blocks=layers * (attention + mlp),
        idle=layers * idle,
        head=head,
        looked_up=positions + (0 if options["tie_embeddings"] else head),
        norms=(1 if rotary else 2) * width * (2 * layers + 1),
        attention=layers * width * context,
        context=context,
        again={kind: layers * weights for kind, weights in again.items()},
    )


def mlp_width(options: Mapping[str, Any]) -> int:
    """Inner width of the MLP of the model `gpt` or `llama` with these options."""
    width: int = options["width"]
    if options.get("mlp") == "gelu":
        return 4 * width
    return int(options.get("mlp_width") or swiglu_width(width))


def swiglu_width(width: int) -> int:
    """Inner width of a gated MLP with as many weights as one of 4 widths.

    It is 8/3 widths, rounded up to a multiple of 16, so that 2, 4, 8 or 16 ranks can
    share it.
    """
    return -(-8 * width // 48) * 16


def stages_of_rank(
    options: Mapping[str, Any], schedules: Mapping[str, Mapping[str, Any]]
) -> int:
    """How many stages of a pipeline each rank has.

    Args:
        options: of a strategy.
        schedules: the entry of that name of the strategy's `needs`.
    """
    stages = schedules.get(options.get("schedule", ""), {}).get("stages", 1)
    return int(options.get(stages, stages))


def split_evenly(costs: Sequence[float], groups: int) -> list[int]:
    """The group sizes that make the most expensive group as cheap as possible.

    Dynamic programming over the end of the last group: O(groups x parts^2).

    Raises:
        ValueError: there are fewer parts than groups.
    """
    parts = len(costs)
    if parts < groups:
        raise ValueError(f"a model of {parts} parts cannot be split in {groups}")
    until = [0.0, *itertools.accumulate(costs)]
    # best[end] = (cost of the most expensive group, counts) for the first `end` parts.
    best = {end: (until[end], [end]) for end in range(1, parts + 1)}
    for number in range(2, groups + 1):
        longer = {}
        for end in range(number, parts + 1):
            cost, start = min(
                (max(best[start][0], until[end] - until[start]), start)
                for start in range(number - 1, end)
            )
            longer[end] = (cost, [*best[start][1], end - start])
        best = longer
    return best[parts][1]
