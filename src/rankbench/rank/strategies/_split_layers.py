"""Splits the layers of a transformer over a group of ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from rankbench.rank.strategies.base import Operation

# Names of linear layers within a block. COLUMNS split their outputs, so that each rank
# has some of the heads or hidden values. ROWS split their inputs and sum their results.
COLUMNS = ("query", "key", "value", "gate", "up")
ROWS = ("out", "down")

Move = Callable[[Tensor], Tensor]

_OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce")


class SplitLayers:
    """The layers of a model, split over the ranks of a group, and what the ranks send.

    Between split layers, each rank has some tokens of every sequence if the ranks
    divide a sequence; otherwise it has all of them. A model of parts `embedding`,
    blocks, `norm` and `head` also has its vocabulary split.
    """

    def __init__(
        self,
        model: nn.Module,
        mesh: DeviceMesh,
        low_dtype: torch.dtype | None,
        *,
        sequence: bool,
    ) -> None:
        """Split a model in place.

        Args:
            low_dtype: of what the layers read; None leaves it as it is.
            sequence: whether to split the activations between layers.
        """
        self._mesh, self._group = mesh, mesh.get_group()
        self._ranks, self._rank = mesh.size(), mesh.get_local_rank()
        self._low_dtype, self._sequence = low_dtype, sequence
        self._last: tuple[Tensor, Tensor] | None = None
        # Weights that are not split, between the first split layer and the last.
        self._whole: list[tuple[nn.Module, str]] = []
        # (operation, dtype) -> bytes, in this step and in the last one.
        self._sending: Counter[tuple[str, torch.dtype]] = Counter()
        self._sent = self._sending
        # Whether the vocabulary is split; and parts whose input has some tokens only.
        self._vocabulary, self._sliced = False, range(0)
        if self._ranks == 1:
            return
        parts, names = [*model.children()], [name for name, _ in model.named_children()]
        blocks = [number for number, part in enumerate(parts) if self._split(part)]
        assert blocks, "the plan lets through only models that can be split"
        first, end = blocks[0], blocks[-1] + 1
        parts[first].register_forward_pre_hook(lambda _, x: (self._enter(*x),))
        self._vocabulary = (names[:first], names[end:]) == (
            ["embedding"],
            ["norm", "head"],
        )
        if self._vocabulary:
            tables = (m for m in parts[0].modules() if isinstance(m, nn.Embedding))
            self._split_vocabulary(next(tables), cast(nn.Linear, parts[-1]))
        else:
            parts[end - 1].register_forward_hook(lambda _, __, y: self._leave(y))
        self._sliced = range(first + 1, len(parts) if self._vocabulary else end)
        self._whole = [
            (module, name)
            for part in parts[first : -1 if self._vocabulary else end]
            for module in part.modules()
            for name, weight in module.named_parameters(recurse=False)
            if not isinstance(weight, DTensor)
        ]

    def shapes(self, whole: Sequence[Tensor]) -> list[Tensor]:
        """What this rank has of the input of the first part and the output of each.

        Args:
            whole: what a single process would have, on the meta device.
        """
        found = list(whole)
        if self._sliced:
            self._sequence &= whole[self._sliced[0]].shape[1] % self._ranks == 0
        for place in self._sliced if self._sequence else ():
            found[place] = self._mine(found[place])
        if self._vocabulary:
            found[-1] = found[-1].chunk(self._ranks, -1)[self._rank].contiguous()
        return found

    def logits(self, output: Tensor) -> Tensor:
        """Logits as a DTensor, if each rank has some of the words."""
        if not self._vocabulary:
            return output
        return DTensor.from_local(output, self._mesh, [Shard(-1)], run_check=False)

    def split_loss(self) -> AbstractContextManager[None]:
        """A context in which cross entropy, and its backward, need no whole logits."""
        return loss_parallel() if self._vocabulary else nullcontext()

    def end_step(self) -> None:
        """Add up gradients of weights that have seen this rank's tokens alone."""
        if partly := self._partly_learnt():
            sum_gradients(partly, self._group)
        # Nothing reads the last input any more.
        self._last = None
        self._sent, self._sending = self._sending, Counter()

    def operations(self) -> list[Operation]:
        """What was sent in the last step by layers and by the loss."""
        partly = local_bytes(self._partly_learnt())
        return [
            # Ranks of other stages may send what this one does not: all name the same.
            *(Operation(name, 0, group=self._group) for name in _OPERATIONS),
            *(
                Operation(name, size, dtype, self._group)
                for (name, dtype), size in self._sent.items()
            ),
            Operation("all_reduce", partly, group=self._group),
        ]

    def _partly_learnt(self) -> list[nn.Parameter]:
        """Whole weights, such as of norms, that see this rank's tokens alone."""
        found = [getattr(module, name) for module, name in self._whole]
        return [weight for weight in found if self._sequence and not weight.is_meta]

    def _split(self, part: nn.Module) -> bool:
        """Split the linear layers of a part; return whether there are any."""
        found = False
        for module in part.modules():
            for name, layer in module.named_children():
                if isinstance(layer, nn.Linear) and name in COLUMNS + ROWS:
                    column, found = name in COLUMNS, True
                    run = self._run_column if column else self._run_row
                    layer.weight = self._share(layer.weight, 0 if column else 1)
                    if column and layer.bias is not None:
                        layer.bias = self._share(layer.bias, 0)
                    layer.forward = partial(run, layer)  # type: ignore[method-assign]
        return found

    def _split_vocabulary(self, table: nn.Embedding, head: nn.Linear) -> None:
        tied = head.weight is table.weight
        table.weight = self._share(table.weight, 0)
        head.weight = table.weight if tied else self._share(head.weight, 0)
        table.forward = partial(self._look_up, table)  # type: ignore[method-assign]
        head.forward = partial(self._run_head, head)  # type: ignore[method-assign]

    def _share(self, weight: Tensor, dim: int) -> nn.Parameter:
        """This rank's share of a weight.

        Raises:
            ValueError: the ranks do not divide it.
        """
        if weight.shape[dim] % self._ranks:
            raise ValueError(
                f"{self._ranks} ranks cannot share a layer of {weight.shape[dim]}"
            )
        mine = weight.detach().chunk(self._ranks, dim)[self._rank]
        mine = mine.clone(memory_format=torch.contiguous_format)
        return nn.Parameter(
            DTensor.from_local(mine, self._mesh, [Shard(dim)], run_check=False)
        )

    def _run_column(self, layer: nn.Linear, x: Tensor) -> Tensor:
        bias = None if layer.bias is None else local(layer.bias)
        return functional.linear(self._read(x), local(layer.weight), bias)

    def _run_row(self, layer: nn.Linear, x: Tensor) -> Tensor:
        y = self._add_up(functional.linear(x, local(layer.weight)))
        return y if layer.bias is None else y + layer.bias

    def _run_head(self, head: nn.Linear, x: Tensor) -> Tensor:
        logits = self._run_column(head, x)
        # Of each token, the loss needs the maximum, the sum, and the target.
        kind = torch.promote_types(logits.dtype, torch.float32)
        self._sending["all_reduce", kind] += 3 * kind.itemsize * logits[..., 0].numel()
        return logits

    def _look_up(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        weight = local(table.weight)
        ids = ids - self._rank * len(weight)
        others = (ids < 0) | (ids >= len(weight))
        mine = functional.embedding(ids.masked_fill(others, 0), weight)
        return self._move(mine.masked_fill(others[..., None], 0), self._sum, _same)

    def _enter(self, x: Tensor) -> Tensor:
        """Keep this rank's tokens, if the ranks divide a sequence [N, T, width]."""
        self._sequence &= x.shape[1] % self._ranks == 0
        return self._move(x, self._mine, self._gather) if self._sequence else x

    def _leave(self, x: Tensor) -> Tensor:
        return self._move(x, self._gather, self._mine) if self._sequence else x

    @torch.compiler.disable  # it compares tensors, and counts what it sends
    def _read(self, x: Tensor) -> Tensor:
        """All tokens, for layers that return some columns of the results.

        Layers that read the same tensor share one: queries, keys and values of a block
        add up their gradients of it before the ranks do.
        """
        if self._last is None or self._last[0] is not x:
            low = x if self._low_dtype is None else x.to(self._low_dtype)
            add_up, collect = self._moves()
            self._last = x, self._move(low, collect, add_up)
        return self._last[1]

    def _add_up(self, x: Tensor) -> Tensor:
        """The sum of what layers return that know some rows of their weights."""
        return self._move(x, *self._moves())

    def _moves(self) -> tuple[Move, Move]:
        """How ranks add up what they have, and how they collect the sum."""
        return (self._scatter, self._gather) if self._sequence else (self._sum, _same)

    @staticmethod
    def _move(x: Tensor, there: Move, back: Move) -> Tensor:
        result: Tensor = moved(x, there, back)
        return result

    def _mine(self, x: Tensor) -> Tensor:
        return x.chunk(self._ranks, 1)[self._rank].contiguous()

    def _gather(self, x: Tensor) -> Tensor:
        parts = x.new_empty(self._ranks * x.shape[0], *x.shape[1:])
        distributed.all_gather_into_tensor(parts, x.contiguous(), self._group)
        self._sending["all_gather", x.dtype] += parts.nbytes
        by_rank: Tensor = parts.unflatten(0, (self._ranks, -1))
        return by_rank.movedim(0, 1).flatten(1, 2)

    def _scatter(self, x: Tensor) -> Tensor:
        """This rank's tokens of the sum over all ranks."""
        parts = x.unflatten(1, (self._ranks, -1)).movedim(1, 0).flatten(0, 1)
        mine = x.new_empty(x.shape[0], *parts.shape[1:])
        distributed.reduce_scatter_tensor(mine, parts, group=self._group)
        self._sending["reduce_scatter", x.dtype] += parts.nbytes
        return mine

    def _sum(self, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=self._group)
        self._sending["all_reduce", x.dtype] += total.nbytes
        return total


class _Moved(torch.autograd.Function):
    """A tensor that is sent in forward, and its gradient in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Move, back: Move) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradient), None, None


# moved(x, there, back); the compiler cannot follow what notes the bytes that are sent.
moved: Any = torch.compiler.disable(_Moved.apply)


def _same(x: Tensor) -> Tensor:
    return x


def local(tensor: Any) -> Tensor:
    """The part of a tensor that this rank holds."""
    return cast(Tensor, tensor.to_local() if isinstance(tensor, DTensor) else tensor)


def local_bytes(weights: Iterable[Tensor]) -> int:
    """Bytes of the parts of weights that this rank holds."""
    return sum(local(weight).nbytes for weight in weights)


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that is split over ranks; all ranks call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sum_gradients(
    weights: Iterable[nn.Parameter], group: ProcessGroup, *, divide: int = 1
) -> None:
    """Add up gradients over a group, in a single all-reduce, and divide them."""
    gradients = [local(weight.grad) for weight in weights]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat, group=group)
    flat /= divide
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, total in zip(gradients, flat.split(sizes), strict=True):
        gradient.copy_(total.view_as(gradient))


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
