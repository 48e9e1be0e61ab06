"""What strategies, models, data sets and launchers there are, read from their files.

A variant is a file; what it needs stands in it as plain literals. They are read from
the source, because importing them would import torch, which the planning side neither
has time for nor always has.
"""

from __future__ import annotations

import ast
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

# What a strategy has unless its `needs` says otherwise.
STRATEGY_DEFAULTS: dict[str, Any] = {
    "ranks": "device",  # processes: one | device (one per device) | node (one per host)
    "replicas": "rank",  # model replicas: one | rank | device
    # Ranks that share one replica: a number, all, or the option that says it (0: all).
    "replica_ranks": 1,
    "group_ranks": None,  # the option that must divide the ranks (0: all of them)
    "divides": None,  # the fact of a model that the ranks of a replica must divide
    "runtime": "process_group",  # joins its processes: a file of rank/runtimes
    "backends": [],  # empty: its processes do not communicate
    "own_backend": "none",  # what a cell's backend is where there is no choice
    "launchers": [],  # the only ones that can start it; the first one is its `auto`
    "packages": [],  # what must be installed beside torch
    "precisions": ["fp32", "tf32", "bf16"],
    "compiles": True,  # torch.compile of the whole model does what one expects
    "device": ["cpu", "cuda"],
    "min_devices": 1,
    "max_cuda_devices": None,
    "max_nodes": None,
    "multiple_of": None,  # the option that must divide the samples of a rank
    # By the value of the option `schedule`: what it needs of `microbatches` (at least
    # one_per_rank | equal_rounds of them), and since which torch it runs, by backend.
    "schedules": {},
    # A forward sees a part of its replica's batch: always, or where this option is > 1.
    "splits_batch": False,
    "logical_on_cpu": False,  # its devices on a CPU are a fiction: the row is marked
}

# What a model has unless its `NEEDS` says otherwise.
MODEL_DEFAULTS: dict[str, Any] = {
    "batch_statistics": False,  # it normalises over the batch that a forward sees
    "heads": 0,  # of attention, each of which is whole; 0: it has none
}

# What a launcher has unless its `NEEDS` says otherwise.
LAUNCHER_DEFAULTS: dict[str, Any] = {
    # What its command is run for: each host, each rank, or each task of a job array.
    "per": "host",
    "scheduler": None,  # what it is a part of
    "program": None,  # what must be installed beside torch
    "runtimes": ["process_group", "rpc"],
    "backends": ["none", "gloo", "nccl", "tensorpipe"],
    "init_methods": ["env"],
}


@dataclass(frozen=True)
class StrategyFacts:
    """What the plan must know of a strategy; see rank/strategies/base.py."""

    name: str
    needs: dict[str, Any]
    options: dict[str, Any]
    approximate: dict[str, list[Any] | str]
    conditions: list[dict[str, Any]]
    phases: list[str]


@dataclass(frozen=True)
class Catalog:
    """Every variant by name."""

    strategies: dict[str, StrategyFacts]
    models: dict[str, dict[str, Any]]
    data: dict[str, dict[str, Any]]
    launchers: dict[str, dict[str, Any]] = field(default_factory=dict)
    images: dict[str, dict[str, Any]] = field(default_factory=dict)


@cache
def load_catalog(package: Path = PACKAGE, containers: Path = CONTAINERS) -> Catalog:
    """Read the folders of the package, and the images."""
    strategies = {
        path.stem: _read_strategy(path)
        for path in _variants(package / "rank" / "strategies")
    }
    models = {
        path.stem: {**MODEL_DEFAULTS, **literals(path)["NEEDS"]}
        for path in _variants(package / "rank" / "models")
    }
    data = {}
    for path in _variants(package / "rank" / "data"):
        facts = literals(path)
        data[path.stem] = {**facts["SHAPE"], "prepared": facts["PREPARED"]}
    launchers = {
        path.stem: {**LAUNCHER_DEFAULTS, **literals(path).get("NEEDS", {})}
        for path in _variants(package / "launch" / "launchers")
    }
    promises = load_promises(containers)
    return Catalog(strategies, models, data, launchers, promises)


def literals(path: Path) -> dict[str, Any]:
    """Literal constants of a Python file: its own and those of its classes.

    They may hold constants that stand before them. A class has those of the class that
    it derives from, and may unpack them (``{**Ddp.options, "more": ...}``), where that
    one stands in the same folder.
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
                        continue  # computed at run time: of no interest to the plan
    return found


def _imports_from_folder(tree: ast.Module, folder: Path) -> dict[str, Path]:
    """Imported name -> the file of this folder that it comes from."""
    return {
        alias.asname or alias.name: file
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_OURS)
        for alias in node.names
        if (file := folder / f"{str(node.module).rpartition('.')[2]}.py").exists()
    }


def _evaluate(node: ast.expr, beside: dict[str, Path], known: dict[str, Any]) -> Any:
    """A literal that may hold constants of its file, and of classes beside it.

    Raises:
        ValueError: it is more than that.
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
    """Files that hold a variant: those that define one by what they declare."""
    helpers = {"base", "prepare", "common"}
    return sorted(
        path
        for path in folder.glob("*.py")
        if not path.stem.startswith("_") and path.stem not in helpers
    )


def _read_strategy(path: Path) -> StrategyFacts:
    facts = literals(path)
    for name in ("needs", "phases"):
        if name not in facts:
            raise ValueError(f"{path}: its class has no literal {name!r}")
    unknown = facts["needs"].keys() - STRATEGY_DEFAULTS.keys()
    if unknown:
        raise ValueError(f"{path}: unknown needs {sorted(unknown)}")
    _check_approximate(path, facts.get("approximate", {}), facts.get("options", {}))
    return StrategyFacts(
        name=path.stem,
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
