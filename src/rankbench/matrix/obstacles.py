"""Rules for cells that can run nowhere: strategy, model and options do not fit.

Each rule yields the reasons for the table; a cell that obeys it has none. Only the
first reason is read, so a rule may rely on the lines and on the rules before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rankbench.decoder import mlp_width, stages_of_rank
from rankbench.matrix.candidate import Candidate
from rankbench.own_files import count_sequences
from rankbench.schema import fits


def _place_of_strategy(c: Candidate) -> Iterator[str]:
    """The backend, and numbers of hosts and devices."""
    name, needs = c.cell.strategy, c.needs
    topology, size = c.cell.topology, c.cell.size
    allowed = needs["backends"] or [needs["own_backend"]]
    if c.cell.backend not in allowed:
        yield f"{name} runs over {', '.join(allowed)}"
    if c.cell.gpudirect != "auto":
        if c.cell.backend not in ("nccl", "mpi"):
            yield f"gpudirect is of nccl and mpi; the cell has {c.cell.backend}"
        if c.cell.device != "cuda":
            yield "gpudirect is of GPUs; the cell runs on cpu"
        for variable in c.cell.env:
            if "_GDR_" in variable or variable == "UCX_IB_GPU_DIRECT_RDMA":
                said = f"gpudirect: {c.cell.gpudirect} may set {variable}"
                yield f"{said}, and so does env"
    if c.cell.device not in needs["device"]:
        kinds = " or ".join(needs["device"]).upper()
        count = f"{needs['min_devices']} " if needs["min_devices"] > 1 else ""
        has = "not cuda"
        if kinds == "CUDA":
            has = f"this machine has {c.site['cuda_devices']}"
        yield f"{name} needs {count}{kinds} devices; {has}"
    if needs["max_nodes"] and size.nodes > needs["max_nodes"]:
        yield f"{name} runs on {needs['max_nodes']} host, {topology} has more"
    if size.devices < needs["min_devices"]:
        yield f"{name} needs {needs['min_devices']} devices, {topology} has fewer"
    most = needs["max_cuda_devices"]
    if most and c.cell.device == "cuda" and size.devices > most:
        yield f"{name} uses {most} GPU, {topology} has more"


def _parts_of_model(c: Candidate) -> Iterator[str]:
    name, options = c.cell.model, c.cell.model_options
    if c.needs["sequential"] and not c.model["sequential"]:
        yield (
            f"{c.cell.strategy} splits a sequence of named parts (nn.Sequential); "
            f"{name} is none"
        )
    shares = c.model["shares"]
    cut = not c.needs["shared_weights"] and c.cell.options.get("pipe") != 1
    if shares and options.get(shares) and cut:
        yield (
            f"{c.cell.strategy} splits the model, and with {shares} parts of {name} "
            "share a weight"
        )
    for larger, smaller in c.model["multiples"]:
        whole, part = options.get(larger), options.get(smaller)
        if whole and part and whole % part:
            yield f"{larger} {whole} of {name} is no multiple of {smaller} {part}"
    # Stages of equal length, unless the user says how many parts each has.
    stages = c.cell.options.get("pipe", c.shape.replica_ranks)
    stages *= c.shape.devices_per_rank
    layers = options.get("layers", 0) if c.model["decoder"] else 0
    given = "," in str(c.cell.options.get("balance", ""))
    if c.needs["sequential"] and layers % stages and not given:
        yield (
            f"{c.cell.strategy} splits {name} into {stages} stages, which do "
            f"not divide its {layers} layers: take a divisor, or balance"
        )


def _axes(c: Candidate) -> Iterator[str]:
    """Ranks along all axes are those of the topology, and have equal shares."""
    option, axes, ranks = c.needs["group_ranks"], c.needs["axes"], c.shape.ranks
    if option and ranks % (c.cell.options[option] or 1):
        yield (
            f"{option} {c.cell.options[option]} does not divide the {ranks} ranks of "
            f"{c.cell.topology}"
        )
    if not axes:
        return
    sizes = {axis: c.cell.options[axis] for axis in axes}
    product = math.prod(size for size in sizes.values() if size)
    named = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
    if ranks % product:
        yield (
            f"{named} does not divide the {ranks} ranks of {c.cell.topology}: take "
            "smaller axes, or a topology of a multiple of their product"
        )
    if sizes["shard"] and product != ranks:
        yield (
            f"{named or 'all axes 1'} makes {product} ranks, and {c.cell.topology} has "
            f"{ranks}: shard: 0 takes all that is left"
        )
    pipe, tensor, context = (sizes[axis] for axis in ("pipe", "tensor", "context"))
    expert, among = c.cell.options["expert"], ranks // pipe // sizes["copy"]
    if among % expert:
        yield (
            f"expert {expert} does not divide the {among} ranks of a copy "
            "(shard x context x tensor): take a divisor"
        )
    if tensor == context == expert == 1:
        return
    name, options = c.cell.model, c.cell.model_options
    if not c.model["decoder"]:
        axis = "tensor" if tensor > 1 else "context" if context > 1 else "expert"
        yield (
            f"{axis} {c.cell.options[axis]} splits decoders of tokens, and {name} is "
            f"none: take {axis}: 1, or gpt or llama"
        )
    experts = options.get("experts", 0)
    if expert > 1 and not experts:
        yield f"expert {expert} shares out experts; {name} has none: take expert: 1"
    heads = options["heads"]
    few, tokens = (
        options["kv_heads"] or heads,
        c.cell.context or c.data.get("context", 0),
    )
    words = options["vocabulary"] or c.data.get("vocabulary", 0)
    own, inner = max(1, few // tensor), 1 if experts else mlp_width(options)
    shares = [
        ("tensor", tensor, few, f"heads of keys and values of {name} (kv_heads)"),
        ("tensor x context", tensor * context, heads, f"heads of {name} (heads)"),
        ("tensor", tensor if not experts else 1, inner, "hidden values of the MLP"),
        ("tensor", tensor, words, "words (vocabulary)"),
        ("tensor x context", tensor * context, tokens, "tokens (context)"),
        ("expert", expert, experts, f"experts of {name} (experts)"),
    ]
    for axis, size, count, what in shares:
        if count % size:
            yield (
                f"{axis} {size} does not divide the {count} {what}: take a divisor, "
                "and other ranks along shard"
            )
    if max(own, context) % min(own, context):
        yield (
            f"context {context} is neither a divisor nor a multiple of the {own} heads "
            f"of keys and values of {name} that each rank along tensor has"
        )


def _conditions(c: Candidate) -> Iterator[str]:
    """A token has enough experts, and what the strategy itself declares."""
    options = c.cell.model_options
    experts = options.get("experts", 0) if c.model["decoder"] else 0
    if experts and experts < (top_k := options["top_k"]):
        yield f"top_k {top_k} of {c.cell.model} is more than its {experts} experts"
    said = {**c.cell.to_dict(), **c.cell.options}
    for condition in c.facts["conditions"]:
        if fits(said, condition["if"]) and not fits(said, condition["then"]):
            yield str(condition["else"])


def _model_and_data(c: Candidate) -> Iterator[str]:
    asked = {"image_size": c.cell.image_size, "channels": c.cell.channels}
    sizes = {**c.data, **{key: size for key, size in asked.items() if size}}
    yield from misfits(c.cell.model, c.model, c.cell.data, sizes)
    if "vocabulary" in c.data:
        yield from _tokens(c)
    elif c.cell.context is not None:
        yield f"context is of tokens; {c.cell.data} holds images"


def misfits(
    name: str, model: Mapping[str, Any], data: str, sizes: Mapping[str, Any]
) -> Iterator[str]:
    """Why a model with these facts cannot take data of these sizes."""
    takes, holds = model["inputs"], "tokens" if "vocabulary" in sizes else "images"
    if takes != holds:
        fitting = {"images": "digits", "tokens": "tokens"}[takes]
        yield f"{name} takes {takes}; {data} holds {holds}: set data: {fitting}"
    if holds == "tokens":
        return
    size, least = sizes["image_size"], model["min_image_size"]
    if size < least:
        yield f"{name} needs images of {least} pixels or more, not {size}"
    channels, known = sizes["channels"], model["channels"]
    if known and channels not in known:
        yield f"{name} takes {known} channels, not {channels}: set channels: {known[0]}"


def _tokens(c: Candidate) -> Iterator[str]:
    chosen = {
        "image_size": c.cell.image_size,
        "channels": c.cell.channels,
        "augment": c.cell.augment != "none",
        "channels_last": c.cell.channels_last,
    }
    for key, value in chosen.items():
        if value:
            yield f"{key} is of images; {c.cell.data} holds tokens"
    longest = c.data.get("longest_context", c.data["context"])
    if c.cell.context is not None and c.cell.context > longest:
        yield (
            f"{c.cell.data} has sequences of {longest} tokens or less, "
            f"not {c.cell.context}"
        )
    wanted = c.cell.model_options.get("vocabulary")
    if wanted and wanted < c.data["vocabulary"]:
        yield (
            f"{c.cell.data} has a vocabulary of {c.data['vocabulary']} tokens; "
            f"{c.cell.model} has {wanted}"
        )


def _batch(c: Candidate) -> Iterator[str]:
    if c.cell.script is not None:
        return  # It splits its batches itself.
    parts = max(c.shape.ranks // c.shape.replica_ranks, c.shape.replicas)
    if c.shape.global_batch % parts:
        yield f"batch_size {c.cell.batch_size} (strong) does not split over {parts}"
    option = c.needs["multiple_of"]
    if option and c.shape.rank_batch % c.cell.options[option]:
        yield (
            f"{c.shape.rank_batch} samples do not split into "
            f"{c.cell.options[option]} {option}"
        )
    samples = c.data["train"]
    if "tokens" in c.data and c.cell.context:
        samples, _ = count_sequences(c.data["tokens"], c.cell.context)
    if c.shape.global_batch > samples:
        yield (
            f"one step takes {c.shape.global_batch} samples, "
            f"{c.cell.data} has {samples} to train on"
        )
    option, steps = c.needs["periodic"], c.cell.steps
    if option and steps and steps % (value := c.cell.options[option]):
        yield (
            f"{steps} steps are no multiple of {option} {value}, so that their mean "
            f"would not be that of {c.cell.strategy}"
        )


def _schedule(c: Candidate) -> Iterator[str]:
    name = c.cell.options.get("schedule")
    needs = c.needs["schedules"].get(name)
    if needs is None:
        return
    since = needs.get("torch", {}).get(c.cell.backend)
    if since and not c.no_place and _version(c.software["torch"]) < _version(since):
        yield (
            f"schedule {name} needs torch {since} over {c.cell.backend}; this is "
            f"{c.software['torch']}"
        )
    count = c.cell.options["microbatches"]
    ranks = c.cell.options.get("pipe", c.shape.replica_ranks)
    rounds, kind = max(1, count // ranks), needs.get("microbatches")
    if kind == "one_per_rank" and count < ranks:
        yield f"schedule {name} needs {ranks} microbatches for {ranks} ranks"
    stages = ranks * stages_of_rank(c.cell.options, c.needs["schedules"])
    if kind == "one_per_stage" and count < stages:
        yield (
            f"schedule {name} needs {stages} microbatches for {stages} stages on "
            f"{ranks} ranks, not {count}"
        )
    if kind == "equal_rounds" and count % rounds:
        yield (
            f"schedule {name} cannot send {count} microbatches through {ranks} ranks "
            f"in {rounds} equal rounds"
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _arithmetic(c: Candidate) -> Iterator[str]:
    """The version of torch, the precision, and what else is done with gradients."""
    name, since = c.cell.strategy, c.needs["torch"].get(c.cell.device)
    if since and not c.no_place and _version(c.software["torch"]) < _version(since):
        here = c.software["torch"]
        yield f"{name} needs torch {since} on {c.cell.device}; this is {here}"
    if c.cell.precision == "tf32" and c.cell.device != "cuda":
        yield "tf32 is an arithmetic of NVIDIA GPUs; the cell runs on cpu"
    kind = c.cell.precision.removesuffix("_rowwise")
    if kind not in (can := c.needs["precisions"]):
        yield f"{name} trains in {', '.join(can)}, not {c.cell.precision}"
    if kind == "fp8":
        yield from _float8(c)
    if c.cell.compile and not c.needs["compiles"]:
        yield f"{name} cannot train blocks that are compiled"
    for key, wanted in (("compiles", "compile"), ("checkpoints", "checkpointing")):
        if getattr(c.cell, wanted) not in (False, "none") and not c.model[key]:
            yield f"{c.cell.model} says NEEDS = {{{key!r}: False}}: no {wanted}"
    if c.cell.clip_gradients is not None and not c.needs["clips"]:
        yield f"{name} cannot clip gradients: no rank has all of them"


def _float8(c: Candidate) -> Iterator[str]:
    """Sides of matrices that are multiples of 16, for the kernels of GPUs."""
    if c.cell.device != "cuda":
        yield "fp8 is an arithmetic of NVIDIA GPUs (float8); the cell runs on cpu"
    name = c.cell.model
    if c.model["inputs"] != "tokens":
        yield f"fp8 is for language models; {name} takes {c.model['inputs']}"
    if not c.cell.compile:
        yield (
            "fp8 without compile takes longer than bf16: compile: true fuses its casts"
        )
    of_strategy, options = c.cell.options, c.cell.model_options
    parts = of_strategy.get("accumulation") or of_strategy.get("microbatches", 1)
    tensor, context = (of_strategy.get(axis, 1) for axis in ("tensor", "context"))
    tokens = c.cell.context or c.data["context"]
    tokens = c.shape.rank_batch * tokens // context // parts
    sides = {"tokens of a forward": tokens}
    if c.model["decoder"]:
        if options.get("experts"):
            yield f"fp8 needs multiples of 16, unlike rows of an expert of {name}"
        few = options["kv_heads"] or options["heads"]
        shared = options["width"] // options["heads"] * few
        sides["values of a token (width) of a rank"] = options["width"] // tensor
        sides["values of keys of a rank"] = shared // tensor
        sides["hidden values of the MLP of a rank"] = mlp_width(options) // tensor
    for side, count in sides.items():
        if count % 16:
            yield f"fp8 needs multiples of 16, not {count} {side}"


RULES = (
    _place_of_strategy,
    _parts_of_model,
    _axes,
    _conditions,
    _model_and_data,
    _batch,
    _schedule,
    _arithmetic,
)
