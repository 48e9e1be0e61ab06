"""What all rooms share: a topology, a cell, the shape of its processes, and names.

Standard library only: every rank imports this module before it imports torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# Increase it whenever the meaning of a field changes, so that older records become
# stale instead of being misread.
CELL_VERSION = 1

# Packages besides torch that strategies, models and precisions may need.
PACKAGES = ("horovod", "deepspeed", "torchao", "torchvision", "timm", "transformers")

# Arguments of a model's `build` that rankbench gives, by what it takes.
SIZES = {
    "images": ("channels", "image_size", "classes"),
    "tokens": ("vocabulary", "context"),
}

# The image that is chosen by backend and device.
AUTO = "auto"

# Programs that start ranks, and a compiler.
PROGRAMS = ("torchrun", "mpirun", "mpiexec.hydra", "horovodrun", "deepspeed", "c++")

# The strategy that the others are compared with.
REFERENCE = "single"

# What a cell asks Slurm for beside the site's own wishes: it leads to certain hosts, so
# cells that differ in it are not compared, and share no job.
OF_QUEUE = ("partition", "qos", "constraint", "reservation", "switches", "hosts")

# What is trained, and on what kind of device: cells that agree in these fields compete,
# whatever else is swept.
WORKLOAD = (
    *("model", "model_options", "data", "image_size", "channels", "context", "augment"),
    *("optimizer", "own_files", *OF_QUEUE, "device", "cores_per_device"),
)

# How the same training is spread over devices: the efficiency of a cell is relative to
# one on one device that differs in these fields alone.
PLACEMENT = (
    *("strategy", "own_strategy", "options", "backend", "topology", "launcher"),
    *("init_method", "gpudirect", "env", "image", "oversubscribe"),
)

# Cells of one series differ in these fields alone.
OF_PLACE = ("topology", "oversubscribe")

TOPOLOGY = re.compile(r"([1-9]\d*)x([1-9]\d*)")


@dataclass(frozen=True, slots=True)
class Topology:
    """Numbers of hosts and of devices per host, written ``NODESxDEVICES``."""

    nodes: int
    devices_per_node: int

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Read ``"2x4"``.

        Raises:
            ValueError: the text is not two positive numbers joined by ``x``.
        """
        match = TOPOLOGY.fullmatch(text)
        if not match:
            raise ValueError(f"topology {text!r} is not NODESxDEVICES, such as 1x2")
        return cls(int(match[1]), int(match[2]))

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the matrix, with every option resolved.

    The defaults of options are in the schema of an experiment. A field has a default
    here if its hash leaves it out then: so a new field makes no older record stale.

    Attributes:
        learning_rate: a number, or ``{per_sample: number}``: see `at_rate`.
        env: environment variables of its ranks.
        partition, qos, constraint, reservation, switches: of its Slurm job; None is
            what the site says.
        hosts: the host that it is pinned to, by ``hosts: each``; None for any.
        context: number of tokens in a sample; None if the data holds no tokens.
        own_files: ``model`` or ``data`` -> a file of the user's own that defines it:
            its name under ``file``, and under ``digest`` a hash of its content and of
            the local files that it imports.
        own_strategy: the same for the strategy, or for the script; None if it is one of
            rankbench.
        script: for a whole training script, in place of strategy, model and data, the
            templates ``args`` and ``samples_per_step``; else None.
    """

    strategy: str
    options: Mapping[str, Any]
    backend: str
    topology: str
    model: str
    model_options: Mapping[str, Any] = field(default_factory=dict)
    data: str
    image_size: int | None
    channels: int | None
    context: int | None = None
    augment: str
    batch_size: int
    scaling: str
    optimizer: str
    learning_rate: Any
    momentum: float
    weight_decay: float
    precision: str
    channels_last: bool
    cudnn_benchmark: bool = False
    fused_optimizer: bool = False
    clip_gradients: float | None = None
    compile: bool
    checkpointing: Literal["none", "full", "selective"] = "none"
    num_workers: int
    pin_memory: bool
    non_blocking: bool
    launcher: str
    init_method: str
    gpudirect: str | bool
    env: Mapping[str, str] = field(default_factory=dict)
    image: str
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    switches: str | None = None
    hosts: str | None = None
    seed: int
    device: str
    cores_per_device: int
    oversubscribe: bool
    epochs: int | None
    steps: int | None
    warmup: int
    evaluate: bool
    own_files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    own_strategy: Mapping[str, str] | None = None
    script: Mapping[str, str] | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Cell:
        """Make a cell from the result of `to_dict`.

        Raises:
            ValueError: a field is missing or unknown, or is no text and should be.
        """
        missing = {*cls.__slots__} - values.keys() - _DEFAULTS.keys()
        unknown = values.keys() - {*cls.__slots__}
        no_text = [
            name
            for name, kinds in _TEXTS.items()
            if name in values and not isinstance(values[name], kinds)
        ]
        if missing or unknown or no_text:
            raise ValueError(
                f"not a cell of this version: missing {sorted(missing)}, "
                f"unknown {sorted(unknown)}, no text {no_text}"
            )
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def fields(self) -> dict[str, Any]:
        """What filters and people call its values: no value is a mapping.

        Each option and each variable is a field of its own, a rate of a sample is
        `per_sample`, and a file of the user's own is ``own model`` or the like.
        """
        found = self.to_dict()
        for name in _NESTED:
            del found[name]
        if isinstance(self.learning_rate, Mapping):
            found |= found.pop("learning_rate")
        for kind, own in self.own_digests.items():
            found[f"own {kind}"] = f"{own['file']} {own['digest'][:8]}"
        options = name_options(self.strategy, self.options)
        parts = (self.env, found, options, self.model_options, self.script or {})
        return {name: value for part in parts for name, value in part.items()}

    @property
    def settings(self) -> dict[str, Any]:
        """What sets it apart from cells of its strategy, backend and topology.

        Each option and each variable is a setting of its own.
        """
        taken = {*WORKLOAD, *OF_PLACE, *_NESTED, "strategy", "backend"}
        plain = {k: v for k, v in self.to_dict().items() if k not in taken}
        if isinstance(self.learning_rate, Mapping):
            plain |= plain.pop("learning_rate")
        options = name_options(self.strategy, self.options)
        return plain | {**(self.script or {})} | {**self.env} | options

    def workload(self) -> str:
        """A text that is equal for cells that compete."""
        return json.dumps([getattr(self, name) for name in WORKLOAD], sort_keys=True)

    def apart_from(self, free: Sequence[str]) -> str:
        """A text that is equal for cells that differ in these fields alone."""
        fields = {k: v for k, v in self.to_dict().items() if k not in free}
        return json.dumps(fields, sort_keys=True)

    def at_rate(self, global_batch: int) -> Cell:
        """The cell as ranks train it: with a number as learning rate.

        Args:
            global_batch: samples of a step, of all replicas. The linear scaling rule
                (Goyal et al., 2017) multiplies the rate of a sample by it.
        """
        rate = self.learning_rate
        if not isinstance(rate, Mapping):
            return self
        return dataclasses.replace(
            self, learning_rate=rate["per_sample"] * global_batch
        )

    @property
    def size(self) -> Topology:
        """The numbers of hosts and devices of its topology."""
        return Topology.parse(self.topology)

    @property
    def own_digests(self) -> dict[str, Mapping[str, str]]:
        """All files of the user's own: kind of a variant -> its file and digest."""
        own = {} if self.own_strategy is None else {"strategy": self.own_strategy}
        return {**self.own_files, **own}

    @property
    def queue(self) -> dict[str, str]:
        """What its job asks Slurm for, where that is not what the site says."""
        asked = {name: getattr(self, name) for name in OF_QUEUE}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def unit(self) -> str:
        """What throughput counts: tokens of a language model, or else samples."""
        return "samples" if self.context is None else "tokens"

    @property
    def units_per_sample(self) -> int:
        """Number of tokens in a sample; 1 if throughput counts samples."""
        return self.context or 1

    @property
    def file_of_script(self) -> str:
        """The file name of its training script."""
        return (self.own_strategy or {}).get("file", self.strategy)

    @property
    def batch_words(self) -> str:
        """Its batch in words: of each replica, or of all; for a script what it says."""
        if self.script is not None:
            product = self.script["samples_per_step"]
            product = product.replace("batch_size", str(self.batch_size))
            return f"{product} samples a step"
        each = "per device" if self.scaling == "weak" else "in all"
        return f"batch {self.batch_size} {each}"

    @property
    def is_base(self) -> bool:
        """Whether it is one process on one device, the base of speedups."""
        is_reference = self.strategy == REFERENCE or self.script is not None
        return is_reference and self.topology == "1x1"

    def hash(self) -> str:
        """The identity of the cell: a hash of its fields, 16 hexadecimal digits."""
        fields = {
            name: value
            for name, value in self.to_dict().items()
            if name not in _DEFAULTS or value != _DEFAULTS[name]
        }
        text = json.dumps([CELL_VERSION, fields], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


# Field -> its default. Mappings, whose default is {}, have a factory.
_DEFAULTS: dict[str, Any] = {
    entry.name: {} if entry.default is dataclasses.MISSING else entry.default
    for entry in dataclasses.fields(Cell)
    if entry.default is not dataclasses.MISSING
    or entry.default_factory is not dataclasses.MISSING
}

# Fields that are mappings.
_NESTED = ("env", "options", "model_options", "script", "own_files", "own_strategy")

# Fields that are text -> the types that they may have.
_TEXTS = {
    entry.name: (str, type(None)) if entry.type == "str | None" else (str,)
    for entry in dataclasses.fields(Cell)
    if entry.type in ("str", "str | None")
}


def find_bases(cells: Mapping[str, Cell]) -> dict[str, tuple[str | None, str | None]]:
    """The cells on one device that speedup and efficiency of each cell are relative to.

    Speedups of a workload have one base: its first cell of `single`, or of a script, on
    one device. The base of an efficiency trains with the same settings: it is a cell of
    `single`, or of the same script; else the cell's own strategy on one device.

    Args:
        cells: by id, those that come into question, in the order of the plan.

    Returns:
        By id; None where there is no such cell.
    """
    first: dict[str, str] = {}
    singles: dict[tuple[str, str], list[str]] = {}
    own: dict[str, str] = {}

    def training(cell: Cell) -> tuple[str, str]:
        return cell.apart_from(PLACEMENT), cell.strategy if cell.script else ""

    for name, cell in cells.items():
        if cell.topology == "1x1":
            own.setdefault(cell.apart_from(OF_PLACE), name)
            if cell.is_base:
                first.setdefault(cell.workload(), name)
                singles.setdefault(training(cell), []).append(name)

    def choose(name: str, cell: Cell) -> str | None:
        """Of several, the cell itself, or one of its image, variables and launcher."""
        same = ("image", "env", "launcher", "init_method")
        return min(
            singles.get(training(cell), ()),
            key=lambda base: (
                base != name,
                *(getattr(cells[base], key) != getattr(cell, key) for key in same),
            ),
            default=own.get(cell.apart_from(OF_PLACE)),
        )

    return {
        name: (first.get(cell.workload()), choose(name, cell))
        for name, cell in cells.items()
    }


def name_options(strategy: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a strategy, as ids, filters and people call them.

    The axis `context` of the strategy `mesh` is `mesh_context`: a cell has another one.
    """
    return {
        f"{strategy}_{name}" if name in Cell.__slots__ else name: value
        for name, value in options.items()
    }


# In a strategy's `approximate`: every value of the option except its default.
NOT_DEFAULT = "not default"


def is_lossy(
    chosen: Mapping[str, Any],
    approximate: Mapping[str, Sequence[Any] | str],
    options: Mapping[str, Mapping[str, Any]],
) -> bool:
    """Whether an option has a value that changes the arithmetic on purpose.

    Args:
        chosen: option of a cell -> its value.
        approximate: option of the strategy -> lossy values, or `NOT_DEFAULT`.
        options: option of the strategy -> JSON schema with a default.
    """
    return any(
        chosen[option] != options[option]["default"]
        if values == NOT_DEFAULT
        else chosen[option] in values
        for option, values in approximate.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The numbers of processes, devices and samples of a cell.

    Attributes:
        nodes: number of hosts.
        ranks: number of processes on all hosts (the world size).
        ranks_per_node: number of processes on each host.
        devices_per_rank: number of devices that one process drives.
        cores_per_rank: number of CPU cores that one process is pinned to; 0 keeps the
            affinity (for a process that drives GPUs).
        replicas: number of model replicas; each works on its own samples.
        replica_ranks: number of processes that share one replica and load the same
            samples.
        global_batch: number of samples per step over all replicas.
        rank_batch: number of samples per step that one process loads.
    """

    nodes: int
    ranks: int
    ranks_per_node: int
    devices_per_rank: int
    cores_per_rank: int
    replicas: int
    replica_ranks: int
    global_batch: int
    rank_batch: int

    def to_dict(self) -> dict[str, int]:
        return dataclasses.asdict(self)


def find_varying(fields: Sequence[Mapping[str, Any]]) -> set[str]:
    """Names of fields whose value is not the same in all of these cells."""
    names = {name for own in fields for name in own}
    return {n for n in names if any(own.get(n) != fields[0].get(n) for own in fields)}


def spell_value(value: Any) -> str:
    """A value as an experiment file spells it, except for quotes."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


# Settings whose value says what they are.
_SPOKEN = {
    "precision": "{}",
    "launcher": "{}",
    "batch_size": "batch {}",
    "scaling": "{} scaling",
    "per_sample": "learning_rate {} per sample",
}


def spell_setting(name: str, value: Any) -> str:
    """A setting in words: ``bf16``, ``batch 64``, ``bucket_mb=1``; "" if it is off."""
    if name == "compile":
        return "compiled" if value else ""
    return _SPOKEN.get(name, f"{name}={{}}").format(spell_value(value))


_UNSAFE = re.compile(r"[^A-Za-z0-9_.=+,-]")
LONGEST_NAME = 48
# With the name of its experiment before it, and a few characters behind it, an id fits
# into the 255 bytes of a file name.
LONGEST_ID = 190


def safe_name(text: str, longest: int = LONGEST_NAME) -> str:
    """The text, or a name made of it: safe in a path, a shell word and a Snakefile.

    Names are short, and of ASCII characters that mean nothing there. If the name is not
    the text, it ends with a hash of the text, so that no two texts share a name.
    """
    clean = _UNSAFE.sub("-", text)
    # Snakemake takes 20 repetitions at the end of a wildcard for an endless loop.
    is_periodic = any(
        clean.endswith(clean[-size:] * 20) for size in range(1, len(clean) // 20 + 1)
    )
    is_short = clean[:1].isalnum() and len(clean) <= longest
    if clean == text and is_short and not is_periodic:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{clean.lstrip('-.=+,_')[: longest - 9] or 'x'}~{digest}"


def list_variants(folder: Path) -> list[str]:
    """The names of the files in a folder that define a variant, sorted."""
    return sorted({file.stem for file in folder.glob("[!_]*.py")} - _HELPERS)


# Files beside variants that define none.
_HELPERS = {"base", "prepare"}
