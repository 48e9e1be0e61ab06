"""What a file of the user's own defines, read from its source without running it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rankbench.matrix.catalog import (
    MODEL_DEFAULTS,
    SCRIPT_NEEDS,
    describe_strategy,
    literals,
)
from rankbench.own_files import read_source

# Arguments of a model's `build` that rankbench gives, by what it takes.
SIZES = {
    "images": ("channels", "image_size", "classes"),
    "tokens": ("vocabulary", "context"),
}

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _read_model(_name: str, path: Path) -> dict[str, Any]:
    tree = read_source(path)
    if "build" not in defined_names(tree):
        raise ValueError(
            f"{path}: has no function build(**options) that returns the model"
        )
    declared = literals(path)
    needs = declared.get("NEEDS", {})
    if unknown := needs.keys() - MODEL_DEFAULTS.keys():
        raise ValueError(
            f"{path}: NEEDS: unknown keys {', '.join(sorted(unknown))} "
            f"(known: {', '.join(MODEL_DEFAULTS)})"
        )
    inputs = needs.get("inputs", "images")
    if inputs not in SIZES:
        raise ValueError(f"{path}: NEEDS: inputs: expected images or tokens")
    found, is_open = _read_options(tree, SIZES[inputs])
    options = declared.get("OPTIONS", found)
    # Most models are modules with a forward of their own.
    facts = {**MODEL_DEFAULTS, "sequential": False, **needs}
    return {**facts, "options": options, "open": is_open}


def _read_data(_name: str, path: Path) -> dict[str, Any]:
    declared, defined = literals(path), defined_names(read_source(path))
    if "SHAPE" not in declared:
        raise ValueError(f"{path}: has no SHAPE = {{...}} of literals ({_OF_DATA})")
    if "generate" not in defined:
        raise ValueError(f"{path}: has no function generate ({_OF_DATA})")
    shape = declared["SHAPE"]
    sizes = SIZES["tokens" if "vocabulary" in shape else "images"]
    wanted = (*sizes, "train", "test")
    if missing := [key for key in wanted if type(shape.get(key)) is not int]:
        raise ValueError(
            f"{path}: SHAPE: expected whole numbers for {', '.join(missing)}"
        )
    return {**shape, "prepared": False}


_OF_DATA = "docs/your-own-model.md explains what a data set defines"


def _read_strategy(name: str, path: Path) -> dict[str, Any]:
    read_source(path)
    return describe_strategy(path, name).to_dict()


def _read_script(name: str, path: Path) -> dict[str, Any]:
    read_source(path)
    return {
        **{"name": name, "needs": dict(SCRIPT_NEEDS), "options": {}},
        "approximate": {},
        **{"conditions": [], "phases": []},
    }


# Key of an experiment -> what reads a file that it names: name, path -> facts.
READERS: dict[str, Callable[[str, Path], dict[str, Any]]] = {
    "model": _read_model,
    "data": _read_data,
    "strategy": _read_strategy,
    "script": _read_script,
}


def defined_names(tree: ast.Module) -> set[str]:
    """Names that a file defines or imports at its top level."""
    return {name for node in tree.body for name in _names_of(node)}


def _names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from (one.id for one in node.targets if isinstance(one, ast.Name))


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
    for one, default in zip([*plain, *arguments.kwonlyargs], defaults, strict=True):
        if one.arg not in sizes:
            options[one.arg] = _schema_of(default)
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
