"""The catalog of strategies, models, data sets, launchers and images.

Each variant is one file, which declares its needs as literals. The literals are read
from the source: importing the file would import torch, which takes seconds and may not
be installed where planning runs.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rankbench.assets import find_asset
from rankbench.cell import NOT_DEFAULT
from rankbench.matrix.images import load_promises

PACKAGE = Path(__file__).resolve().parents[1]
CONTAINERS = find_asset("containers")
_OURS = "rankbench."

# Keys of a strategy's `needs`, with their defaults.
STRATEGY_DEFAULTS: dict[str, Any] = {
    # Number of processes: one, one per device, or one per host (node).
    "ranks": "device",
    # Number of model replicas: one, one per rank, or one per device.
    "replicas": "rank",
    # Number of ranks that share a replica: a number, "all", or the name of the option
    # that gives it (0: all).
    "replica_ranks": 1,
    # Name of an option whose value must divide the number of ranks (0: all ranks).
    "group_ranks": None,
    # Key in a model's NEEDS (heads); the ranks of a replica must divide its number.
    "divides": None,
    # File in rank/runtimes that joins the processes.
    "runtime": "process_group",
    # Backends that work; empty if the processes do not communicate.
    "backends": [],
    # Backend of every cell if `backends` is empty.
    "own_backend": "none",
    # Launchers that work, the first one for `launcher: auto`; empty for all launchers
    # that support the runtime and the backend.
    "launchers": [],
    # Packages that must be installed in addition to torch.
    "packages": [],
    # Precisions that work.
    "precisions": ["fp32", "tf32", "bf16"],
    # Kind of a device -> first version of torch in which it works there.
    "torch": {},
    # Whether torch.compile of the whole model makes sense.
    "compiles": True,
    # Whether gradients can be clipped by the norm of all of them.
    "clips": True,
    # Kinds of devices that work.
    "device": ["cpu", "cuda"],
    # Least number of devices; largest number of GPUs and of hosts, None for no limit.
    "min_devices": 1,
    "max_cuda_devices": None,
    "max_nodes": None,
    # Whether it splits the model, which must then be a sequence of parts; whether parts
    # may share a weight.
    "sequential": False,
    "shared_weights": True,
    # What is not whole on each device -> how many share it: "ranks"; "replica", the
    # devices of a replica; or the name of the option that gives it (0: all ranks).
    # Keys: blocks (weights of the model's blocks), weights (all of them), gradients,
    # optimizer. A value may depend on an option: {OPTION: {VALUE: SHARE}}.
    "shards": {},
    # Name of an option whose value must divide the number of samples of a rank.
    "multiple_of": None,
    # Value of the option `schedule` -> its needs. "microbatches": one_per_rank (at
    # least one for each rank) or equal_rounds (the same number in each round);
    # "torch": backend -> first version of torch in which the schedule works.
    "schedules": {},
    # Whether a forward sees only a part of its replica's batch: True, False, or the
    # name of an option that splits the batch if its value is above 1.
    "splits_batch": False,
    # On a CPU the devices of a rank are logical; the row is marked `functional`.
    "logical_on_cpu": False,
}

# Keys of a model's NEEDS, with their defaults.
MODEL_DEFAULTS: dict[str, Any] = {
    # What a batch holds: images or tokens.
    "inputs": "images",
    # Least side of an image in pixels; numbers of channels, None for any.
    "min_image_size": 1,
    "channels": None,
    # Whether the model normalises over the batch of a forward.
    "batch_statistics": False,
    # Number of attention heads, which cannot be split; 0 if it has none; or a list of
    # options, of which the first that is not 0 gives it.
    "heads": 0,
    # Pairs of options: the first must be a multiple of the second, if that is not 0.
    "multiples": [],
    # Whether its options are those of `rankbench.decoder`, which knows its size.
    "decoder": False,
    # Name of an option by which parts share a weight.
    "shares": None,
    # Whether it is an nn.Sequential of named parts, which can be split between them.
    "sequential": True,
    # Whether torch.compile works, and whether its parts can be recomputed in backward.
    "compiles": True,
    "checkpoints": True,
    # Packages that must be installed in addition to torch.
    "packages": [],
    # Whether it sleeps instead of computing; its rows are marked `emulated`.
    "emulated": False,
}

# The model and the data set of a script, which brings its own.
NONE = "none"

# What a file of the user's own may leave out. A script's data set is large enough.
DATA_DEFAULTS: dict[str, Any] = {
    **{"channels": 1, "image_size": 1, "classes": 1, "prepared": False},
    **{"train": 2**62, "test": 0},
}

# A script starts its own process group, or joins by Horovod, whatever it likes.
SCRIPT = "script"
SCRIPT_NEEDS: dict[str, Any] = {
    **STRATEGY_DEFAULTS,
    "runtime": SCRIPT,
    "backends": ["gloo", "mpi", "nccl", "ccl"],
}

# Keys of a launcher's NEEDS, with their defaults.
LAUNCHER_DEFAULTS: dict[str, Any] = {
    # The command runs once for each host, rank, or task of a job array.
    "per": "host",
    # Scheduler that the launcher belongs to.
    "scheduler": None,
    # Whether it runs on the first host, and reaches the others by ssh where it can.
    "ssh": False,
    # Program that must be installed in addition to torch.
    "program": None,
    "runtimes": ["process_group", "rpc"],
    "backends": ["none", "gloo", "nccl", "tensorpipe"],
    "init_methods": ["env"],
}


@dataclass(frozen=True)
class StrategyFacts:
    """The declarations of a strategy; rank/strategies/base.py explains them."""

    name: str
    needs: dict[str, Any]
    options: dict[str, Any]
    approximate: dict[str, list[Any] | str]
    conditions: list[dict[str, Any]]
    phases: list[str]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


# Variants in files of the user's own: kind -> name -> declarations.
Own = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Catalog:
    """All variants: name -> declarations."""

    strategies: dict[str, StrategyFacts]
    models: dict[str, dict[str, Any]]
    data: dict[str, dict[str, Any]]
    launchers: dict[str, dict[str, Any]] = field(default_factory=dict)
    images: dict[str, dict[str, Any]] = field(default_factory=dict)

    def names(self, kind: str) -> list[str]:
        """Names of the models, data sets or strategies."""
        of_kind: dict[str, Mapping[str, object]] = {
            "model": self.models,
            "data": self.data,
            "strategy": self.strategies,
        }
        return list(of_kind[kind])

    def with_own(self, own: Mapping[str, Mapping[str, dict[str, Any]]]) -> Catalog:
        """The catalog together with variants of the user's own."""
        strategies = own.get("strategy", {}).items()
        return dataclasses.replace(
            self,
            strategies=self.strategies | {n: StrategyFacts(**f) for n, f in strategies},
            models={**self.models, **own.get("model", {})},
            data={**self.data, **own.get("data", {})},
        )


@cache
def load_catalog(package: Path = PACKAGE, containers: Path = CONTAINERS) -> Catalog:
    """Read the variants from the folders of the package, and the images.

    Raises:
        ValueError: a declaration of a strategy is missing or wrong.
    """
    strategies = {
        path.stem: describe_strategy(path, path.stem)
        for path in _variants(package / "rank" / "strategies")
    }
    models = {}
    for path in _variants(package / "rank" / "models"):
        facts = literals(path)
        options = facts.get("OPTIONS", {})
        models[path.stem] = {
            **MODEL_DEFAULTS,
            **facts["NEEDS"],
            "options": options,
            "presets": facts.get("PRESETS", {}),
        }
    data = {}
    for path in _variants(package / "rank" / "data"):
        facts = literals(path)
        data[path.stem] = {**facts["SHAPE"], "prepared": facts["PREPARED"]}
    launchers = {
        path.stem: {**LAUNCHER_DEFAULTS, **literals(path).get("NEEDS", {})}
        for path in _variants(package / "launch" / "launchers")
    }
    for needs in launchers.values():
        needs["runtimes"] = [*needs["runtimes"], SCRIPT]
    promises = load_promises(containers)
    return Catalog(strategies, models, data, launchers, promises)


def literals(path: Path) -> dict[str, Any]:
    """The literal constants of a Python file and of its classes: name -> value.

    A literal may contain constants that are defined above it. A class inherits the
    constants of its base class, and may unpack them (``{**Ddp.options, "more": ...}``),
    if the base class is in the same folder or in rankbench.
    """
    tree = ast.parse(path.read_text(), filename=str(path))
    beside = _imports_from_folder(tree, path.parent)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found: dict[str, Any] = {}
    for one in classes:
        for base in one.bases:
            if isinstance(base, ast.Name) and base.id in beside:
                found |= literals(beside[base.id])
    for body in [tree.body, *(one.body for one in classes)]:
        for node in body:
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                targets, value = [node.target], node.value
            else:
                continue
            for target in targets:
                if isinstance(target, ast.Name):
                    try:
                        found[target.id] = _evaluate(value, beside, found)
                    except ValueError:
                        continue  # computed at run time: planning does not need it
    return found


def _imports_from_folder(tree: ast.Module, folder: Path) -> dict[str, Path]:
    """Imported name -> file that defines it, in this folder or in rankbench."""
    found: dict[str, Path] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_OURS):
            parts = str(node.module).split(".")
            for file in (folder / f"{parts[-1]}.py", _path_of(parts)):
                if file.exists():
                    found |= {a.asname or a.name: file for a in node.names}
                    break
    return found


def _path_of(parts: list[str]) -> Path:
    """The file of a module of rankbench."""
    return PACKAGE.joinpath(*parts[1:]).with_suffix(".py")


def _evaluate(node: ast.expr, beside: dict[str, Path], known: dict[str, Any]) -> Any:
    """The value of a literal, with constants of this file and of imported classes.

    Raises:
        ValueError: the expression is not a literal.
    """
    if isinstance(node, ast.Dict):
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            one = _evaluate(value, beside, known)
            found |= one if key is None else {ast.literal_eval(key): one}
        return found
    if isinstance(node, ast.List):
        parts = [
            _evaluate(item.value, beside, known)
            if isinstance(item, ast.Starred)
            else [_evaluate(item, beside, known)]
            for item in node.elts
        ]
        return [value for part in parts for value in part]
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in beside
    ):
        return literals(beside[node.value.id])[node.attr]
    return ast.literal_eval(node)


def _variants(folder: Path) -> list[Path]:
    """The files in a folder that define a variant, sorted."""
    helpers = {"base", "prepare", "common"}
    return sorted(
        path
        for path in folder.glob("*.py")
        if not path.stem.startswith("_") and path.stem not in helpers
    )


def describe_strategy(path: Path, name: str) -> StrategyFacts:
    """The declarations of the strategy in a file.

    Raises:
        ValueError: one is missing or wrong; names the file.
    """
    facts = literals(path)
    for key in ("needs", "phases"):
        if key not in facts:
            raise ValueError(f"{path}: the class has no literal {key!r}")
    unknown = facts["needs"].keys() - STRATEGY_DEFAULTS.keys()
    if unknown:
        raise ValueError(f"{path}: unknown needs {sorted(unknown)}")
    _check_approximate(path, facts.get("approximate", {}), facts.get("options", {}))
    return StrategyFacts(
        name=name,
        needs={**STRATEGY_DEFAULTS, **facts["needs"]},
        options=facts.get("options", {}),
        approximate=facts.get("approximate", {}),
        conditions=facts.get("conditions", []),
        phases=["load", "transfer", *facts["phases"]],
    )


def _check_approximate(
    path: Path, approximate: dict[str, Any], options: dict[str, Any]
) -> None:
    strange = approximate.keys() - options.keys()
    if strange:
        raise ValueError(f"{path}: approximate: no such options: {sorted(strange)}")
    for option, values in approximate.items():
        if not isinstance(values, list) and values != NOT_DEFAULT:
            raise ValueError(
                f"{path}: approximate: {option}: expected a list of values, or "
                f"{NOT_DEFAULT!r} for all but the default, not {values!r}"
            )
