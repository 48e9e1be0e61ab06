"""Strategies that share a model train one that no rank could hold."""

from __future__ import annotations

import pytest
from capped_ranks import BLOCK, DECODER, train_under_caps
from torch.multiprocessing.spawn import ProcessRaisedException

pytestmark = pytest.mark.contract

RANKS = 4
WHOLE = DECODER["layers"] * BLOCK
# Stacks of threads, buffers of communication, activations.
SMALL = 64 * 2**20
# In set-up a rank has its share of the weights, and a block in flight.
SET_UP = WHOLE // RANKS + BLOCK + SMALL


@pytest.mark.parametrize(
    ("strategy", "options", "in_flight"),
    [
        # Weights and gradients of a block, both twice: gathered, and to be sent.
        pytest.param("fsdp", {}, 4, marks=pytest.mark.further),
        ("mesh", {"tensor": RANKS}, 1),
        # A part and its gradients, while it is timed. The times decide who gets how
        # many blocks: a rank may get one or two more, each with its gradients.
        pytest.param("pipeline", {}, 5, marks=pytest.mark.further),
        ("pipeline", {"balance": "parameters"}, 2),
    ],
)
def test_a_model_larger_than_a_rank(strategy, options, in_flight, tmp_path):
    """In steps a rank also has the gradients of its share."""
    caps = SET_UP, 2 * WHOLE // RANKS + in_flight * BLOCK + SMALL
    assert max(caps) < WHOLE
    train_under_caps(tmp_path, strategy, RANKS, caps=caps, **options)


def test_a_replica_does_not_fit(tmp_path):
    with pytest.raises(ProcessRaisedException, match="can't allocate memory"):
        train_under_caps(tmp_path, "ddp", 1, caps=(WHOLE, WHOLE))
