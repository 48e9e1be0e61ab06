"""What every launch begins and ends with: data, model and strategy; the report."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from rankbench.cell import Cell, Shape
from rankbench.environ import Place, check_name, meeting_host
from rankbench.launch_spec import SET_UP, THE_END
from rankbench.rank import data, models, variants
from rankbench.rank.facts.host import identify_gpu
from rankbench.rank.facts.usage import reset_peaks
from rankbench.rank.strategies import find_strategy, runtime_of
from rankbench.rank.strategies.base import Batch, Load, Strategy, World
from rankbench.rank.training.loop import Course
from rankbench.rank.training.recipe import (
    AUTOCAST,
    lower_norms,
    make_arithmetic,
    make_loss,
    optimizer_maker,
    prepare_model,
    set_arithmetic,
    use_float8,
)
from rankbench.rank.world.devices import (
    Runtime,
    bind_near,
    choose_devices,
    find_runtime,
    gpus_among,
)
from rankbench.rank.world.lifeline import Duty
from rankbench.record import write_json


@dataclass(frozen=True)
class Material:
    """The data of a cell, and the model that fits them.

    Attributes:
        classes: number of classes of a target: of an image, or the vocabulary.
        sizes: of the data, as `models.build` takes them.
    """

    train: data.Samples
    test: data.Samples
    classes: int
    sizes: Mapping[str, int]


def draw_model(
    cell: Cell,
    sizes: Mapping[str, int],
    change: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> models.Blueprint:
    """The model of a cell as a blueprint.

    Args:
        sizes: of its data; see `Material`.
        change: changes the model right after it has been built.
    """

    def build() -> nn.Module:
        model = change(build_model(cell, sizes))
        if cell.precision.startswith("fp8"):
            # Planning lets none run on a CPU, but tests do.
            recipe = cell.precision.partition("_")[2] or "tensorwise"
            use_float8(model, recipe, emulate=cell.device == "cpu")
        return model

    return models.Blueprint(build, seed=cell.seed)


def build_model(cell: Cell, sizes: Mapping[str, int]) -> nn.Module:
    return models.build(cell.model, **sizes, options=cell.model_options)


def join_others(duty: Duty, *, precision: str) -> tuple[Runtime, World]:
    """Set up this process, choose its devices, and join the other ranks.

    Ranks of a cell without a backend do not join.
    """
    duty.progress.enter(SET_UP)
    spec, cell, place = duty.spec, duty.spec.cell, duty.place
    torch.set_num_threads(spec.threads)
    set_arithmetic(precision, cudnn_benchmark=cell.cudnn_benchmark)
    runtime = find_runtime(runtime_of(cell.strategy))
    devices = choose_devices(cell, spec.shape, place.local_rank)
    if cell.device == "cuda":
        torch.cuda.set_device(devices[0])
    if cell.backend != "none":
        if host := meeting_host():
            check_name(host)
        runtime.join(cell.backend, place, duty.init_method, devices[0])
    bind_near(identify_gpu(gpu.index)["pci"] for gpu in gpus_among(devices))
    return runtime, make_world(cell, spec.shape, place, devices)


def make_world(
    cell: Cell, shape: Shape, place: Place, devices: tuple[torch.device, ...]
) -> World:
    """The place of a rank, as strategies know it."""
    return World(
        rank=place.rank,
        size=place.size,
        local_rank=place.local_rank,
        device=devices[0],
        devices=devices,
        backend=cell.backend,
        rank_batch=shape.rank_batch,
    )


def set_up(duty: Duty) -> tuple[Course, Material, models.Blueprint, int]:
    """Set up all that a rank trains by.

    Returns:
        The course, the data, the model that the strategy has split, and the number of
        steps of an epoch.
    """
    spec, cell = duty.spec, duty.spec.cell
    runtime, world = join_others(duty, precision=cell.precision)
    material = load_material(cell, spec.data_dir)
    reset_peaks(world.devices)
    blueprint = draw_model(cell, material.sizes)
    strategy = set_up_strategy(
        cell, world, blueprint, replica_ranks=spec.shape.replica_ranks
    )
    batches, per_epoch = make_batches(duty, cell, material, spec.shape.rank_batch)
    course = Course(
        cell=cell,
        strategy=strategy,
        batches=batches,
        runtime=runtime,
        progress=duty.progress,
    )
    return course, material, blueprint, per_epoch


def finish(duty: Duty, runtime: Runtime, report: Mapping[str, Any]) -> None:
    """Write the report of this rank, and leave the others.

    Errors are then only printed, because they cannot affect the measurement: another
    rank may have closed its connection a moment earlier.
    """
    path = duty.spec.work / f"rank{duty.place.rank}.json"
    write_json(path, report, durable=False)
    duty.progress.enter(THE_END)
    try:
        runtime.leave()
    except RuntimeError as error:
        print(f"while leaving the other ranks: {error}", file=sys.stderr, flush=True)


def load_material(cell: Cell, data_dir: Path) -> Material:
    """Load the data sets of a cell."""
    dataset, asked = _find_data(cell)
    train_set, test_set, classes = data.load(
        cell.data,
        data_dir,
        dataset=dataset,
        **asked,
        augment=cell.augment,
        seed=cell.seed,
    )
    sizes = data.sizes_of(dataset.SHAPE, **asked)
    return Material(train_set, test_set, classes, sizes)


def sizes_of_data(cell: Cell) -> dict[str, int]:
    """What the model of a cell must know of its data, which are not loaded."""
    dataset, asked = _find_data(cell)
    return data.sizes_of(dataset.SHAPE, **asked)


def _find_data(cell: Cell) -> tuple[Any, dict[str, int | None]]:
    """The data set of a cell, and the sizes that the cell chooses."""
    own = cell.own_files.get("data", {})
    if "dtype" in own:
        file = variants.own["data", cell.data]
        dataset = data.TokenFile(file, own["dtype"], int(own["vocabulary"]))
    else:
        dataset = variants.load("data", cell.data)
    asked = {
        "channels": cell.channels,
        "image_size": cell.image_size or models.image_size_of(cell.model),
        "context": cell.context,
    }
    return dataset, asked


def set_up_strategy(
    cell: Cell,
    world: World,
    blueprint: models.Blueprint,
    *,
    replica_ranks: int,
    loss_scale: float = 1.0,
    load: Load | None = None,
    compiler: str = "inductor",
) -> Strategy:
    """The strategy of the cell with its model, ready for the first step.

    Args:
        blueprint: the model, of which no part has been loaded.
        replica_ranks: number of ranks that share a model replica.
        loss_scale: factor that the loss is multiplied by.
        load: loads parts of the model; None loads those of the blueprint.
        compiler: backend of torch.compile, if the cell has ``compile``.
    """
    kind = find_strategy(cell.strategy)
    autocast = "fp32" if kind.casts else cell.precision
    loss = make_loss(
        autocast,
        world.device,
        scale=loss_scale,
        compiler=compiler if cell.compile else None,
    )
    strategy = kind(world, loss, **cell.options)
    strategy.arithmetic = make_arithmetic(autocast, world.device)
    # It keeps small fp16 gradients from vanishing.
    fp16 = cell.precision == "fp16"
    strategy.scaler = torch.amp.GradScaler(world.device.type, enabled=fp16)
    strategy.low_dtype = AUTOCAST.get(cell.precision)
    if not kind.casts and strategy.low_dtype == torch.bfloat16:
        lower_norms(blueprint.model, torch.bfloat16, world.device.type)
    model = prepare_model(blueprint.model, cell, compiler=compiler)
    # Tensors that parts of the model share count once.
    strategy.weight_bytes = 4 * sum(p.numel() for p in model.parameters())
    strategy.checkpointing = cell.checkpointing
    strategy.max_norm = cell.clip_gradients
    strategy.load = load or blueprint.load
    if not strategy.on_meta:
        strategy.load(model, world.device)
    strategy.setup(model, optimizer_maker(cell))
    # Augmentation and dropout must differ between replicas.
    replica = _replica_of(world.rank, world.size, replica_ranks, cell)
    torch.manual_seed(cell.seed * 1_000_003 + replica)
    return strategy


def _replica_of(rank: int, ranks: int, replica_ranks: int, cell: Cell) -> int:
    """The replica of a rank; on a mesh, ranks of the same stage are neighbours."""
    neighbours = replica_ranks // cell.options.get("pipe", 1)
    return int(rank // neighbours % (ranks // replica_ranks))


def make_batches(
    duty: Duty,
    cell: Cell,
    material: Material,
    rank_batch: int,
    *,
    alone: bool = False,
) -> tuple[Iterator[Batch], int]:
    """An endless stream of this rank's batches; the number of them in an epoch.

    All ranks share one permutation of the samples, and rank r of n takes every n-th
    sample of it. So the batches of all ranks in a step together are the batch of a
    single process. Incomplete batches are dropped on all ranks. Ranks that share a
    model replica count as one rank.

    Args:
        rank_batch: number of samples of a batch.
        alone: as a single process loads them.
    """
    ranks = duty.spec.shape.ranks
    sharing = ranks if alone else duty.spec.shape.replica_ranks
    sampler: DistributedSampler[Any] = DistributedSampler(
        material.train,
        num_replicas=ranks // sharing,
        rank=_replica_of(duty.place.rank, ranks, sharing, cell),
        seed=cell.seed,
        drop_last=True,
    )
    loader: DataLoader[Any] = DataLoader(
        material.train,
        batch_size=rank_batch,
        sampler=sampler,
        drop_last=True,
        num_workers=cell.num_workers,
        pin_memory=cell.pin_memory,
        persistent_workers=cell.num_workers > 0,
        worker_init_fn=partial(_unpin, duty.affinity),
    )

    def stream() -> Iterator[Batch]:
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from loader

    return stream(), len(loader)


def _unpin(cpus: set[int], _worker: int) -> None:
    """Let a loader process run on other cores than those its rank is pinned to."""
    os.sched_setaffinity(0, cpus)
    torch.set_num_threads(1)
