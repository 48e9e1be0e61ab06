"""The decoder of Llama 3: rotary positions, RMS norms and a gated MLP, or experts.

Dubey et al. 2024, The Llama 3 Herd of Models, table 3, arXiv 2407.21783.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch
from torch import nn

from rankbench.decoder import swiglu_width
from rankbench.rank.models._experts import Mixture
from rankbench.rank.models.gpt import SPREAD, DecoderBlock, SwiGlu

NEEDS = {
    "inputs": "tokens",
    "multiples": [["width", "heads"], ["heads", "kv_heads"]],
    "shares": "tie_embeddings",
    "decoder": True,
}

# Sizes of Llama 3.2 1B, of Llama 3.1 8B and 70B, of Mixtral 8x7B, and of OLMoE-1B-7B
# (Muennighoff et al. 2024, arXiv 2409.02060) without its norms of queries and keys.
PRESETS = {
    "1b": {
        "layers": 16,
        "width": 2048,
        "heads": 32,
        "kv_heads": 8,
        "mlp_width": 8192,
        "vocabulary": 128256,
        "tie_embeddings": True,
    },
    "8b": {
        "layers": 32,
        "width": 4096,
        "heads": 32,
        "kv_heads": 8,
        "mlp_width": 14336,
        "vocabulary": 128256,
    },
    "70b": {
        "layers": 80,
        "width": 8192,
        "heads": 64,
        "kv_heads": 8,
        "mlp_width": 28672,
        "vocabulary": 128256,
    },
    "8x7b": {
        "layers": 32,
        "width": 4096,
        "heads": 32,
        "kv_heads": 8,
        "mlp_width": 14336,
        "rope_theta": 1000000.0,
        "vocabulary": 32000,
        "experts": 8,
    },
    "olmoe": {
        "layers": 16,
        "width": 2048,
        "heads": 16,
        "mlp_width": 1024,
        "rope_theta": 10000.0,
        "vocabulary": 50304,
        "experts": 64,
        "top_k": 8,
    },
}

# And those of rankbench.decoder.
OPTIONS = {
    # Inner width of the MLP; 0: 8/3 widths, as a multiple of 16.
    "mlp_width": {"type": "integer", "minimum": 0, "default": 0},
    # MLPs of a block, of which a token uses some; 0: one for all.
    "experts": {"type": "integer", "minimum": 0, "default": 0},
    # Experts that a token uses, if there are experts.
    "top_k": {"type": "integer", "minimum": 1, "default": 2},
    # balanced: tokens take experts in turn, as in benchmarks; learned: a token takes
    # those that its router prefers.
    "routing": {"enum": ["balanced", "learned"], "default": "balanced"},
    # Base of the wave lengths of rotary positions.
    "rope_theta": {"type": "number", "exclusiveMinimum": 1, "default": 500000.0},
}


def build(
    *,
    vocabulary: int,
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    mlp_width: int,
    experts: int,
    top_k: int,
    routing: str,
    rope_theta: float,
    tie_embeddings: bool,
) -> nn.Module:
    """Build the network; it maps ids [N, T] to logits [N, T, vocabulary].

    Weights are drawn from a normal distribution of standard deviation 0.02, and of
    less where deeper blocks add to their input, as torchtitan does. Rotary positions
    are those of Llama 3.0; Llama 3.1 stretches the longest waves, at no cost.

    Raises:
        ValueError: a head is of odd width, so its numbers are no pairs.
    """
    if width // heads % 2:
        raise ValueError(f"a head of llama needs an even width, not {width // heads}")
    embedding = nn.Embedding(vocabulary, width)
    head = nn.Linear(width, vocabulary, bias=False)
    for outer in (embedding, head):
        nn.init.normal_(outer.weight, std=SPREAD)
    if tie_embeddings:
        head.weight = embedding.weight
    parts: OrderedDict[str, nn.Module] = OrderedDict(embedding=embedding)

    inner = mlp_width or swiglu_width(width)

    def mlp() -> nn.Module:
        if not experts:
            return SwiGlu(width, inner)
        return Mixture(width, inner, experts, top_k, balanced=routing == "balanced")

    for number in range(1, layers + 1):
        block = DecoderBlock(
            width,
            heads,
            kv_heads or heads,
            norm=lambda: nn.RMSNorm(width, eps=1e-5),
            mlp=mlp,
            turn=partial(turn, theta=rope_theta),
        )
        for name, weight in block.named_parameters():
            if weight.dim() > 1:
                adds = name.removesuffix(".weight").endswith(("out", "down"))
                less = (2 * number) ** -0.5 if adds else 1
                nn.init.normal_(weight, std=SPREAD * less)
        parts[f"block{number}"] = block
    parts["norm"] = nn.RMSNorm(width, eps=1e-5)
    parts["head"] = head
    return nn.Sequential(parts)


def turn(heads: torch.Tensor, *, theta: float) -> torch.Tensor:
    """Turn pairs of numbers by angles that are proportional to their token's place.

    Su et al. 2021, RoFormer, arXiv 2104.09864. The pairs are those of numbers i and
    i + half, as Hugging Face stores the weights of Llama.

    Args:
        heads: queries or keys, [N, heads, T, width of a head].
        theta: number i of a half turns by theta ** (-i / half) for each token.
    """
    length, width = heads.shape[-2:]
    half = width // 2
    # Computed again by each block: a table would be one more tensor to share out.
    steps = torch.arange(half, device=heads.device, dtype=torch.float32)
    places = torch.arange(length, device=heads.device, dtype=torch.float32)
    angles = torch.outer(places, theta ** (-steps / half))
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
