"""Rules for cells that can run nowhere: strategy, model and options do not fit.

Each rule returns the reason for the table, or None if the cell obeys it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rankbench.matrix.question import Question
from rankbench.matrix.schema import fits
from rankbench.token_file import count_sequences


def _backend_of_strategy(q: Question) -> str | None:
    allowed = q.facts.needs["backends"] or [q.facts.needs["own_backend"]]
    if q.cell.backend not in allowed:
        return f"{q.cell.strategy} runs over {', '.join(allowed)}"
    return None


def _gpudirect(q: Question) -> str | None:
    if q.cell.gpudirect == "auto":
        return None
    if q.cell.backend not in ("nccl", "mpi"):
        return f"gpudirect is of nccl and mpi; the cell has {q.cell.backend}"
    if q.cell.device != "cuda":
        return "gpudirect is of GPUs; the cell runs on cpu"
    return None


def _devices_of_strategy(q: Question) -> str | None:
    name, needs, topology = q.cell.strategy, q.facts.needs, q.topology
    if q.cell.device not in needs["device"]:
        kinds = " or ".join(needs["device"]).upper()
        count = f"{needs['min_devices']} " if needs["min_devices"] > 1 else ""
        has = (
            f"this machine has {q.site.cuda_devices}" if kinds == "CUDA" else "not cuda"
        )
        return f"{name} needs {count}{kinds} devices; {has}"
    if needs["max_nodes"] and topology.nodes > needs["max_nodes"]:
        return f"{name} runs on {needs['max_nodes']} host, {topology} has more"
    if topology.devices < needs["min_devices"]:
        return f"{name} needs {needs['min_devices']} devices, {topology} has fewer"
    most = needs["max_cuda_devices"]
    if most and q.cell.device == "cuda" and topology.devices > most:
        return f"{name} uses {most} GPU, {topology} has more"
    return None


def _parts_of_model(q: Question) -> str | None:
    name, needs = q.cell.model, q.catalog.models[q.cell.model]
    if q.facts.needs["sequential"] and not needs["sequential"]:
        return (
            f"{q.cell.strategy} splits a sequence of named parts (nn.Sequential); "
            f"{name} is none"
        )
    options, shares = q.cell.model_options, needs["shares"]
    if shares and options.get(shares) and not q.facts.needs["shared_weights"]:
        return (
            f"{q.cell.strategy} splits the model, and with {shares} parts of {name} "
            "share a weight"
        )
    for larger, smaller in needs["multiples"]:
        whole, part = options.get(larger), options.get(smaller)
        if whole and part and whole % part:
            return f"{larger} {whole} of {name} is no multiple of {smaller} {part}"
    return None


def _stages(q: Question) -> str | None:
    """Stages of equal length, unless the user says how many parts each has."""
    needs = q.facts.needs
    if not needs["sequential"] or needs["divides"]:
        return None
    layers = q.cell.model_options.get("layers")
    if not q.catalog.models[q.cell.model]["decoder"] or layers is None:
        return None
    stages = q.shape.replica_ranks * q.shape.devices_per_rank
    given = "," in str(q.cell.options.get("balance", ""))
    if layers % stages and not given:
        return (
            f"{q.cell.strategy} splits {q.cell.model} into {stages} stages, which do "
            f"not divide its {layers} layers"
        )
    return None


def _ranks_of_replica(q: Question) -> str | None:
    ranks, replica = q.shape.ranks, q.shape.replica_ranks
    if ranks % replica:
        option = q.facts.needs["replica_ranks"]
        return _does_not_divide(q, option, replica)
    group = q.facts.needs["group_ranks"]
    if group and ranks % (q.cell.options[group] or ranks):
        return _does_not_divide(q, group, q.cell.options[group])
    fact = q.facts.needs["divides"]
    if not fact:
        return None
    count = q.catalog.models[q.cell.model][fact]
    if isinstance(count, list):
        given = (q.cell.model_options.get(option) for option in count)
        count = next((number for number in given if number), 0)
    if not count:
        return f"{q.cell.strategy} shares {fact} out to ranks; {q.cell.model} has none"
    if count % replica:
        return f"{replica} ranks cannot share the {count} {fact} of {q.cell.model}"
    return None


def _does_not_divide(q: Question, option: str, value: int) -> str:
    return f"{option} {value} does not divide the {q.shape.ranks} ranks of {q.topology}"


def _conditions(q: Question) -> str | None:
    said = {**q.cell.to_dict(), **q.cell.options}
    for condition in q.facts.conditions:
        if fits(said, condition["if"]) and not fits(said, condition["then"]):
            return str(condition["else"])
    return None


def _model_and_data(q: Question) -> str | None:
    data, needs = q.catalog.data[q.cell.data], q.catalog.models[q.cell.model]
    holds = "tokens" if "vocabulary" in data else "images"
    if needs["inputs"] != holds:
        return f"{q.cell.model} takes {needs['inputs']}; {q.cell.data} holds {holds}"
    if holds == "tokens":
        return _tokens(q, data)
    if q.cell.context is not None:
        return f"context is of tokens; {q.cell.data} holds images"
    size = q.cell.image_size or data["image_size"]
    channels = q.cell.channels or data["channels"]
    if size < needs["min_image_size"]:
        return (
            f"{q.cell.model} needs images of {needs['min_image_size']} pixels or more, "
            f"not {size}"
        )
    if needs["channels"] and channels not in needs["channels"]:
        return f"{q.cell.model} takes {needs['channels']} channels, not {channels}"
    return None


def _tokens(q: Question, data: Mapping[str, Any]) -> str | None:
    chosen = {
        "image_size": q.cell.image_size,
        "channels": q.cell.channels,
        "augment": q.cell.augment != "none",
        "channels_last": q.cell.channels_last,
    }
    for key, value in chosen.items():
        if value:
            return f"{key} is of images; {q.cell.data} holds tokens"
    longest = data.get("longest_context", data["context"])
    if q.cell.context is not None and q.cell.context > longest:
        return (
            f"{q.cell.data} has sequences of {longest} tokens or less, "
            f"not {q.cell.context}"
        )
    wanted = q.cell.model_options.get("vocabulary")
    if wanted and wanted < data["vocabulary"]:
        return (
            f"{q.cell.data} has a vocabulary of {data['vocabulary']} tokens; "
            f"{q.cell.model} has {wanted}"
        )
    return None


def _batch(q: Question) -> str | None:
    if q.cell.script is not None:
        return None  # It splits its batches itself.
    parts = max(q.shape.ranks // q.shape.replica_ranks, q.shape.replicas)
    if q.shape.global_batch % parts:
        return f"batch_size {q.cell.batch_size} (strong) does not split over {parts}"
    option = q.facts.needs["multiple_of"]
    if option and q.shape.rank_batch % q.cell.options[option]:
        return (
            f"{q.shape.rank_batch} samples do not split into "
            f"{q.cell.options[option]} {option}"
        )
    data = q.catalog.data[q.cell.data]
    samples = data["train"]
    if "tokens" in data and q.cell.context:
        samples, _ = count_sequences(data["tokens"], q.cell.context)
    if q.shape.global_batch > samples:
        return (
            f"one step takes {q.shape.global_batch} samples, "
            f"{q.cell.data} has {samples} to train on"
        )
    return None


def _schedule(q: Question) -> str | None:
    name = q.cell.options.get("schedule")
    needs = q.facts.needs["schedules"].get(name)
    if needs is None:
        return None
    since = needs["torch"].get(q.cell.backend)
    if since and not q.no_place and _version(q.software.torch) < _version(since):
        return (
            f"schedule {name} hangs over {q.cell.backend} before torch {since}; "
            f"this is {q.software.torch}"
        )
    count, ranks = q.cell.options["microbatches"], q.shape.replica_ranks
    rounds = max(1, count // ranks)
    if needs["microbatches"] == "one_per_rank" and count < ranks:
        return f"schedule {name} needs {ranks} microbatches for {ranks} ranks"
    if needs["microbatches"] == "equal_rounds" and count % rounds:
        return (
            f"schedule {name} cannot send {count} microbatches through {ranks} ranks "
            f"in {rounds} equal rounds"
        )
    return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _torch(q: Question) -> str | None:
    since = q.facts.needs["torch"].get(q.cell.device)
    if since and not q.no_place and _version(q.software.torch) < _version(since):
        return (
            f"{q.cell.strategy} needs torch {since} on {q.cell.device}; this is "
            f"{q.software.torch}"
        )
    return None


def _precision(q: Question) -> str | None:
    if q.cell.precision == "tf32" and q.cell.device != "cuda":
        return "tf32 is an arithmetic of NVIDIA GPUs; the cell runs on cpu"
    if q.cell.precision not in (can := q.facts.needs["precisions"]):
        return f"{q.cell.strategy} trains in {', '.join(can)}, not {q.cell.precision}"
    return None


def _compile(q: Question) -> str | None:
    if q.cell.compile and not q.facts.needs["compiles"]:
        return f"{q.cell.strategy} takes the model apart: there is no whole to compile"
    needs = q.catalog.models[q.cell.model]
    for key, wanted in (("compiles", "compile"), ("checkpoints", "checkpointing")):
        if getattr(q.cell, wanted) and not needs[key]:
            return f"{q.cell.model} says NEEDS = {{{key!r}: False}}: no {wanted}"
    return None


def _clip(q: Question) -> str | None:
    if q.cell.clip_gradients is not None and not q.facts.needs["clips"]:
        return f"{q.cell.strategy} cannot clip gradients: no rank has all of them"
    return None


RULES = (
    _backend_of_strategy,
    _gpudirect,
    _devices_of_strategy,
    _parts_of_model,
    _stages,
    _ranks_of_replica,
    _conditions,
    _model_and_data,
    _batch,
    _schedule,
    _torch,
    _precision,
    _compile,
    _clip,
)
