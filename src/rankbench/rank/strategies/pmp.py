"""Pipelined model parallelism: micro-batches pass through the devices of a host."""

from __future__ import annotations

import torch
from torch import Tensor

from rankbench.rank.strategies.base import Batch, Mark
from rankbench.rank.strategies.mp import ModelParallel


class PipelinedModelParallel(ModelParallel):
    """Several devices compute at the same time, each on another micro-batch.

    They overlap only because CUDA executes kernels asynchronously.
    """

    like = "mp"
    needs = {"splits_batch": True}
    options = {
        # Number of samples in a micro-batch.
        "split_size": {"type": "integer", "minimum": 1, "default": 16},
        # whole: one backward after all forwards; early: a backward after each forward,
        # which frees the activations of that micro-batch.
        "backward": {"enum": ["whole", "early"], "default": "whole"},
    }
    phases = ["pipeline", "update"]

    def train_on(self, batch: Batch, mark: Mark) -> Tensor:
        images, labels = batch
        size = int(self.chosen["split_size"])
        early = self.chosen["backward"] == "early"
        losses = []
        for part in zip(images.split(size), labels.split(size), strict=True):
            share = len(part[1]) / len(labels)
            loss = self.compute_loss(self.model, part) * share
            if early:
                self.backward(loss)
                loss = loss.detach()
            losses.append(loss)
        total = torch.stack(losses).sum()
        if not early:
            self.backward(total)
        mark("pipeline")
        return total.detach()
