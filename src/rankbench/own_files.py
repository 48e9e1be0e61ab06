"""Files of the user's own: what planning and ranks both know of them.

Which of them belong together, and their digest; the arguments of a training script, and
its number of samples in a step; files of token ids. Standard library only. A file of
the user's is read here, but neither imported nor run.
"""

from __future__ import annotations

import ast
import hashlib
import operator
import shlex
import string
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rankbench.cell import Cell

# Name of a file below the folder of the first one -> its path.
Files = dict[str, Path]

SKIPPED = "__pycache__"


def hash_file(path: Path) -> str:
    """SHA-256 of the contents of a file, which may be larger than the memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(files: Mapping[str, Path]) -> str:
    """SHA-256 over the given names and the contents of files, in this order."""
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(f"{name}\0".encode())
        digest.update(bytes.fromhex(hash_file(path)))
    return digest.hexdigest()


def files_below(folder: Path) -> Files:
    """All files below a folder, sorted, without those that Python has compiled."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"), key=lambda path: path.as_posix())
        if path.is_file() and SKIPPED not in path.relative_to(folder).parts
    }


def read_source(path: Path) -> ast.Module:
    """Parse a Python file.

    Raises:
        ValueError: there is no such file, or it does not compile; names file and line.
    """
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ValueError(f"{path}: does not compile{line}: {error}") from error


def find_files(first: Path, more: Sequence[str] = ()) -> Files:
    """A Python file, the local files that it imports, and files that `more` names.

    An import is local if its module lies below the folder of the first file. Imports
    that are computed at run time are not seen.

    Args:
        first: the file.
        more: further files and folders, relative to the folder of the first file.

    Raises:
        ValueError: a file is missing, does not compile, or lies outside of the folder.
    """
    folder = first.parent
    found: Files = {}
    waiting = [first]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(folder).as_posix()
        if name not in found:
            found[name] = path
            waiting += _local_imports(read_source(path), path, folder)
    for given in more:
        found |= files_at(folder, given)
    return {name: found[name] for name in sorted(found)}


def imports_of(files: Mapping[str, Path]) -> set[str]:
    """Packages that these files import when they are loaded, but for local ones.

    An import within a function, or one that may fail (`try`), does not count.
    """
    local = {name.partition("/")[0].removesuffix(".py") for name in files}
    found: set[str] = set()
    for name, path in files.items():
        if name.endswith(".py"):
            for node in read_source(path).body:
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif (
                    isinstance(node, ast.ImportFrom) and node.module and not node.level
                ):
                    found.add(node.module.partition(".")[0])
    return found - local - set(sys.stdlib_module_names)


def files_at(folder: Path, given: str) -> Files:
    """The file, or all files of the folder, that `given` names below a folder."""
    name = PurePosixPath(given)
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"{given}: expected a path below {folder}")
    path = folder / name
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder")
    if path.is_dir():
        return {f"{name}/{below}": file for below, file in files_below(path).items()}
    return {str(name): path}


def _local_imports(tree: ast.Module, path: Path, folder: Path) -> Iterator[Path]:
    """Files below the folder that this file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _resolve(folder, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            base = folder
            if node.level:
                if node.level > len(path.relative_to(folder).parts):
                    continue  # It leads out of the folder, so Python will refuse it.
                base = path.parents[node.level - 1]
            yield from _resolve(base, parts)
            for alias in node.names:
                yield from _resolve(base, [*parts, alias.name])


def _resolve(base: Path, parts: Sequence[str]) -> Iterator[Path]:
    """The file of a module, and those of the packages that contain it."""
    for number in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:number])
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.is_file():
                yield path


# --- the arguments of a training script ----------------------------------------------

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


# --- files of token ids -------------------------------------------------------------
#
# Raw ids one after the other, little-endian, as nanoGPT and Megatron write them:
# without header and gaps.

SUFFIX = ".bin"
# Name of a type of ids -> bytes of an id.
TYPES = {"uint16": 2, "uint32": 4}
# Tokens of a sequence unless the experiment says otherwise, or the file has fewer.
CONTEXT = 1024

# One of so many sequences is held out.
_HELD_OUT = 20


def describe_tokens(
    path: Path, dtype: str, vocabulary: int | None = None
) -> dict[str, int]:
    """The `SHAPE` of a file of token ids, and under `tokens` their number.

    Args:
        path: the file.
        dtype: a key of `TYPES`.
        vocabulary: number of tokens; by default the largest id of the file plus one.

    Raises:
        ValueError: the file has no whole ids, too few, or ids beyond the vocabulary.
    """
    import numpy as np  # only such files need it

    width = TYPES[dtype]
    size = path.stat().st_size
    if size % width:
        raise ValueError(f"{path}: {size} bytes are no whole number of {dtype} ids")
    count = size // width
    # Two sequences of one token, and the token that follows the last.
    if count < 3:
        raise ValueError(f"{path}: {count} ids are too few for two sequences")
    needed = int(np.memmap(path, f"<u{width}", "r").max()) + 1
    if vocabulary is not None and vocabulary < needed:
        raise ValueError(
            f"{path}: vocabulary {vocabulary}, but the file has the id {needed - 1}"
        )
    longest = (count - 1) // 2
    context = min(CONTEXT, longest)
    train, test = count_sequences(count, context)
    return {
        "vocabulary": vocabulary or needed,
        "context": context,
        "longest_context": longest,
        "train": train,
        "test": test,
        "tokens": count,
    }


def count_sequences(tokens: int, context: int) -> tuple[int, int]:
    """Numbers of sequences to train on and held out; the latter end the file."""
    whole = max(0, (tokens - 1) // context)
    held_out = min(whole, max(1, whole // _HELD_OUT))
    return whole - held_out, held_out
