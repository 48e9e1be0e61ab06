"""Rules for cells that can run nowhere: strategy, model and options do not fit.

Each rule returns the reason for the table, or None if the cell obeys it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from rankbench.decoder import mlp_width, stages_of_rank
from rankbench.matrix.candidate import Candidate
from rankbench.own_files import count_sequences
from rankbench.schema import fits


def _backend_of_strategy(c: Candidate) -> str | None:
    allowed = c.facts.needs["backends"] or [c.facts.needs["own_backend"]]
    if c.cell.backend not in allowed:
        return f"{c.cell.strategy} runs over {', '.join(allowed)}"
    return None


def _gpudirect(c: Candidate) -> str | None:
    if c.cell.gpudirect == "auto":
        return None
    if c.cell.backend not in ("nccl", "mpi"):
        return f"gpudirect is of nccl and mpi; the cell has {c.cell.backend}"
    if c.cell.device != "cuda":
        return "gpudirect is of GPUs; the cell runs on cpu"
    for name in c.cell.env:
        if "_GDR_" in name or name == "UCX_IB_GPU_DIRECT_RDMA":
            return f"gpudirect: {c.cell.gpudirect} may set {name}, and so does env"
    return None


def _devices_of_strategy(c: Candidate) -> str | None:
    name, needs = c.cell.strategy, c.facts.needs
    topology, size = c.cell.topology, c.cell.size
    if c.cell.device not in needs["device"]:
        kinds = " or ".join(needs["device"]).upper()
        count = f"{needs['min_devices']} " if needs["min_devices"] > 1 else ""
        has = (
            f"this machine has {c.site.cuda_devices}" if kinds == "CUDA" else "not cuda"
        )
        return f"{name} needs {count}{kinds} devices; {has}"
    if needs["max_nodes"] and size.nodes > needs["max_nodes"]:
        return f"{name} runs on {needs['max_nodes']} host, {topology} has more"
    if size.devices < needs["min_devices"]:
        return f"{name} needs {needs['min_devices']} devices, {topology} has fewer"
    most = needs["max_cuda_devices"]
    if most and c.cell.device == "cuda" and size.devices > most:
        return f"{name} uses {most} GPU, {topology} has more"
    return None


def _parts_of_model(c: Candidate) -> str | None:
    name, needs = c.cell.model, c.catalog.models[c.cell.model]
    if c.facts.needs["sequential"] and not needs["sequential"]:
        return (
            f"{c.cell.strategy} splits a sequence of named parts (nn.Sequential); "
            f"{name} is none"
        )
    options, shares = c.cell.model_options, needs["shares"]
    cut = not c.facts.needs["shared_weights"] and c.cell.options.get("pipe") != 1
    if shares and options.get(shares) and cut:
        return (
            f"{c.cell.strategy} splits the model, and with {shares} parts of {name} "
            "share a weight"
        )
    for larger, smaller in needs["multiples"]:
        whole, part = options.get(larger), options.get(smaller)
        if whole and part and whole % part:
            return f"{larger} {whole} of {name} is no multiple of {smaller} {part}"
    return None


def _stages(c: Candidate) -> str | None:
    """Stages of equal length, unless the user says how many parts each has."""
    needs, options = c.facts.needs, c.cell.options
    if not needs["sequential"]:
        return None
    layers = c.cell.model_options.get("layers")
    if not c.catalog.models[c.cell.model]["decoder"] or layers is None:
        return None
    stages = options.get("pipe", c.shape.replica_ranks) * c.shape.devices_per_rank
    given = "," in str(options.get("balance", ""))
    if layers % stages and not given:
        return (
            f"{c.cell.strategy} splits {c.cell.model} into {stages} stages, which do "
            f"not divide its {layers} layers: take a divisor, or balance"
        )
    return None


def _groups(c: Candidate) -> str | None:
    option = c.facts.needs["group_ranks"]
    if option and c.shape.ranks % (c.cell.options[option] or 1):
        return (
            f"{option} {c.cell.options[option]} does not divide the {c.shape.ranks} "
            f"ranks of {c.cell.topology}"
        )
    return None


def _axes(c: Candidate) -> str | None:
    """Ranks along all axes are those of the topology, and have equal shares."""
    axes, ranks = c.facts.needs["axes"], c.shape.ranks
    if not axes:
        return None
    sizes = {axis: c.cell.options[axis] for axis in axes}
    product = math.prod(size for size in sizes.values() if size)
    named = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
    if ranks % product:
        return (
            f"{named} does not divide the {ranks} ranks of {c.cell.topology}: take "
            "smaller axes, or a topology of a multiple of their product"
        )
    if sizes["shard"] and product != ranks:
        return (
            f"{named or 'all axes 1'} makes {product} ranks, and {c.cell.topology} has "
            f"{ranks}: shard: 0 takes all that is left"
        )
    pipe, tensor, context = (sizes[axis] for axis in ("pipe", "tensor", "context"))
    expert, among = c.cell.options["expert"], ranks // pipe // sizes["copy"]
    if among % expert:
        return (
            f"expert {expert} does not divide the {among} ranks of a copy "
            "(shard x context x tensor): take a divisor"
        )
    if tensor == context == expert == 1:
        return None
    name, data = c.cell.model, c.catalog.data[c.cell.data]
    options = c.cell.model_options
    if not c.catalog.models[name]["decoder"]:
        axis = "tensor" if tensor > 1 else "context" if context > 1 else "expert"
        return (
            f"{axis} {c.cell.options[axis]} splits decoders of tokens, and {name} is "
            f"none: take {axis}: 1, or gpt or llama"
        )
    experts = options.get("experts", 0)
    if expert > 1 and not experts:
        return f"expert {expert} shares out experts; {name} has none: take expert: 1"
    heads = options["heads"]
    few, tokens = options["kv_heads"] or heads, c.cell.context or data.get("context", 0)
    words = options["vocabulary"] or data.get("vocabulary", 0)
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
            return (
                f"{axis} {size} does not divide the {count} {what}: take a divisor, "
                "and other ranks along shard"
            )
    if max(own, context) % min(own, context):
        return (
            f"context {context} is neither a divisor nor a multiple of the {own} heads "
            f"of keys and values of {name} that each rank along tensor has"
        )
    return None


def _experts(c: Candidate) -> str | None:
    """A token has enough experts."""
    name, options = c.cell.model, c.cell.model_options
    experts = options.get("experts", 0) if c.catalog.models[name]["decoder"] else 0
    if experts and experts < options["top_k"]:
        return f"top_k {options['top_k']} of {name} is more than its {experts} experts"
    return None


def _conditions(c: Candidate) -> str | None:
    said = {**c.cell.to_dict(), **c.cell.options}
    for condition in c.facts.conditions:
        if fits(said, condition["if"]) and not fits(said, condition["then"]):
            return str(condition["else"])
    return None


def _model_and_data(c: Candidate) -> str | None:
    data, needs = c.catalog.data[c.cell.data], c.catalog.models[c.cell.model]
    holds = "tokens" if "vocabulary" in data else "images"
    if needs["inputs"] != holds:
        fitting = {"images": "digits", "tokens": "tokens"}[needs["inputs"]]
        return (
            f"{c.cell.model} takes {needs['inputs']}; {c.cell.data} holds {holds}: set "
            f"data: {fitting}"
        )
    if holds == "tokens":
        return _tokens(c, data)
    if c.cell.context is not None:
        return f"context is of tokens; {c.cell.data} holds images"
    size = c.cell.image_size or data["image_size"]
    channels = c.cell.channels or data["channels"]
    if size < needs["min_image_size"]:
        return (
            f"{c.cell.model} needs images of {needs['min_image_size']} pixels or more, "
            f"not {size}"
        )
    if needs["channels"] and channels not in needs["channels"]:
        return (
            f"{c.cell.model} takes {needs['channels']} channels, not {channels}: set "
            f"channels: {needs['channels'][0]}"
        )
    return None


def _tokens(c: Candidate, data: Mapping[str, Any]) -> str | None:
    chosen = {
        "image_size": c.cell.image_size,
        "channels": c.cell.channels,
        "augment": c.cell.augment != "none",
        "channels_last": c.cell.channels_last,
    }
    for key, value in chosen.items():
        if value:
            return f"{key} is of images; {c.cell.data} holds tokens"
    longest = data.get("longest_context", data["context"])
    if c.cell.context is not None and c.cell.context > longest:
        return (
            f"{c.cell.data} has sequences of {longest} tokens or less, "
            f"not {c.cell.context}"
        )
    wanted = c.cell.model_options.get("vocabulary")
    if wanted and wanted < data["vocabulary"]:
        return (
            f"{c.cell.data} has a vocabulary of {data['vocabulary']} tokens; "
            f"{c.cell.model} has {wanted}"
        )
    return None


def _batch(c: Candidate) -> str | None:
    if c.cell.script is not None:
        return None  # It splits its batches itself.
    parts = max(c.shape.ranks // c.shape.replica_ranks, c.shape.replicas)
    if c.shape.global_batch % parts:
        return f"batch_size {c.cell.batch_size} (strong) does not split over {parts}"
    option = c.facts.needs["multiple_of"]
    if option and c.shape.rank_batch % c.cell.options[option]:
        return (
            f"{c.shape.rank_batch} samples do not split into "
            f"{c.cell.options[option]} {option}"
        )
    data = c.catalog.data[c.cell.data]
    samples = data["train"]
    if "tokens" in data and c.cell.context:
        samples, _ = count_sequences(data["tokens"], c.cell.context)
    if c.shape.global_batch > samples:
        return (
            f"one step takes {c.shape.global_batch} samples, "
            f"{c.cell.data} has {samples} to train on"
        )
    return None


def _whole_periods(c: Candidate) -> str | None:
    option, steps = c.facts.needs["periodic"], c.cell.steps
    if option and steps and steps % (value := c.cell.options[option]):
        return (
            f"{steps} steps are no multiple of {option} {value}, so that their mean "
            f"would not be that of {c.cell.strategy}"
        )
    return None


def _schedule(c: Candidate) -> str | None:
    name = c.cell.options.get("schedule")
    needs = c.facts.needs["schedules"].get(name)
    if needs is None:
        return None
    since = needs.get("torch", {}).get(c.cell.backend)
    if since and not c.no_place and _version(c.software.torch) < _version(since):
        return (
            f"schedule {name} needs torch {since} over {c.cell.backend}; this is "
            f"{c.software.torch}"
        )
    count = c.cell.options["microbatches"]
    ranks = c.cell.options.get("pipe", c.shape.replica_ranks)
    rounds, kind = max(1, count // ranks), needs.get("microbatches")
    if kind == "one_per_rank" and count < ranks:
        return f"schedule {name} needs {ranks} microbatches for {ranks} ranks"
    stages = ranks * stages_of_rank(c.cell.options, c.facts.needs["schedules"])
    if kind == "one_per_stage" and count < stages:
        return (
            f"schedule {name} needs {stages} microbatches for {stages} stages on "
            f"{ranks} ranks, not {count}"
        )
    if kind == "equal_rounds" and count % rounds:
        return (
            f"schedule {name} cannot send {count} microbatches through {ranks} ranks "
            f"in {rounds} equal rounds"
        )
    return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _torch(c: Candidate) -> str | None:
    since = c.facts.needs["torch"].get(c.cell.device)
    if since and not c.no_place and _version(c.software.torch) < _version(since):
        return (
            f"{c.cell.strategy} needs torch {since} on {c.cell.device}; this is "
            f"{c.software.torch}"
        )
    return None


def _precision(c: Candidate) -> str | None:
    if c.cell.precision == "tf32" and c.cell.device != "cuda":
        return "tf32 is an arithmetic of NVIDIA GPUs; the cell runs on cpu"
    kind = c.cell.precision.removesuffix("_rowwise")
    if kind not in (can := c.facts.needs["precisions"]):
        return f"{c.cell.strategy} trains in {', '.join(can)}, not {c.cell.precision}"
    return _float8(c) if kind == "fp8" else None


def _float8(c: Candidate) -> str | None:
    """Sides of matrices that are multiples of 16, for the kernels of GPUs."""
    if c.cell.device != "cuda":
        return "fp8 is an arithmetic of NVIDIA GPUs (float8); the cell runs on cpu"
    name, model = c.cell.model, c.catalog.models[c.cell.model]
    if model["inputs"] != "tokens":
        return f"fp8 is for language models; {name} takes {model['inputs']}"
    if not c.cell.compile:
        return (
            "fp8 without compile takes longer than bf16: compile: true fuses its casts"
        )
    of_strategy, options = c.cell.options, c.cell.model_options
    parts = of_strategy.get("accumulation") or of_strategy.get("microbatches", 1)
    tensor, context = (of_strategy.get(axis, 1) for axis in ("tensor", "context"))
    tokens = c.cell.context or c.catalog.data[c.cell.data]["context"]
    tokens = c.shape.rank_batch * tokens // context // parts
    sides = {"tokens of a forward": tokens}
    if model["decoder"]:
        if options.get("experts"):
            return f"fp8 needs multiples of 16, unlike rows of an expert of {name}"
        few = options["kv_heads"] or options["heads"]
        shared = options["width"] // options["heads"] * few
        sides["values of a token (width) of a rank"] = options["width"] // tensor
        sides["values of keys of a rank"] = shared // tensor
        sides["hidden values of the MLP of a rank"] = mlp_width(options) // tensor
    for side, count in sides.items():
        if count % 16:
            return f"fp8 needs multiples of 16, not {count} {side}"
    return None


def _compile(c: Candidate) -> str | None:
    if c.cell.compile and not c.facts.needs["compiles"]:
        return f"{c.cell.strategy} cannot train blocks that are compiled"
    needs = c.catalog.models[c.cell.model]
    for key, wanted in (("compiles", "compile"), ("checkpoints", "checkpointing")):
        if getattr(c.cell, wanted) not in (False, "none") and not needs[key]:
            return f"{c.cell.model} says NEEDS = {{{key!r}: False}}: no {wanted}"
    return None


def _clip(c: Candidate) -> str | None:
    if c.cell.clip_gradients is not None and not c.facts.needs["clips"]:
        return f"{c.cell.strategy} cannot clip gradients: no rank has all of them"
    return None


RULES = (
    _backend_of_strategy,
    _gpudirect,
    _devices_of_strategy,
    _parts_of_model,
    _stages,
    _groups,
    _axes,
    _experts,
    _conditions,
    _model_and_data,
    _batch,
    _whole_periods,
    _schedule,
    _torch,
    _precision,
    _compile,
    _clip,
)
