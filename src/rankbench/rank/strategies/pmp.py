"""Pipelined model parallelism: micro-batches follow each other through the devices."""

from __future__ import annotations

from torch import Tensor

from rankbench.rank.strategies.base import Batch, Mark
from rankbench.rank.strategies.mp import ModelParallel


class PipelinedModelParallel(ModelParallel):
    """While a device works on one micro-batch, the one before it works on the next.

    Nothing but the asynchronous execution of CUDA makes them overlap.
    """

    needs = {**ModelParallel.needs, "splits_batch": True}
    options = {
        **ModelParallel.options,
        # Samples of a micro-batch.
        "split_size": {"type": "integer", "minimum": 1, "default": 16},
        # whole: one backward after all forwards; early: each micro-batch's own, as soon
        # as its forward is done, so that its activations can go.
        "backward": {"enum": ["whole", "early"], "default": "whole"},
    }
    phases = ["pipeline", "update"]

    def train_on(self, batch: Batch, mark: Mark) -> Tensor:
        images, labels = batch
        size = int(self.chosen["split_size"])
        early = self.chosen["backward"] == "early"
        total = labels.new_zeros((), dtype=images.dtype)
        for part in zip(images.split(size), labels.split(size), strict=True):
            share = len(part[1]) / len(labels)
            loss = self.compute_loss(self.model, part) * share
            if early:
                self.backward(loss)
                loss = loss.detach()
            total = total + loss
        if not early:
            self.backward(total)
        mark("pipeline")
        return total.detach()
