"""Splits the layers of a decoder over ranks along the axes of a mesh.

Modules get classes that exchange what they read or return. Blocks of a model that is
split can be compiled: functional collectives are operations of a graph like others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from rankbench.rank.models import Experts, Replaced, become
from rankbench.rank.strategies.base import Operation

_ops: Any = torch.ops._c10d_functional

# Dimensions of queries, keys and values, [N, heads, T, width of a head], and of what is
# between layers, [N, T, width].
HEADS, TOKENS, SEQUENCE = 1, 2, 1


@dataclass(frozen=True)
class Axis:
    """The ranks along a dimension of a mesh, as one of them sees it.

    Attributes:
        mesh: of this dimension alone; None if there is one rank.
        size: number of ranks.
        place: number of this rank among them.
        group: number of ranks, and name of their process group.
    """

    mesh: Any = None
    size: int = 1
    place: int = 0
    group: tuple[int, str] = (1, "")

    @classmethod
    def of(cls, whole: DeviceMesh, name: str) -> Axis:
        """A dimension of a mesh, or an axis of one rank if there is no such one."""
        if name not in (whole.mesh_dim_names or ()):
            return cls()
        mesh = whole[name]
        size, group = mesh.size(), str(mesh.get_group().group_name)
        return cls(mesh, size, mesh.get_local_rank(), (size, group))

    def gather(self, x: Tensor, dim: int) -> Tensor:
        """What all ranks have, joined; its gradient is added up and scattered."""
        return self.move(x, ("gather", dim), ("scatter", dim))

    def scatter(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part of the sum over the ranks; its gradient is gathered."""
        return self.move(x, ("scatter", dim), ("gather", dim))

    def swap(self, x: Tensor, split: int, join: int) -> Tensor:
        """Split a dimension over the ranks, and join another one."""
        return self.move(x, ("swap", split, join), ("swap", join, split))

    def alone(self, weight: Tensor) -> Tensor:
        """A weight that all ranks have, each of which sees its own tokens alone."""
        return self.move(weight, ("same",), ("sum",))

    def move(self, x: Tensor, there: _Move, back: _Move) -> Tensor:
        """A tensor that is moved between the ranks, and its gradient back."""
        if self.size > 1:
            x = _Moved.apply(x, self.group, there, back)
        return x

    def mine(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part of a tensor that all ranks have."""
        return x.chunk(self.size, dim)[self.place].contiguous()

    def share(self, weight: Tensor, dim: int) -> nn.Parameter:
        """This rank's part of a weight, as a DTensor."""
        part = weight.detach().chunk(self.size, dim)[self.place]
        part = part.clone(memory_format=torch.contiguous_format)
        split = DTensor.from_local(part, self.mesh, [Shard(dim)], run_check=False)
        return nn.Parameter(split)


# Number of ranks, and name of their group.
_Group = tuple[int, str]


def _gather(x: Tensor, group: _Group, dim: int) -> Tensor:
    parts = _ops.all_gather_into_tensor(x.contiguous(), *group)
    return torch.cat(_ops.wait_tensor(parts).chunk(group[0]), dim)


def _scatter(x: Tensor, group: _Group, dim: int) -> Tensor:
    parts = torch.cat(x.chunk(group[0], dim))
    mine = _ops.reduce_scatter_tensor(parts, "sum", *group)
    return cast(Tensor, _ops.wait_tensor(mine))


def _swap(x: Tensor, group: _Group, split: int, join: int) -> Tensor:
    even = [len(x)] * group[0]
    received = _exchange(torch.cat(x.chunk(group[0], split)), group, even, even)
    return torch.cat(received.chunk(group[0]), join)


def _exchange(x: Tensor, group: _Group, leave: list[int], arrive: list[int]) -> Tensor:
    """Rows that each rank sends the others, and gets from them."""
    received = _ops.all_to_all_single(x.contiguous(), arrive, leave, group[1])
    return cast(Tensor, _ops.wait_tensor(received))


def _sum(x: Tensor, group: _Group, how: str = "sum") -> Tensor:
    """The sum over the ranks, or the maximum (`max`)."""
    total = _ops.all_reduce(x.contiguous(), how, group[1])
    return cast(Tensor, _ops.wait_tensor(total))


_MOVES: dict[str, Callable[..., Tensor]] = {
    "gather": _gather,
    "scatter": _scatter,
    "swap": _swap,
    "exchange": _exchange,
    "sum": _sum,
    "same": lambda x, _group: x.view_as(x),
    "scale": lambda x, _group, factor: x * factor,
}
# Its name, and further arguments.
_Move = tuple[Any, ...]


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: _Group, there: _Move, back: _Move
    ) -> Tensor:
        ctx.group, ctx.back = group, back
        return _MOVES[there[0]](x, group, *there[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        name, *given = ctx.back
        return _MOVES[name](gradient, ctx.group, *given), None, None, None


class CrossEntropy(torch.autograd.Function):
    """Mean cross entropy of logits of which each rank of an axis has some words."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, axis: Axis) -> Tensor:
        tokens, words = logits.shape
        highest = _sum(logits.amax(1), axis.group, "max")
        mine = targets - axis.place * words
        here = (mine >= 0) & (mine < words)
        mine = mine.clamp(0, words - 1)[:, None]
        shares = logits - highest[:, None]
        wanted = shares.gather(1, mine)[:, 0].masked_fill(~here, 0)
        sums = torch.stack((shares.exp_().sum(1), wanted))
        total, wanted = _sum(sums, axis.group)
        ctx.save_for_backward(shares.div_(total[:, None]), mine, here)
        loss: Tensor = (total.log() - wanted).sum() / tokens
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        shares, mine, here = ctx.saved_tensors
        each = shares.scatter_add(1, mine, -here[:, None].to(shares.dtype))
        return each.mul_(gradient / len(shares)), None, None


# --- classes of modules that are split ------------------------------------------------


class _Split(Replaced):
    """A module that is split over ranks."""

    tensor: Axis
    context: Axis
    expert: Axis

    def seen(self, weight: Tensor) -> Tensor:
        """This rank's part of a split weight."""
        return local(weight)


class _Column(_Split):
    """A linear layer of which each rank has some outputs, such as some heads."""


class _Row(_Split):
    """A linear layer of which each rank has some inputs: ranks add up the results."""

    def forward(self, x: Tensor) -> Tensor:
        return self.tensor.scatter(super().forward(x), SEQUENCE)


class _Own(_Split):
    """A layer that all ranks have, each of which sees its own tokens."""

    def seen(self, weight: Tensor) -> Tensor:
        return self.tensor.alone(weight)


class _Norm(_Own):
    """A norm of a rank's own tokens, and then all of them for the layers that follow.

    Attributes:
        gathers: whether what follows is split, and so reads all tokens.
    """

    gathers = True

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return self.tensor.gather(y, SEQUENCE) if self.gathers else y


class _Words(_Split):
    """An embedding of which each rank has some words; it returns a rank's tokens."""

    def forward(self, ids: Tensor) -> Tensor:
        words = len(local(cast(nn.Embedding, self).weight))
        mine = ids - self.tensor.place * words
        others = (mine < 0) | (mine >= words)
        found = super().forward(mine.masked_fill(others, 0))
        return self.tensor.scatter(found.masked_fill(others[..., None], 0), SEQUENCE)


class _Places(_Own):
    """An embedding of the positions of a rank's own tokens."""

    def forward(self, places: Tensor) -> Tensor:
        places = places + self.context.place * len(places)
        found: Tensor = super().forward(self.tensor.mine(places, 0))
        return found


class _Attention(_Split):
    """Attention of all tokens of a sequence, for some of the heads.

    Jacobs et al. 2023, DeepSpeed Ulysses, arXiv 2309.14509. If there are more ranks
    than heads of keys and values, each gathers those, and takes the one that it needs.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        axis, few = self.context, key.shape[HEADS]
        query = axis.swap(query, HEADS, TOKENS)
        if few % axis.size == 0:
            key, value = (axis.swap(x, HEADS, TOKENS) for x in (key, value))
        else:
            own = axis.place // (axis.size // few)
            key, value = (
                axis.gather(x, TOKENS).narrow(HEADS, own, 1) for x in (key, value)
            )
        return axis.swap(super().forward(query, key, value), TOKENS, HEADS)


class _Experts(_Split):
    """Experts of which each rank has some: it gets rows of all ranks for those.

    Lepikhin et al. 2020, GShard, arXiv 2006.16668.
    """

    def seen(self, weight: Tensor) -> Tensor:
        # FSDP takes the mean over ranks of which several have tokens of one sample, and
        # each has rows of several others.
        factor = self.tensor.size / self.expert.size
        scaled = _Moved.apply(local(weight), None, ("same",), ("scale", factor))
        return cast(Tensor, scaled)

    def share(self, rows: Tensor, counts: Tensor | None) -> Tensor:
        """As of `Experts`."""
        experts, axis = cast(Experts, self), self.expert
        if axis.size == 1:
            return cast(Tensor, cast(Any, super()).share(rows, counts))
        few = experts.number // axis.size
        if counts is None:
            line = experts.evenly(len(rows))
            sizes = [line, line[axis.place * few :][:few] * axis.size]
        else:
            # How many rows each rank has for each expert of this one.
            even = [few] * axis.size
            both = torch.stack((counts, _exchange(counts, axis.group, even, even)))
            sizes = experts.read(both, len(rows))
        leave, arrive = (
            [sum(line[i : i + few]) for i in range(0, len(line), few)] for line in sizes
        )
        there, back = ("exchange", leave, arrive), ("exchange", arrive, leave)
        received = axis.move(rows, there, back)
        # By rank, and within by expert; each expert takes what all ranks have for it.
        parts = received.split(sizes[1])
        by_expert = torch.cat([part for i in range(few) for part in parts[i::few]])
        done = experts.run(by_expert, [sum(sizes[1][i::few]) for i in range(few)])
        parts = done.split([size for i in range(few) for size in sizes[1][i::few]])
        every = range(axis.size)
        by_rank = torch.cat([part for r in every for part in parts[r :: axis.size]])
        return axis.move(by_rank, back, there)


# Last name of a module -> its class, and the dimension of its weight that is split.
_TENSOR: dict[str, tuple[type[_Split], int | None]] = {
    **dict.fromkeys(("query", "key", "value", "gate", "up", "head"), (_Column, 0)),
    **dict.fromkeys(("out", "down"), (_Row, 1)),
    **dict.fromkeys(("norm1", "norm2", "norm"), (_Norm, None)),
    **dict.fromkeys(("embedding", "tokens"), (_Words, 0)),
    "router": (_Own, None),
    "positions": (_Places, None),
}


def split_decoder(model: nn.Module, axes: dict[str, Axis]) -> None:
    """Split a decoder of parts `embedding`, blocks, `norm` and `head` in place.

    Args:
        axes: tensor, context and expert; of other models all have size 1.
    """
    tensor, context, expert = axes["tensor"], axes["context"], axes["expert"]
    shared: dict[nn.Parameter, nn.Parameter] = {}
    for path, module in [*model.named_modules()]:
        name = path.rpartition(".")[2]
        weight = getattr(module, "weight", None)
        if name == "attention" and context.size > 1:
            become(module, _Attention, **axes)
        elif isinstance(module, Experts):
            norm: Any = model.get_submodule(f"{path.partition('.')[0]}.norm2")
            norm.gathers = False  # tokens go to experts as they are
            if expert.size * tensor.size > 1:
                become(module, _Experts, **axes)
            if expert.size > 1:
                for part, stack in [*module.named_parameters(recurse=False)]:
                    setattr(module, part, expert.share(stack, 0))
        elif name in (_TENSOR if tensor.size > 1 else ["positions"]):
            kind, dim = _TENSOR[name]
            if not isinstance(weight, nn.Parameter):
                continue  # a part that consists of others
            become(module, kind, **axes)
            if dim is not None:
                # The head may have the weights of the embedding.
                if weight not in shared:
                    shared[weight] = tensor.share(weight, dim)
                module.weight = shared[weight]


def sent_by_layers(
    model: nn.Module,
    axes: dict[str, Axis],
    *,
    tokens: int,
    batches: int,
    dtype: torch.dtype,
    checkpointing: str,
) -> list[Operation]:
    """What the layers of this rank, and the loss, send in a step.

    Args:
        model: as `split_decoder` leaves it; parts of other ranks are on meta.
        axes: as given to that.
        tokens: of this rank in a step; those along `tensor` have the same.
        batches: number of micro-batches.
        dtype: of activations.
    """
    tensor, context = axes["tensor"], axes["context"]
    sent: Counter[tuple[str, str, torch.dtype]] = Counter()

    def note(axis: str, there: str, size: float, back: str, again: bool) -> None:
        sent[axis, there, dtype] += int(size) * (1 + again)
        sent[axis, back, dtype] += int(size)

    for name, part in model.named_children():
        if any(weight.is_meta for weight in part.parameters()):
            continue
        # Selective checkpointing keeps sums and what is exchanged.
        again = name.startswith("block") and checkpointing != "none"
        anew = again and checkpointing == "full"
        for path, module in part.named_modules():
            weights = dict(module.named_parameters(recurse=False))
            numbers = sum(weight.numel() for weight in weights.values())
            sides = tuple(weights["weight"].shape) if "weight" in weights else (0, 0)
            if isinstance(module, _Own) and tensor.size > 1:
                sent["tensor", "all_reduce", dtype] += (
                    batches * numbers * dtype.itemsize
                )
            if isinstance(module, _Norm) and module.gathers:
                size = tokens * sides[0] * dtype.itemsize
                note("tensor", "all_gather", size, "reduce_scatter", again)
            elif isinstance(module, _Row):
                size = tokens * sides[0] * dtype.itemsize
                # Nothing of a block needs its last sum again.
                needed = anew and path == "out"
                note("tensor", "reduce_scatter", size, "all_gather", needed)
            elif isinstance(module, _Words):
                size = tokens * sides[1] * dtype.itemsize
                note("tensor", "reduce_scatter", size, "all_gather", False)
            elif isinstance(module, _Attention):
                width, few = (
                    tokens * layer.weight.shape[0] * dtype.itemsize / tensor.size
                    for layer in (cast(Any, part).query, cast(Any, part).key)
                )
                swaps = 2 * width
                heads = (
                    cast(Any, part).key.weight.shape[0] // cast(Any, part).head_width
                )
                if heads // tensor.size % context.size == 0:
                    swaps += 2 * few
                else:
                    size = 2 * context.size * few
                    note("context", "all_gather", size, "reduce_scatter", again)
                note("context", "all_to_all", swaps, "all_to_all", anew)
            elif isinstance(module, _Experts):
                mixture = cast(Any, part).mlp
                rows = tokens // tensor.size * mixture.top_k
                size = 2 * rows * weights["up"].shape[2] * dtype.itemsize
                note("expert", "all_to_all", size, "all_to_all", anew)
                if not mixture.balanced:
                    counts = 8 * cast(Experts, module).number * batches
                    sent["expert", "all_to_all", torch.int64] += counts * (1 + anew)
        if name == "head" and tensor.size > 1:
            # Of each token, the loss needs the maximum, the sum, and the target.
            kind = torch.promote_types(dtype, torch.float32)
            sent["tensor", "all_reduce", kind] += 3 * kind.itemsize * tokens
    # Ranks of other stages may send what this one does not: all name the same.
    named = [
        *(("tensor", name, dtype) for name in ("all_gather", "reduce_scatter")),
        *(("tensor", "all_reduce", kind) for kind in {dtype, torch.float32}),
        *(("context", name, dtype) for name in ("all_gather", "reduce_scatter")),
        ("context", "all_to_all", dtype),
        *(("expert", "all_to_all", kind) for kind in (dtype, torch.int64)),
    ]
    return [
        Operation(name, sent[axis, name, kind], kind, axes[axis].mesh.get_group())
        for axis, name, kind in named
        if axes[axis].size > 1
    ]


# --- weights that are split -----------------------------------------------------------


def local(tensor: Any) -> Tensor:
    """The part of a tensor that this rank holds."""
    return cast(Tensor, tensor.to_local() if isinstance(tensor, DTensor) else tensor)


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that is split over ranks; all ranks call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def by_mesh(weights: Iterable[nn.Parameter]) -> Iterable[nn.Parameter]:
    """Groups for an optimizer: one kernel cannot update weights on different meshes."""
    sorts: dict[DeviceMesh | None, list[nn.Parameter]] = defaultdict(list)
    for weight in weights:
        sorts[getattr(weight, "device_mesh", None)].append(weight)
    groups = [{"params": alike} for alike in sorts.values()]
    return cast("Iterable[nn.Parameter]", groups)


def clip(
    optimizer: torch.optim.Optimizer,
    max_norm: float,
    stages: ProcessGroup | None = None,
) -> None:
    """Scale gradients down to this 2-norm of all of them together.

    Args:
        optimizer: of the weights, in groups as `by_mesh` makes them.
        stages: ranks that have other weights.
    """
    # Weights on one mesh have a norm; those of several add up.
    meshes = [group["params"] for group in optimizer.param_groups]
    gradients = [
        [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        for weights in meshes
    ]
    norms = [whole(nn.utils.get_total_norm(alike)) for alike in gradients]
    square = torch.stack(norms).square().sum()
    if stages is not None:
        distributed.all_reduce(square, group=stages)
    for weights in meshes:
        nn.utils.clip_grads_with_norm_(weights, max_norm, square.sqrt())
