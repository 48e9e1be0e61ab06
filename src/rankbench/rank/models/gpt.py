"""A decoder-only transformer over tokens, in the manner of GPT-2."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend

from rankbench.decoder import swiglu_width

NEEDS = {
    "inputs": "tokens",
    "multiples": [["width", "heads"], ["heads", "kv_heads"]],
    "shares": "tie_embeddings",
    "decoder": True,
}

# Sizes of GPT-3 (Brown et al. 2020, table 2.1) and of MPT (llm-foundry), with its
# vocabulary; `10m` is small enough for a laptop.
PRESETS = {
    "10m": {"layers": 6, "width": 384, "heads": 6},
    "125m": {
        "layers": 12,
        "width": 768,
        "heads": 12,
        "vocabulary": 50368,
        "tie_embeddings": True,
    },
    "350m": {
        "layers": 24,
        "width": 1024,
        "heads": 16,
        "vocabulary": 50368,
        "tie_embeddings": True,
    },
    "1.3b": {
        "layers": 24,
        "width": 2048,
        "heads": 16,
        "vocabulary": 50368,
        "tie_embeddings": True,
    },
    "7b": {
        "layers": 32,
        "width": 4096,
        "heads": 32,
        "vocabulary": 50368,
        "tie_embeddings": True,
    },
}

# And those of rankbench.decoder.
OPTIONS = {
    # The MLP: gelu with 4 widths, or swiglu with 8/3 widths.
    "mlp": {"enum": ["gelu", "swiglu"], "default": "gelu"},
}

# Standard deviation of the weights of embeddings (Radford et al. 2019, GPT-2).
SPREAD = 0.02


def build(
    *,
    vocabulary: int,
    context: int,
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    mlp: str,
    tie_embeddings: bool,
) -> nn.Module:
    """Build the network; 941,056 parameters for 128 tokens of a vocabulary of 512.

    It maps ids [N, T] to logits [N, T, vocabulary], for T up to `context`.
    """
    embedding = Embedding(vocabulary, context, width)
    head = nn.Linear(width, vocabulary, bias=False)
    nn.init.normal_(head.weight, std=SPREAD)
    if tie_embeddings:
        head.weight = embedding.tokens.weight
    parts: OrderedDict[str, nn.Module] = OrderedDict(embedding=embedding)
    for number in range(1, layers + 1):
        parts[f"block{number}"] = DecoderBlock(
            width,
            heads,
            kv_heads or heads,
            norm=lambda: nn.LayerNorm(width),
            mlp=lambda: (
                Gelu(width) if mlp == "gelu" else SwiGlu(width, swiglu_width(width))
            ),
        )
    parts["norm"] = nn.LayerNorm(width)
    parts["head"] = head
    return nn.Sequential(parts)


class Embedding(nn.Module):
    """A learned vector for each token, plus one for each position: ids [N, T]."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=SPREAD)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        result: torch.Tensor = self.tokens(ids) + self.positions(places)
        return result


class DecoderBlock(nn.Module):
    """A pre-norm block of causal attention and MLP on [N, T, width].

    Several heads share each head of keys and values (Ainslie et al. 2023, grouped-query
    attention, arXiv 2305.13245).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        *,
        norm: Callable[[], nn.Module],
        mlp: Callable[[], nn.Module],
        turn: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """Build the block.

        Args:
            norm, mlp: build what stands before attention and MLP, and the MLP.
            turn: tells queries and keys [N, heads, T, width of a head] their places;
                None if embeddings do.
        """
        super().__init__()
        self.head_width = width // heads
        few = self.head_width * kv_heads
        self.norm1 = norm()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, few, bias=False)
        self.value = nn.Linear(width, few, bias=False)
        self.attention = Attention(turn or nn.Identity(), kv_heads < heads)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = norm()
        self.mlp = mlp()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        normed = self.norm1(tokens)
        attended = self.attention(
            self._split(self.query(normed)),
            self._split(self.key(normed)),
            self._split(self.value(normed)),
        )
        tokens = tokens + self.out(attended.transpose(1, 2).flatten(2))
        result: torch.Tensor = tokens + self.mlp(self.norm2(tokens))
        return result

    def _split(self, tokens: torch.Tensor) -> torch.Tensor:
        """Reshape [N, T, values] to [N, heads, T, width of a head]."""
        # -1, because under tensor parallelism a rank holds only some of the heads.
        heads: torch.Tensor = tokens.unflatten(-1, (-1, self.head_width))
        return heads.transpose(1, 2)


class Attention(nn.Module):
    """Causal attention to whole sequences [N, heads, T, width of a head].

    It is a module of its own so that ranks can exchange what it reads and returns.
    """

    def __init__(
        self, turn: Callable[[torch.Tensor], torch.Tensor], shares_heads: bool
    ) -> None:
        super().__init__()
        self.turn, self.shares_heads = turn, shares_heads

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        query, key = self.turn(query), self.turn(key)
        shares = self.shares_heads
        if shares and query.dtype.itemsize > 2:
            # Only flash attention, of 16 bits, takes few heads of keys and values on
            # GPUs. Other kernels would hold scores of all tokens with all tokens.
            times = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(times, dim=1) for x in (key, value))
            shares = False
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=shares
        )


def find_kernel(block: DecoderBlock, dtype: torch.dtype, device: torch.device) -> str:
    """The kernel that torch chooses for the attention of a block."""
    heads = block.query.out_features // block.head_width
    query, key = (
        torch.empty(1, number, 128, block.head_width, dtype=dtype, device=device)
        for number in (heads, block.key.out_features // block.head_width)
    )
    shares = block.attention.shares_heads and dtype.itemsize <= 2
    key = key if shares else query
    chosen = torch._fused_sdp_choice(query, key, key, is_causal=True, enable_gqa=shares)
    return str(SDPBackend(chosen).name.lower().removesuffix("_attention"))


class Gelu(nn.Module):
    """Two linear layers with 4 widths between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(functional.gelu(self.up(tokens)))
        return result


class SwiGlu(nn.Module):
    """A gated MLP (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        gated = functional.silu(self.gate(tokens)) * self.up(tokens)
        result: torch.Tensor = self.down(gated)
        return result
