"""The training recipe of a cell: batches, loss, optimizer, precision, model options."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from rankbench.cell import Cell
from rankbench.rank.models import find_parts
from rankbench.rank.strategies.base import (
    Arithmetic,
    Batch,
    ComputeLoss,
    MakeOptimizer,
)


class Batches:
    """An endless stream of this rank's batches, epoch after epoch.

    All ranks share one permutation of the samples, and rank r of n takes every n-th
    sample of it. So the batches of all ranks in a step together are the batch of a
    single process. Incomplete batches are dropped on all ranks. Ranks that share a
    model replica count as one rank.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        rank: int,
        ranks: int,
        rank_batch: int,
        seed: int,
        num_workers: int,
        pin_memory: bool,
        worker_cpus: set[int],
    ) -> None:
        self._sampler: DistributedSampler = DistributedSampler(
            dataset, num_replicas=ranks, rank=rank, seed=seed, drop_last=True
        )
        self._loader: DataLoader = DataLoader(
            dataset,
            batch_size=rank_batch,
            sampler=self._sampler,
            drop_last=True,
            num_workers=num_workers,
            pin_memory=pin_memory,
            persistent_workers=num_workers > 0,
            worker_init_fn=partial(_unpin, worker_cpus),
        )
        self.steps_per_epoch = len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        epoch = 0
        while True:
            self._sampler.set_epoch(epoch)
            yield from self._loader
            epoch += 1


def _unpin(cpus: set[int], _worker: int) -> None:
    """Let a loader process run on other cores than those its rank is pinned to."""
    os.sched_setaffinity(0, cpus)
    torch.set_num_threads(1)


def set_arithmetic(precision: str, *, cudnn_benchmark: bool) -> None:
    """Set what torch keeps for the whole process.

    Args:
        precision: float32 operations use TF32 only if it is tf32.
        cudnn_benchmark: whether cuDNN tries its algorithms and takes the fastest.
    """
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = cudnn_benchmark


# Precision -> dtype of autocast.
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def prepare_model(model: nn.Module, cell: Cell) -> nn.Module:
    """Apply memory format and checkpointing to the model; names do not change."""
    if cell.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if cell.checkpointing:
        # Parts without weights are skipped. They keep few activations, and some
        # change their input in place, so they could not be recomputed from it.
        for part in find_parts(model):
            # Replace only `forward`, so that strategies still find the same parts.
            keep_nothing = partial(checkpoint, part.forward, use_reentrant=False)
            part.forward = keep_nothing
    return model


def memory_format_of(cell: Cell) -> torch.memory_format:
    """The memory format of images."""
    return torch.channels_last if cell.channels_last else torch.preserve_format


def make_arithmetic(precision: str, device: torch.device) -> Arithmetic:
    """A function that returns the context for a forward pass in this precision."""
    if precision in AUTOCAST:
        return partial(torch.autocast, device.type, dtype=AUTOCAST[precision])
    return nullcontext


def make_loss(
    precision: str, device: torch.device, *, scale: float = 1.0
) -> ComputeLoss:
    """A function for the mean cross entropy over samples, or over all tokens.

    Args:
        precision: precision of the cell.
        device: device of the model.
        scale: factor that the loss is multiplied by.
    """
    arithmetic = make_arithmetic(precision, device)

    def compute_loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        with arithmetic():
            # Logits [N, classes], or [N, T, vocabulary] of tokens.
            logits = model(inputs).flatten(0, -2)
            if logits.dtype in AUTOCAST.values():
                logits = logits.float()  # as autocast does
            loss = functional.cross_entropy(logits, targets.flatten())
        return loss if scale == 1.0 else loss * scale

    return compute_loss


def optimizer_maker(cell: Cell) -> MakeOptimizer:
    """A function that builds the cell's optimizer for given parameters."""
    kinds: dict[str, type[torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    chosen: dict[str, Any] = {
        "lr": cell.learning_rate,
        "weight_decay": cell.weight_decay,
    }
    if cell.optimizer == "sgd":
        chosen["momentum"] = cell.momentum
    if cell.fused_optimizer:
        chosen["fused"] = True
    return partial(kinds[cell.optimizer], **chosen)
