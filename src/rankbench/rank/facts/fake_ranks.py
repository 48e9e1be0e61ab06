"""One rank of a launch without the others: nothing is computed, nothing is sent.

Tensors are fake: they have a shape, a dtype and a device, but no memory. So one process
on any machine runs the code of a rank of any launch, and finds what it would hold and
what it would send.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.amp import GradScaler
from torch.distributed import device_mesh
from torch.distributed.pipelining import schedules
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.parallel import distributed as ddp
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# What memory is for. Activations are all that is none of the others.
WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
GATHERED, ACTIVATIONS = "gathered", "activations"
KINDS = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, GATHERED)
# What a launch would keep in the memory of the host, where it does not count.
HOST = "host"

# Beginning of an operator's name -> the operation, as strategies name it. A rank's
# receives are the sends of another.
_OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "send": "send_recv",
}
_HOLDS = {"all_gather": GATHERED, "reduce_scatter": GRADIENTS, "all_reduce": GRADIENTS}


# Methods of a mesh that read the numbers of its ranks.
_READ_RANKS = (
    "__init__",
    "__getitem__",
    "_flatten",
    "get_coordinate",
    "get_local_rank",
)


@dataclass(slots=True)
class Allocation:
    """Memory of a storage: its bytes now, and what it is for."""

    size: int = 0
    kind: str = ACTIVATIONS


# A kind of call: the operation, as strategies name it; number of ranks that take part;
# dtype of the tensors.
Traffic = tuple[str, int, torch.dtype]


class Ledger(TorchDispatchMode):
    """Books of a rank: memory of its tensors, calls of operations, host waits.

    Attributes:
        calls, sent: number of calls since `turn_page`, and bytes of the whole tensors.
        waits: where the host waits for a value of the device, since then.
        strays: operations on tensors of other devices, since the beginning.
    """

    def __init__(self, device: torch.device, *, unit: int = 1) -> None:
        """Keep the books of a device.

        Args:
            device: tensors on others do not count.
            unit: memory is allocated in multiples of so many bytes.
        """
        super().__init__()
        self.device, self.unit = device, unit
        self.quiet = False
        self._blocks: weakref.WeakKeyDictionary[Any, Allocation] = (
            weakref.WeakKeyDictionary()
        )
        self.strays: set[str] = set()
        self.turn_page()

    def turn_page(self) -> None:
        """Begin to count anew; what is held is still held."""
        self.calls: dict[Traffic, int] = defaultdict(int)
        self.sent: dict[Traffic, int] = defaultdict(int)
        self.waits = 0
        self._begin = {id(block): (block, block.size) for block in self._held()}
        self._changes: list[tuple[Allocation, int]] = []

    def label(self, tensors: Iterable[Any], kind: str) -> None:
        """Say what these tensors are for; those that are not here are left out."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                if block := self._blocks.get(local.untyped_storage()):
                    block.kind = kind

    def label_rest(self, kind: str) -> None:
        """Say what everything is for that is held now and was taken for activations."""
        for block in self._held():
            if block.kind == ACTIVATIONS:
                block.kind = kind

    def parts(self) -> dict[str, int]:
        """What the peak since `turn_page` consists of: kind -> bytes."""
        held = dict.fromkeys(KINDS, 0)
        for block, size in self._begin.values():
            if block.kind != HOST:
                held[block.kind] += size
        now = sum(held.values())
        best, most = dict(held), now
        for block, change in self._changes:
            if block.kind == HOST:
                continue
            held[block.kind] += change
            now += change
            if now > most:
                best, most = dict(held), now
        return best

    def resize(self, storage: Any, size: int) -> None:
        """Note that a storage was enlarged or freed, as FSDP does to gather weights."""
        if block := self._blocks.get(storage):
            if size > block.size:
                block.kind = GATHERED
            self._set(block, size)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        reads = func is torch.ops.aten._local_scalar_dense.default
        if reads and isinstance(args[0], FakeTensor):
            # Optimizers count their steps on the host, which is no device here.
            block = self._blocks.get(args[0].untyped_storage())
            self.waits += block is None or block.kind != OPTIMIZER
            # The value is not known. A number without dimensions is a count of steps,
            # and one with a dimension a flag, such as of an overflow.
            return float(not args[0].dim()) if args[0].is_floating_point() else 0
        out = func(*args, **(kwargs or {}))
        if not self.quiet:
            made = _tensors(out)
            for tensor in made:
                self._see(tensor)
            if func.namespace in ("c10d", "_c10d_functional"):
                self._note(func, args, made)
        return out

    def _held(self) -> list[Allocation]:
        return list({id(block): block for block in self._blocks.values()}.values())

    def _see(self, tensor: Tensor) -> None:
        if tensor.device.type != self.device.type:
            return
        storage = tensor.untyped_storage()
        if storage not in self._blocks:
            block = self._blocks[storage] = Allocation()
            weakref.finalize(storage, self._set, block, 0)
            self._set(block, storage.nbytes())

    def _set(self, block: Allocation, size: int) -> None:
        change = -(-size // self.unit) * self.unit - block.size
        block.size += change
        self._changes.append((block, change))

    def _note(self, func: Any, args: tuple[Any, ...], made: list[Tensor]) -> None:
        plain = func.__name__.split(".")[0].replace("_", "")
        name = next((v for k, v in _OPERATIONS.items() if plain.startswith(k)), None)
        group = next(filter(None, map(_group_of, args)), None)
        if name is None or group is None or group.size() == 1:
            return
        sides = [*map(_tensors, args), made]
        both = [tensor for side in sides for tensor in side]
        self.strays |= {f"{name}: {t.device}" for t in both if t.device != self.device}
        if name in _HOLDS:
            self.label(both, _HOLDS[name])
        sent = name, group.size(), both[0].dtype
        self.calls[sent] += 1
        # Of the whole tensor, as in nccl-tests: what is gathered, or what is scattered.
        self.sent[sent] += max(sum(t.nbytes for t in side) for side in sides)


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        # Most results are a single tensor; the other way takes longer.
        return [tree]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _group_of(value: Any) -> distributed.ProcessGroup | None:
    """The process group that an argument of an operator stands for, if it does."""
    if isinstance(value, str):
        with contextlib.suppress(RuntimeError, KeyError, ValueError):
            return distributed.distributed_c10d._resolve_process_group(value)  # type: ignore[arg-type]
    if isinstance(value, torch.ScriptObject):
        with contextlib.suppress(RuntimeError, TypeError):
            return distributed.ProcessGroup.unbox(value)
    return None


def _apply(module: nn.Module, function: Any, recurse: bool = True) -> nn.Module:
    """As of torch, which cannot exchange fake tensors that something else refers to."""
    for part in module.modules() if recurse else [module]:
        for name, weight in part._parameters.items():
            if weight is None:
                continue
            with torch.no_grad():
                new = function(weight)
            if new is weight:
                continue
            if new.device == weight.device:
                weight.data = new
            else:
                part._parameters[name] = nn.Parameter(new, weight.requires_grad)
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else function(buffer)
    return module


class _Reducer:
    """DDP's own, except that it does not sort its buckets, which reads values."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


class _FakeWork:
    """An operation that has ended."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> bool:
        return True

    def get_future(self) -> Any:
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result([self._tensor])
        return future


def join_fake_ranks(rank: int, ranks: int, ledger: Ledger) -> None:
    """Be this rank of so many for the rest of this process.

    It changes functions of torch that read values, so a process can do nothing else.
    Afterwards, tensors that are made within `FakeTensorMode` and the ledger count.
    """
    # Registers the backend.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    store = FakeStore()
    distributed.init_process_group("fake", rank=rank, world_size=ranks, store=store)
    resize = torch.UntypedStorage.resize_

    def note_resize(storage: Any, size: int) -> Any:
        resized = resize(storage, size)
        ledger.resize(storage, size)
        return resized

    def quietly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before, ledger.quiet = ledger.quiet, True
            try:
                return function(*args, **kwargs)
            finally:
                ledger.quiet = before

        return call

    def step_finitely(_scaler: Any, optimizer: Any, _: Any, *args: Any) -> Any:
        # The scaler has seen that all gradients are finite.
        ledger.waits += 1
        return optimizer.step(*args)

    torch.UntypedStorage.resize_ = note_resize  # type: ignore[assignment, method-assign]
    # It makes tensors of global shapes, which no rank ever holds.
    _change(ShardingPropagator, "_propagate_tensor_meta_non_cached", quietly)
    _change(device_mesh, "init_device_mesh", _with_values)
    for name in _READ_RANKS:
        _change(device_mesh.DeviceMesh, name, _with_values)
    nn.Module._apply = _apply  # type: ignore[method-assign]
    # Other ranks have the same weights.
    _change(ddp, "_verify_param_shape_across_processes", lambda _: _do_nothing)
    _change(ddp, "_sync_module_states", lambda _: _do_nothing)
    _change(ddp.DistributedDataParallel, "forward", _forward_with_hook)
    _change(distributed, "all_reduce", _ending)
    _change(GradScaler, "_maybe_opt_step", lambda _: step_finitely)
    # Stages would ask each other for shapes, which they know.
    _change(schedules._PipelineSchedule, "_warmup_p2p", lambda _: _trust_shapes)
    for module in [m for n, m in sys.modules.items() if n.startswith("deepspeed.")]:
        # ZeRO-3 compares lists with those of rank 0.
        for name in ("ints", "lst_len"):
            check = f"assert_{name}_same_as_other_ranks"
            _change(module, check, lambda _: _do_nothing)


def _change(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of torch, if this torch has it."""
    if hasattr(owner, name):
        setattr(owner, name, make(getattr(owner, name)))


def _with_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with real tensors, such as the numbers of ranks of a mesh."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return call


def _ending(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    """All-reduce whose future has a result, which hooks of DDP read."""

    def call(tensor: Tensor, *args: Any, **kwargs: Any) -> _FakeWork | None:
        all_reduce(tensor, *args, **kwargs)
        return _FakeWork(tensor) if kwargs.get("async_op") else None

    return call


def _forward_with_hook(forward: Callable[..., Any]) -> Callable[..., Any]:
    """As of DDP, with a hook in place of its own all-reduce, which has no result."""

    # DDP checks the annotations of a hook, which must not be text: so it has none.
    def reduce_bucket(_state, bucket):  # type: ignore[no-untyped-def]
        distributed.all_reduce(bucket.buffer())
        reduced: torch.futures.Future[Tensor] = torch.futures.Future()
        reduced.set_result(bucket.buffer())
        return reduced

    def call(module: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not isinstance(module.reducer, _Reducer):
            module.reducer = _Reducer(module.reducer)
        if not module._comm_hooks:
            module.register_comm_hook(None, reduce_bucket)
        return forward(module, *inputs, **kwargs)

    return call


def _do_nothing(*_: Any, **__: Any) -> None:
    pass


def _trust_shapes(_schedule: Any, stages: Iterable[Any], *_: Any) -> None:
    for stage in stages:
        stage._inference_mode = schedules.InferenceMode.STATIC
