"""A model on the meta device, and the first values of any part of it.

A blueprint records the operations that build a model on the meta device, where they
compute nothing. It repeats those that a part needs when a strategy asks for that part.
Each draw of random numbers has a seed of its own, and one that is replaced later is
left out. Weights that are drawn by one operation are drawn where they belong, of shards
only the rows that they touch. So a rank holds only what its strategy keeps, and the
weights are the same however they are shared out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from rankbench.record import first_line

# They take values, which the meta device would forget.
_OF_VALUES = {torch.tensor, torch.as_tensor, torch.asarray}

# Operations in place that replace all values, whatever they were.
_REPLACES = {"normal_", "uniform_", "random_", "exponential_", "zero_", "fill_"}

# Operations that draw a tensor of any rows; so many numbers have a seed.
_DRAWS = {torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default}
_OF_A_SEED = 2**22

_SAYS_META: Any = Tensor.is_meta.__get__  # type: ignore[attr-defined]

_OWN_GENERATOR = "draws from a random generator of its own"

# Name of a tensor: the module that holds it, and the attribute.
_Holder = tuple[nn.Module, str]


class NotOnMetaError(ValueError):
    """A model cannot be built on the meta device; the message says why."""


class Blueprint:
    """A model whose tensors get memory and values part by part, from `load`.

    A model that cannot be built on the meta device is built as a whole in the memory
    of the host.

    Attributes:
        model: the model, on the meta device; on the CPU if it cannot be built there.
        reason: why the model could not be built on the meta device; None if it was.
    """

    def __init__(self, build: Callable[[], nn.Module], *, seed: int) -> None:
        """Build the model.

        Args:
            build: builds the model; it draws from torch's global random state.
            seed: sets that state while the model is built, and as its values are
                computed; otherwise the state remains as it is.
        """
        self.reason: str | None = None
        self._record: _Record | None = None
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            begin = torch.get_rng_state()
            try:
                self._record = _Record(seed)
                self.model = self._record.watch(build)
            except NotOnMetaError as error:
                self.reason = str(error)
                self._record = None
                torch.set_rng_state(begin)
                self.model = build()

    def load(self, part: nn.Module, device: torch.device) -> None:
        """Give memory and first values to all tensors of a part of the model.

        Each rank does so on its own: there is no communication. Of a sharded tensor a
        rank gets its own shard.

        Args:
            part: the model or a module within it; what is not on the meta device is
                left as it is.
            device: where a tensor goes whose strategy has not chosen a device.
        """
        if self._record is None:
            part.to(device)
        else:
            self._record.fill(self._record.allocate(part, device))

    def allocate(self, part: nn.Module, device: torch.device) -> None:
        """As `load`, without values."""
        if self._record is not None:
            self._record.allocate(part, device)


@dataclass(eq=False)
class _Operation:
    """An operation with tensors on the meta device.

    Attributes:
        given, named: its arguments; tensors on the CPU are constants.
        made: its results that are no views of arguments.
        reads, writes: keys of the storages.
        replaces: whether all of what it writes is new.
        random: whether it draws random numbers.
    """

    function: Any
    given: tuple[Any, ...]
    named: dict[str, Any]
    made: list[Tensor]
    reads: set[int]
    writes: set[int]
    replaces: bool
    random: bool


class _Record(TorchDispatchMode):
    """Records operations while a model is built on the meta device."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._operations: list[_Operation] = []
        # Storage -> number of the operation that has drawn all of its values.
        self._drawn: dict[int, int] = {}
        self._known: set[int] = set()
        # Storage -> values that were not computed by operations.
        self._constants: dict[int, Tensor] = {}
        # As they were built. They keep the keys of their storages from being reused.
        self._built: dict[tuple[int, str], Tensor] = {}
        self._kept: list[Any] = []
        self._tied: list[list[_Holder]] = []

    def watch(self, build: Callable[[], nn.Module]) -> nn.Module:
        """Build the model on the meta device.

        Raises:
            NotOnMetaError: it cannot be built there.
        """
        plain, begin = nn.init._no_grad_trunc_normal_, torch.get_rng_state()
        try:
            nn.init._no_grad_trunc_normal_ = partial(self._note_whole, plain)
            with self, _OnMeta():
                model = build()
        except NotImplementedError as error:
            raise NotOnMetaError(first_line(str(error)) or "is not defined") from error
        except RuntimeError as error:
            if "meta" not in str(error).lower():
                raise
            said = first_line(str(error))
            raise NotOnMetaError(f"reads values: {said}") from error
        finally:
            nn.init._no_grad_trunc_normal_ = plain
        if not torch.equal(torch.get_rng_state(), begin):
            raise NotOnMetaError("draws random numbers that it reads at once")
        if not isinstance(model, nn.Module):
            return model
        own = {id(t) for module in model.modules() for _, t in _tensors(module)}
        for path, module in model.named_modules():
            for name, value in vars(module).items():
                if any(_is_meta(t) and id(t) not in own for t in tree_iter(value)):
                    raise NotOnMetaError(
                        f"{f'{path}.{name}'.lstrip('.')} is a tensor, but neither a "
                        "parameter nor a buffer"
                    )
        self._note(model)
        return model

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        before = [t for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)]
        if before and not any(map(_is_meta, before)):
            return func(*args, **kwargs)
        if func.namespace == "aten" and func.__name__.startswith(("set_", "resize_")):
            raise NotOnMetaError(f"changes memory by {func.__name__}")
        kept = tree_map_only(Tensor, _snapshot, (args, kwargs))
        args, kwargs = tree_map_only(Tensor, lambda t: t.to("meta"), (args, kwargs))
        out = func(*args, **kwargs)
        args, kwargs = kept
        made = [
            t.detach()
            for t in tree_iter(out)
            if _is_meta(t) and _key(t) not in self._known
        ]
        written = [
            value
            for argument, value in _arguments(func, args, kwargs)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        written = [t for t in tree_iter(written) if isinstance(t, Tensor)]
        if not (made or written):
            return out
        random = torch.Tag.nondeterministic_seeded in func.tags
        if random and any(isinstance(a, torch.Generator) for a in kwargs.values()):
            raise NotOnMetaError(_OWN_GENERATOR)
        name = func.__name__.partition(".")[0]
        replaces = bool(made) and not written
        if name in _REPLACES or name == "copy_":
            replaces = _covers_storage(written[0])
        reads = {_key(t) for t in tree_iter((args, kwargs)) if _is_meta(t)}
        if replaces and written:
            reads = {_key(t) for t in tree_iter(args[1:]) if _is_meta(t)}
        writes = {_key(t) for t in (*made, *written)}
        self._known |= writes
        self._operations.append(
            _Operation(func, args, kwargs, made, reads, writes, replaces, random)
        )
        return out

    def _note_whole(
        self, function: Any, tensor: Tensor, *given: Any, **named: Any
    ) -> Tensor:
        """Record a function that draws numbers until they please it as one operation.

        Newer versions of torch so draw from a truncated normal distribution.
        """
        if tensor.device.type != "meta":
            return cast(Tensor, function(tensor, *given, **named))
        if named.get("generator") is not None:
            raise NotOnMetaError(_OWN_GENERATOR)
        replaces, keys = _covers_storage(tensor), {_key(tensor)}
        self._operations.append(
            _Operation(
                function=function,
                given=(tensor.detach(), *given),
                named=named,
                made=[],
                reads=set() if replaces else keys,
                writes=keys,
                replaces=replaces,
                random=True,
            )
        )
        return tensor

    def allocate(self, part: nn.Module, device: torch.device) -> list[_Holder]:
        """Give memory to what is on the meta device; return the tensors."""
        touched = [
            module
            for module in part.modules()
            if any(value.is_meta for _, value in _tensors(module))
        ]
        for module in touched:
            module.to_empty(device=device, recurse=False)
        ids = {id(module) for module in touched}
        for (source, name), *others in self._tied:
            shared = getattr(source, name)
            for module, other in others:
                if id(source) in ids or id(module) in ids:
                    setattr(module, other, shared)
        return [(module, name) for module in touched for name, _ in _tensors(module)]

    @torch.no_grad()
    def fill(self, holders: list[_Holder]) -> None:
        """Compute the first values of these tensors."""
        wanted: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for module, name in holders:
            built = self._built.get((id(module), name))
            if built is None:
                continue
            place = getattr(module, name)
            number = self._drawn.get(_key(built))
            if number is not None and built.dim() and _covers_storage(built):
                self._draw(number, built, place)
            else:
                wanted.setdefault(_key(built), []).append((built, place))
        with torch.random.fork_rng(devices=[]):
            self._repeat(wanted)

    def _note(self, model: nn.Module) -> None:
        """Remember the tensors of a model, which all are on the meta device then."""
        twins: dict[int, Tensor] = {}
        holders: dict[int, list[_Holder]] = {}
        for module in model.modules():
            for name, value in _tensors(module):
                if not value.is_meta:
                    if id(value) not in twins:
                        twin = torch.empty_like(value, device="meta")
                        if isinstance(value, nn.Parameter):
                            twin = nn.Parameter(twin, requires_grad=value.requires_grad)
                        twins[id(value)] = twin
                        self._constants[_key(twin)] = value.detach()
                    value = twins[id(value)]
                    setattr(module, name, value)
                elif _key(value) not in self._known:
                    raise NotOnMetaError(f"nothing says what the values of {name} are")
                self._built[id(module), name] = value.detach()
                self._kept.append((module, value))
                holders.setdefault(id(value), []).append((module, name))
        self._tied = [tied for tied in holders.values() if len(tied) > 1]
        for number, operation in enumerate(self._operations):
            for key in operation.writes:
                self._drawn.pop(key, None)
                if operation.replaces and operation.function in _DRAWS:
                    self._drawn[key] = number

    def _draw(self, number: int, built: Tensor, place: Any) -> None:
        """Repeat a draw for a tensor, or for this rank's shard of it, at its place."""
        operation, here = self._operations[number], built
        if hasattr(place, "placements"):
            here, place = shard_of(built, place), place.to_local()
        if place.is_meta or not place.numel():
            return  # it shares a weight that is loaded later, or has none
        begins, left = [], here.storage_offset()
        for stride in built.stride():
            begins.append(left // stride)
            left %= stride
        columns = [
            slice(begin, begin + size)
            for begin, size in zip(begins[1:], here.shape[1:], strict=True)
        ]
        rows = max(1, _OF_A_SEED // max(1, built[0].numel()))
        generator = torch.Generator(place.device)
        begin, end = begins[0], begins[0] + len(here)
        for block in range(begin // rows, -(-end // rows)):
            first, last = block * rows, min(len(built), (block + 1) * rows)
            drawn = torch.empty(
                (last - first, *built.shape[1:]), dtype=built.dtype, device=place.device
            )
            generator.manual_seed(_seed_of(self._seed, number, block))
            named = {**operation.named, "generator": generator}
            operation.function(drawn, *operation.given[1:], **named)
            low, high = max(begin, first), min(end, last)
            part = drawn[low - first : high - first][(slice(None), *columns)]
            place[low - begin : high - begin].copy_(part)

    def _repeat(self, wanted: dict[int, list[tuple[Tensor, Tensor]]]) -> None:
        """Repeat what gives values to storages, and copy them to their places."""
        for key in wanted.keys() & self._constants.keys():
            for _, place in wanted[key]:
                _copy(self._constants[key], place)
        values: dict[int, torch.UntypedStorage] = {}
        needed, last = self._find_needed(wanted.keys() - self._constants.keys())
        ends: dict[int, list[int]] = {}
        for key, index in last.items():
            ends.setdefault(index, []).append(key)
        for index in needed:
            operation = self._operations[index]
            if operation.random:
                seed = _seed_of(self._seed, index)
                torch.default_generator.manual_seed(seed)
            self._execute(operation, values)
            for key in ends.get(index, []):
                for built, place in wanted.get(key, []):
                    _copy(_real(built, values), place)
                del values[key]

    def _find_needed(self, live: set[int]) -> tuple[list[int], dict[int, int]]:
        """The operations that give these storages their values, and where each ends.

        Returns:
            Their numbers, in order; and storage -> the last of them that has to do
            with it.
        """
        live = set(live)
        needed: list[int] = []
        last: dict[int, int] = {}
        for index in reversed(range(len(self._operations))):
            operation = self._operations[index]
            if not operation.writes & live:
                continue
            needed.append(index)
            if operation.replaces:
                live -= operation.writes
            live |= operation.reads
            for key in operation.reads | operation.writes:
                last.setdefault(key, index)
        return needed[::-1], last

    def _execute(
        self, operation: _Operation, values: dict[int, torch.UntypedStorage]
    ) -> None:
        """Repeat an operation on the CPU; what it reads and is missing is arbitrary."""
        for tensor in tree_iter((operation.given, operation.named)):
            if _is_meta(tensor) and _key(tensor) not in values:
                size = tensor.untyped_storage().nbytes()
                values[_key(tensor)] = torch.UntypedStorage(size)
        given, named = tree_map_only(
            Tensor, lambda t: _real(t, values), (operation.given, operation.named)
        )
        if "device" in named:
            named = {**named, "device": torch.device("cpu")}
        out = operation.function(*given, **named)
        if not operation.made:
            return
        leaves = [t for t in tree_iter(out) if isinstance(t, Tensor)]
        for recorded, value in zip(operation.made, leaves, strict=True):
            key = _key(recorded)
            if key in values:
                _real(recorded, values).copy_(value)
            else:
                values[key] = _laid_out(recorded, value).untyped_storage()


def _seed_of(*numbers: int) -> int:
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class _OnMeta(TorchFunctionMode):
    """Makes new tensors on the meta device, except those that are given values."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func == _SAYS_META:
            # A library that asks would leave out the values.
            return False
        kwargs = dict(kwargs or {})
        makes = func in _device_constructors() and func not in _OF_VALUES
        if makes and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers of a module itself, by attribute."""
    for own in (module._parameters, module._buffers):
        yield from ((name, value) for name, value in own.items() if value is not None)


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_meta(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "meta"


def _snapshot(tensor: Tensor) -> Tensor:
    """A tensor as it is now: both its values and its storage may be replaced."""
    return tensor.detach() if _is_meta(tensor) else tensor.detach().clone()


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """The arguments of an operation, each with its declaration."""
    for number, declared in enumerate(func._schema.arguments):
        if number < len(args):
            yield declared, args[number]
        elif declared.name in kwargs:
            yield declared, kwargs[declared.name]


def _covers_storage(tensor: Tensor) -> bool:
    return tensor.nbytes == tensor.untyped_storage().nbytes()


def _real(tensor: Tensor, values: dict[int, torch.UntypedStorage]) -> Tensor:
    """The tensor on the CPU in place of one on the meta device."""
    if not tensor.is_meta:
        return tensor
    real = torch.empty(0, dtype=tensor.dtype)
    return real.set_(
        values[_key(tensor)], tensor.storage_offset(), tensor.size(), tensor.stride()
    )


def _laid_out(like: Tensor, value: Tensor) -> Tensor:
    """The value with the strides of another, in memory of its own."""
    plain = _covers_storage(value) and value.storage_offset() == 0
    if plain and value.stride() == like.stride() and not value._is_view():
        return value
    result = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype)
    return result.copy_(value)


def _copy(whole: Tensor, place: Any) -> None:
    """Copy a tensor, or this rank's shard of it, to its place."""
    if hasattr(place, "placements"):
        whole = shard_of(whole, place)
        place = place.to_local()
    place.copy_(whole)


def shard_of(whole: Tensor, sharded: Any) -> Tensor:
    """This rank's part of a tensor, as a DTensor divides it."""
    mesh, here = sharded.device_mesh, sharded.device_mesh.get_coordinate()
    placements = list(enumerate(sharded.placements))
    # FSDP divides what tensor parallelism has left, though its dimension is first.
    late = [placed for placed in placements if "Strided" in type(placed[1]).__name__]
    for dim, placement in [p for p in placements if p not in late] + late[::-1]:
        if (axis := getattr(placement, "dim", None)) is not None:
            parts = whole.chunk(mesh.size(dim), axis)
            empty = whole.narrow(axis, 0, 0)
            whole = parts[here[dim]] if here[dim] < len(parts) else empty
    return whole
