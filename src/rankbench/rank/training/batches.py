"""Batches of a rank; all strategies train on the same global batches in one order."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from rankbench.rank.strategies.base import Batch


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
            worker_init_fn=_Unpin(worker_cpus) if num_workers else None,
        )
        self.steps_per_epoch = len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        epoch = 0
        while True:
            self._sampler.set_epoch(epoch)
            yield from self._loader
            epoch += 1


class _Unpin:
    """Lets a loader process run on other cores than those its rank is pinned to."""

    def __init__(self, cpus: set[int]) -> None:
        self._cpus = cpus

    def __call__(self, _worker: int) -> None:
        os.sched_setaffinity(0, self._cpus)
        torch.set_num_threads(1)
