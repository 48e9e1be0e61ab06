"""Fills in the arguments of a training script, and its number of samples in a step.

Standard library only: planning checks the templates, and launching fills them in.
"""

from __future__ import annotations

import ast
import operator
import shlex
import string
from collections.abc import Callable, Mapping
from typing import Any

from rankbench.cell import Cell

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}

# Fields of a cell that say nothing to a script.
_HIDDEN = {
    *("strategy", "own_strategy", "options", "model", "model_options", "data"),
    *("own_files", "script"),
}


def values_of(cell: Cell) -> dict[str, Any]:
    """Placeholder -> value: the fields of a cell, and the sizes of its topology."""
    size = cell.size
    fields = {k: v for k, v in cell.to_dict().items() if k not in _HIDDEN}
    return fields | {
        "nodes": size.nodes,
        "devices": size.devices,
        "devices_per_node": size.devices_per_node,
    }


def fill_arguments(template: str, values: Mapping[str, Any]) -> list[str]:
    """The arguments of a script: ``--batch-size {batch_size}`` -> two words.

    The template is split into words as a shell does it, before values are filled in.

    Raises:
        ValueError: a quotation mark is missing, or a placeholder is unknown.
    """
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise ValueError(f"args: {error} in {template!r}") from error
    return ["".join(_fill(word, values)) for word in words]


def placeholders(template: str) -> set[str]:
    """Names in braces.

    Raises:
        ValueError: the braces do not match.
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        said = f"{error} in {template!r} (a brace is written twice)"
        raise ValueError(f"args: {said}") from error
    return {name for _, name, _, _ in parts if name is not None}


def _fill(word: str, values: Mapping[str, Any]) -> list[str]:
    unknown = placeholders(word) - values.keys()
    if unknown:
        raise ValueError(
            f"args: unknown placeholder {{{min(unknown)}}} "
            f"(known: {', '.join(sorted(values))})"
        )
    parts = []
    for text, name, form, _ in string.Formatter().parse(word):
        parts.append(text)
        if name is not None:
            parts.append(format(values[name], form or ""))
    return parts


def count_samples(expression: str, values: Mapping[str, Any]) -> int:
    """The samples of a step over all ranks: ``batch_size * devices``.

    Args:
        expression: whole numbers and placeholders without braces, with + - * // and
            parentheses.
        values: from `values_of`.

    Raises:
        ValueError: it is something else, or not at least 1.
    """
    place = f"samples_per_step: {expression!r}"
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{place}: {error.msg}") from error
    found = _evaluate(tree, values, place)
    if found < 1:
        raise ValueError(f"{place} is {found}: expected at least 1")
    return found


def names_in(expression: str) -> set[str]:
    """The placeholders that an expression for `count_samples` names."""
    tree = ast.parse(expression.strip(), mode="eval")
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _evaluate(node: ast.expr, values: Mapping[str, Any], place: str) -> int:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = (_evaluate(n, values, place) for n in (node.left, node.right))
        try:
            return int(_OPERATORS[type(node.op)](left, right))
        except ZeroDivisionError as error:
            raise ValueError(f"{place}: {error}") from error
    found = values.get(node.id) if isinstance(node, ast.Name) else None
    if isinstance(node, ast.Constant):
        found = node.value
    if type(found) is not int:
        numbers = sorted(name for name, value in values.items() if type(value) is int)
        raise ValueError(
            f"{place}: {ast.unparse(node)!r} is no whole number "
            f"(known: {', '.join(numbers)}; with + - * // and parentheses)"
        )
    return found
