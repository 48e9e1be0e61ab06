"""Estimates the memory that a model's state needs on each device, before it runs.

It counts weights, gradients and optimizer state in float32, and neither activations nor
buffers. So a cell needs more than that, and one that is refused could never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankbench.cell import Cell
from rankbench.decoder import Decoder, describe_decoder
from rankbench.matrix.question import Question

GIB = 2**30

# Bytes of a weight, and of its gradient; autocast keeps both in float32.
_FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class State:
    """Bytes on the device that holds most, at least."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def estimate_state(q: Question) -> State | None:
    """The state of a cell's model on a device; None if its size is not known."""
    decoder = size_of(q)
    if decoder is None:
        return None
    weights = decoder.parameters
    shares = {name: _share(q, rule) for name, rule in q.facts.needs["shards"].items()}
    split = 1.0
    if "blocks" in shares:
        # Tensor parallelism keeps embeddings, norms and head whole.
        split = (weights - decoder.blocks + decoder.blocks / shares["blocks"]) / weights
    held = {
        kind: weights * split / shares.get(kind, 1)
        for kind in ("weights", "gradients", "optimizer")
    }
    return State(
        weights=_FLOAT32 * held["weights"],
        gradients=_FLOAT32 * held["gradients"],
        optimizer=_FLOAT32 * _moments(q.cell) * held["optimizer"],
    )


def size_of(q: Question) -> Decoder | None:
    """The size of the cell's model; None unless its options tell it."""
    data = q.catalog.data[q.cell.data]
    if not q.catalog.models[q.cell.model]["decoder"] or q.cell.context is None:
        return None
    return describe_decoder(
        q.cell.model_options, vocabulary=data["vocabulary"], context=q.cell.context
    )


def why_too_large(q: Question) -> str | None:
    """Why the state of the model does not fit on the devices of this site."""
    has = q.site.device_memory_gib
    if has is None or q.cell.options.get("offload", "none") != "none":
        return None
    state = estimate_state(q)
    if state is None:
        return None
    where, count = "GPU", 1
    if q.cell.device == "cpu":
        # Cores of a host share its memory.
        where, count = "host", q.shape.ranks_per_node
        if q.facts.needs["shards"]:
            count *= q.shape.devices_per_rank
    needed = count * state.total / GIB
    if needed <= has:
        return None
    parts = ", ".join(
        f"{name} {count * getattr(state, name) / GIB:.3g}"
        for name in ("weights", "gradients", "optimizer")
    )
    return (
        f"{q.cell.strategy} needs at least {needed:.3g} GiB on each {where} for the "
        f"state of {q.cell.model} ({parts}); there are {has:.3g}"
    )


def _moments(cell: Cell) -> int:
    """How many numbers an optimizer keeps for each weight."""
    if cell.optimizer == "sgd":
        return 1 if cell.momentum else 0
    return 2


def _share(q: Question, rule: str | Mapping[str, Mapping[Any, str]]) -> int:
    """How many devices share something; see "shards" in the catalog."""
    if not isinstance(rule, str):
        ((option, cases),) = rule.items()
        rule = cases.get(q.cell.options[option], "")
        if not rule:
            return 1
    if rule == "ranks":
        return q.shape.ranks
    if rule == "replica":
        return q.shape.replica_ranks * q.shape.devices_per_rank
    return int(q.cell.options[rule]) or q.shape.ranks
