"""What a variant declares, read from its source without running it.

Importing the file would import torch, which takes seconds and may not be installed
where planning runs; a file of the user's own may need packages that only an image has.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankbench.cell import NOT_DEFAULT, SIZES, list_variants
from rankbench.own_files import read_source
from rankbench.schema import check, did_you_mean

PACKAGE = Path(__file__).resolve().parents[1]
STRATEGIES = PACKAGE / "rank/strategies"

# Keys of a strategy's `needs`, with their defaults.
STRATEGY_DEFAULTS: dict[str, Any] = {
    # Number of processes: one, one per device, or one per host (node).
    "ranks": "device",
    # Number of model replicas: one, one per rank, or one per device.
    "replicas": "rank",
    # Number of ranks that share a replica: a number, "all", or options whose product it
    # is: ["pipe", "tensor"].
    "replica_ranks": 1,
    # Name of an option whose value must divide the number of ranks (0: all).
    "group_ranks": None,
    # Names of options whose product is the number of ranks (0: all that is left).
    "axes": [],
    # File in rank/world that joins the processes.
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
    # Of these, those in which a library multiplies, adds or sends in other dtypes than
    # other strategies do; such rows are marked `other-arithmetic`.
    "other_arithmetic": [],
    # Kind of a device -> first version of torch in which it works there.
    "torch": {},
    # Whether it can train blocks that torch.compile has compiled.
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
    # Name of an option whose value must divide the number of samples of a rank.
    "multiple_of": None,
    # Name of an option whose value must divide the number of timed steps.
    "periodic": None,
    # Value of the option `schedule` -> its needs. "microbatches": one_per_rank,
    # one_per_stage (at least so many) or equal_rounds (the same number in each round);
    # "torch": backend -> first version of torch in which the schedule works; "stages":
    # number on each rank, or the option that gives it (1 if there is neither).
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
    # Whether it can be built without values, on torch's meta device. Otherwise each
    # rank holds it whole before it is split; such rows are marked `built-whole`.
    "on_meta": True,
    # Packages that must be installed in addition to torch.
    "packages": [],
    # Whether it sleeps instead of computing; its rows are marked `emulated`.
    "emulated": False,
}

# The model and the data set of a script, which brings its own.
NONE = "none"

# The data set of a script, which brings its own: large enough for every batch.
SCRIPT_DATA: dict[str, Any] = {
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
    # Program that must be installed in addition to torch.
    "program": None,
    "runtimes": ["process_group", "rpc"],
    "backends": ["none", "gloo", "nccl", "tensorpipe"],
    "init_methods": ["env"],
}


# Other declarations of a strategy, which rank/strategies/base.py explains, with their
# defaults.
DECLARED: dict[str, Any] = {
    "options": {},
    "approximate": {},
    "conditions": [],
    "on_meta": False,
}


def literals(path: Path) -> dict[str, Any]:
    """The literal constants of a Python file and of its classes: name -> value.

    Raises:
        ValueError: there is no such file, or it does not compile.
    """
    tree = read_source(path)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found: dict[str, Any] = {}
    for node in [*tree.body, *(node for cls in classes for node in cls.body)]:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                continue  # computed at run time: planning does not need it
            found |= {name.id: value for name in targets if isinstance(name, ast.Name)}
    return found


def describe_strategy(path: Path) -> dict[str, Any]:
    """The declarations of the strategy in a file.

    Raises:
        ValueError: one is missing or wrong; names the file.
    """
    facts = DECLARED | _with_others(path)
    for key in ("needs", "phases"):
        if key not in facts:
            raise ValueError(
                f"{path}: the class has no literal {key!r} (like = 'ddp' takes what is "
                "missing from the strategy ddp)"
            )
    mixed: dict[str, Any] = {"replica_ranks": {}, "splits_batch": {}}
    _check_needs(facts["needs"], STRATEGY_DEFAULTS, f"{path}: needs", **mixed)
    rule = {"type": ["array", "string"], "pattern": f"^{NOT_DEFAULT}$"}
    rules = dict.fromkeys(facts["options"], rule)
    _check_literal(facts["approximate"], f"{path}: approximate", properties=rules)
    needs = {**STRATEGY_DEFAULTS, **facts["needs"]}
    return {"needs": needs, **{key: facts[key] for key in DECLARED}}


def _check_needs(
    given: Any, defaults: Mapping[str, Any], source: str, **others: Any
) -> None:
    """Check needs: a value has the type of its default, or is as `others` says."""
    types = {**_TYPES, list: "array", dict: "object"}
    rules = {
        key: {"type": types[type(default)]} if default is not None else {}
        for key, default in defaults.items()
    }
    _check_literal(given, source, properties=rules | others)


def _check_literal(given: Any, source: str, **schema: Any) -> None:
    """Check a dictionary that a file declares; it has no keys but `properties`."""
    if not isinstance(given, dict):
        raise ValueError(f"{source}: expected a dictionary of literals, got {given!r}")
    schema = {"type": "object", "additionalProperties": False, **schema}
    check(given, schema, source=source)


def _with_others(path: Path) -> dict[str, Any]:
    """The literals of a strategy, together with those of the one that it is like."""
    facts = literals(path)
    for key, rule in (("needs", {}), ("options", {"type": "object"})):
        given = facts.get(key, {})
        _check_literal(
            given, f"{path}: {key}", properties={}, additionalProperties=rule
        )
    for key, kind in (("conditions", list), ("on_meta", bool)):
        if key in facts and not isinstance(facts[key], kind):
            raise ValueError(
                f"{path}: {key}: expected {kind.__name__}, got {facts[key]!r}"
            )
    if (name := facts.get("like")) is None:
        return facts
    known = list_variants(STRATEGIES)
    if name not in known:
        raise ValueError(
            f"{path}: like: {name!r} is not one of {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )
    other = _with_others(STRATEGIES / f"{name}.py")
    joined = {
        "needs": other["needs"] | facts.get("needs", {}),
        "options": other.get("options", {}) | facts.get("options", {}),
        "conditions": [*other.get("conditions", ()), *facts.get("conditions", ())],
    }
    return other | facts | joined


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _read_model(path: Path) -> dict[str, Any]:
    tree = read_source(path)
    if "build" not in defined_names(tree):
        raise ValueError(
            f"{path}: has no function build(**options) that returns the model"
        )
    declared = literals(path)
    needs = declared.get("NEEDS", {})
    one_of = {"enum": [*SIZES]}
    _check_needs(needs, MODEL_DEFAULTS, f"{path}: NEEDS", inputs=one_of)
    inputs = needs.get("inputs", "images")
    options, is_open = _read_options(tree, SIZES[inputs])
    if "OPTIONS" in declared:
        rule = {"type": "object", "required": ["default"]}
        _check_literal(
            declared["OPTIONS"],
            f"{path}: OPTIONS",
            properties=dict.fromkeys([*options, *SIZES[inputs]], rule),
            additionalProperties=rule if is_open else False,
        )
        options, is_open = options | declared["OPTIONS"], False
    # Most models are modules with a forward of their own.
    facts = {**MODEL_DEFAULTS, "sequential": False, **needs}
    return {**facts, "options": options, "open": is_open}


def _read_data(path: Path) -> dict[str, Any]:
    declared, defined = literals(path), defined_names(read_source(path))
    if not isinstance(declared.get("SHAPE"), dict):
        raise ValueError(f"{path}: has no SHAPE = {{...}} of literals ({_OF_DATA})")
    if "generate" not in defined:
        raise ValueError(f"{path}: has no function generate ({_OF_DATA})")
    shape = declared["SHAPE"]
    sizes = SIZES["tokens" if "vocabulary" in shape else "images"]
    wanted = (*sizes, "train", "test")
    rules = {key: {"type": "integer"} for key in (*wanted, "longest_context")}
    _check_literal(shape, f"{path}: SHAPE", properties=rules, required=[*wanted])
    return {**shape, "prepared": False}


_OF_DATA = "docs/your-own-model.md explains what a data set defines"


# Key of an experiment -> what reads a file that it names: path -> facts.
READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "model": _read_model,
    "data": _read_data,
    "strategy": describe_strategy,
    "script": lambda _: {**DECLARED, "needs": dict(SCRIPT_NEEDS)},
}


def defined_names(tree: ast.Module) -> set[str]:
    """Names that a file defines or imports at its top level."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {name.id for name in node.targets if isinstance(name, ast.Name)}
    return names


_DEFINITIONS = (
    *(ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef),
    *(ast.Assign, ast.AnnAssign),
)


def find_module(tree: ast.Module) -> str | None:
    """A class of `nn.Module` in a file that only defines; None if there is none."""
    for node in tree.body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (text or isinstance(node, _DEFINITIONS)):
            return None
    for node in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        bases = [ast.unparse(base) for base in node.bases]
        if any(base.rpartition(".")[2] == "Module" for base in bases):
            return node.name
    return None


def _read_options(
    tree: ast.Module, sizes: Sequence[str]
) -> tuple[dict[str, Any], bool]:
    """Options of `build`, from arguments with literal defaults; whether it takes more.

    An argument without a literal default takes any value, and must be given.
    """
    build = next(
        (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "build"),
        None,
    )
    if build is None:
        return {}, True
    arguments = build.args
    plain = [*arguments.posonlyargs, *arguments.args]
    unset: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults = [*unset, *arguments.defaults, *arguments.kw_defaults]
    options = {}
    for argument, default in zip(
        [*plain, *arguments.kwonlyargs], defaults, strict=True
    ):
        if argument.arg not in sizes:
            options[argument.arg] = _schema_of(default)
    return options, arguments.kwarg is not None


def _schema_of(default: ast.expr | None) -> dict[str, Any]:
    try:
        value = None if default is None else ast.literal_eval(default)
    except ValueError:
        return {}
    kind = _TYPES.get(type(value))
    if kind is None:
        return {} if default is None else {"default": value}
    # 1 is a value of an option whose default is 0.5, and so is 1.5.
    return {"type": kind, "default": value}
