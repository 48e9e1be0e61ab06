"""Models: each file `NAME.py` in this folder is the model `NAME`.

The file declares `NEEDS`, a literal that planning reads without importing torch, and a
function `build`. It may declare `OPTIONS`, the JSON schemas of further arguments of
`build`, each with a default. A model knows nothing of parallelism. It is an
`nn.Sequential`, so a strategy can split it between any two of its parts.

`LIBRARY/NAME` is a model of a library: see `_libraries`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import stateless

from rankbench import decoder
from rankbench.rank import variants
from rankbench.rank.models._blueprint import Blueprint as Blueprint
from rankbench.rank.models._experts import Experts as Experts
from rankbench.rank.models._experts import describe_experts
from rankbench.rank.models._experts import expect_balance as expect_balance
from rankbench.rank.models._experts import routed_rows as routed_rows

# Two samples to count operations with, because batch normalisation rejects a single
# sample of one pixel.
_SAMPLES = 2

# Containers: not all of them have a forward of their own.
_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def build(
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    **sizes: int,
) -> nn.Module:
    """Build a model that maps [N, channels, image_size, image_size] to [N, classes].

    A model of tokens maps ids [N, context] to logits [N, context, vocabulary].

    The weights are float32 on the CPU, drawn from the global random state.

    Args:
        options: of the model; those that are missing have their defaults. An option
            that is called as a size replaces it, unless it is 0.
        sizes: of the data: channels, image_size and classes, or vocabulary and context.

    Raises:
        ValueError: there is no such model.
    """
    module = _load(name)
    given = complete(name, options)
    sizes |= {key: given.pop(key) or sizes[key] for key in sizes if key in given}
    model = variants.call(module.build, sizes, **given)
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise ValueError(f"{name}: build returned {kind}, not a torch.nn.Module")
    return model


def complete(name: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of a model, with defaults for those that are missing."""
    declared = getattr(_load(name), "OPTIONS", {})
    if is_decoder(name):
        declared = {**decoder.OPTIONS, **declared}
    defaults = {key: schema["default"] for key, schema in declared.items()}
    return defaults | dict(options or {})


def is_decoder(name: str) -> bool:
    """Whether `rankbench.decoder` knows the size of the model."""
    return bool(getattr(_load(name), "NEEDS", {}).get("decoder"))


def image_size_of(name: str) -> int | None:
    """The side of images that a model of a library is made for; None for others."""
    found = _load(name).image_size if "/" in name else None
    return found() if found else None


def _load(name: str) -> Any:
    if "/" not in name:
        return variants.load("model", name)
    from rankbench.rank.models import _libraries

    return _libraries.find(name)


def example_inputs(sizes: Mapping[str, int], samples: int) -> Tensor:
    """Inputs of a model for data of these sizes, of no particular value."""
    if "context" in sizes:
        return torch.zeros(samples, sizes["context"], dtype=torch.int64)
    side = sizes["image_size"]
    return torch.empty(samples, sizes["channels"], side, side)


def find_parts(model: nn.Module) -> list[nn.Module]:
    """The parts with weights: those of a sequence, else the blocks in lists.

    What is outside of lists is a part as a whole, such as an embedding.
    """
    parts = model.children() if isinstance(model, nn.Sequential) else _blocks(model)
    return [part for part in parts if any(True for _ in part.parameters())]


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The parts that consist of layers, embeddings aside; all parts if none does."""
    parts = find_parts(model)
    return [
        part
        for part in parts
        if any(not isinstance(layer, nn.Embedding) for layer in part.children())
    ] or parts


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, _LISTS):
            yield from child.children()
        elif any(isinstance(part, _LISTS) for part in child.modules()):
            yield from _blocks(child)
        else:
            yield child


def describe_model(
    name: str, sizes: Mapping[str, int], options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Count parameters and operations on the meta device, so nothing is computed.

    Args:
        name: name of the model.
        sizes: of the data, as `build` takes them.
        options: of the model.

    Returns:
        parameters (number), parameter_bytes (in float32: the volume that data
        parallelism averages in each step), flops_per_sample (forward and backward of
        one sample, which is an image or a sequence), and of a decoder
        flops_by_formula and, by checkpointing, flops_again (the same, and what backward
        repeats of it, by `rankbench.decoder`). As in
        torch.utils.flop_counter, only matrix products and convolutions count, and a
        multiply-add counts as two operations.
    """
    # Imported here, because it is slow and needed only after the timed window.
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    # transformers looks at values, unless tensors say that they are fake.
    of_transformers = name.startswith("transformers/")
    fake = FakeTensorMode() if of_transformers else nullcontext()
    with fake, torch.device("meta"):
        model = build(name, **sizes, options=options)
        inputs = example_inputs(sizes, _SAMPLES)
    # The counter does not know each kernel of attention, but matrix products.
    counter = FlopCounterMode(display=False)
    expect_balance(model)
    with fake, sdpa_kernel(SDPBackend.MATH), counter:
        model(inputs).sum().backward()
    flops = counter.get_total_flops() // _SAMPLES
    found = {**count_parameters(model), "flops_per_sample": flops}
    if is_decoder(name):
        from rankbench.decoder import describe_decoder

        decoder = describe_decoder(complete(name, options), **sizes)
        found["flops_by_formula"] = decoder.flops
        kinds = ("full", "selective")
        found["flops_again"] = {kind: decoder.flops_again(kind) for kind in kinds}
    return found


def find_kernels(
    model: nn.Module, dtype: torch.dtype, device: torch.device
) -> dict[str, str]:
    """What computes the attention and the experts of a decoder of this dtype."""
    from rankbench.rank.models.gpt import DecoderBlock, find_kernel

    blocks = [module for module in model.modules() if isinstance(module, DecoderBlock)]
    found = {"experts": describe_experts(model, dtype, device)}
    if blocks:
        found["attention"] = find_kernel(blocks[0], dtype, device)
    return {name: kernel for name, kernel in found.items() if kernel}


def count_parameters(model: nn.Module) -> dict[str, Any]:
    """The same, with None for the operations, which only computing would tell."""
    parameters = list(model.parameters())
    return {
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "flops_per_sample": None,
    }


class Replaced:
    """A module that computes with what it makes of its weights."""

    def seen(self, weight: Tensor) -> Tensor:
        """What the module computes with in place of a weight."""
        raise NotImplementedError

    def forward(self, *inputs: Any) -> Any:
        module = cast(nn.Module, self)
        # Replicas of nn.DataParallel have no parameters, but tensors of these names.
        kept = getattr(module, "_former_parameters", module._parameters)
        weights = {name: self.seen(w) for name, w in kept.items() if w is not None}
        with cast(Any, stateless._reparametrize_module(module, weights)):
            return super().forward(*inputs)  # type: ignore[misc]


def become(module: nn.Module, kind: type[Replaced], **attributes: Any) -> None:
    """Let a module compute in this way, and as what it is otherwise.

    The class is that of all alike, so that a compiler sees the same code.
    """
    kinds: Any = kind, type(module)
    module.__class__ = _joined(*kinds)
    for name, value in attributes.items():
        setattr(module, name, value)


@cache
def _joined(kind: Any, module: Any) -> Any:
    return type(f"{kind.__name__}{module.__name__}", (kind, module), {})
