"""Files of the user's own: what planning and ranks both know of them.

Which of them belong together, and their digest; the arguments of a training script, and
its number of samples in a step; files of token ids. Standard library only. A file of
the user's is read here, but neither imported nor run.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shlex
import string
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any

from rankbench.cell import Cell

# Name of a file below the folder that holds all of them -> its path.
Files = dict[str, Path]


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a file.

    Attributes:
        name: what was checked.
        well: True, False, or None if it cannot do something that it need not.
        said: what was seen.
        needs: key of NEEDS -> the value that describes the file.
    """

    name: str
    well: bool | None
    said: str
    needs: Mapping[str, Any] = field(default_factory=dict)


SKIPPED = "__pycache__"
# Folders that runs and tools write while files are read.
_WRITTEN = {SKIPPED, "results", "logs", ".snakemake", ".venv", ".git"}


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


# Each launch copies the files, each command hashes them, a bundle holds them.
_MOST_FILES, _MOST_BYTES = 2_000, 256 * 2**20


def find_files(
    first: Path,
    more: Sequence[str] = (),
    *,
    top: Path | None = None,
    start: Path | None = None,
) -> Files:
    """A Python file, the local files that it imports, and files that `more` names.

    An import is local if its module lies in the folder that the file is started in, or
    in one of its parents up to `top`. Imports that are computed at run time are not
    seen. Names begin in the folder that holds all files.

    Args:
        first: the file.
        more: further files and folders, relative to `start`.
        top: the folder that all files lie in; None for that of the first file.
        start: the folder that the file is started in; None for its own.

    Raises:
        ValueError: a file is missing, does not compile, or lies outside of `top`.
    """
    start, top = start or first.parent, top or first.parent
    if not first.is_relative_to(top):
        top = first.parent
    # Where Python looks for modules.
    folders = [start, *(one for one in start.parents if one.is_relative_to(top))]
    found: set[Path] = set()
    packages = (one for one in first.parents if start in one.parents)
    inits = (package / "__init__.py" for package in packages)
    waiting = [first, *(path for path in inits if path.is_file())]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _local_imports(read_source(path), path, folders)
    for given in more:
        found |= set(files_at(start, given, top).values())
    size = sum(path.stat().st_size for path in found)
    if len(found) > _MOST_FILES or size > _MOST_BYTES:
        raise ValueError(
            f"files: {len(found):,} files of {size / 2**20:,.0f} MiB would be copied "
            "for every launch: put data into the project's folder `data`"
        )
    root = Path(os.path.commonpath([start, *(path.parent for path in found)]))
    names = {path.relative_to(root).as_posix(): path for path in found}
    return {name: names[name] for name in sorted(names)}


def imports_of(
    files: Mapping[str, Path], loaded: Mapping[str, Path] | None = None
) -> set[str]:
    """Packages that Python files import when they are loaded, but for local ones.

    An import within a function, or one that may fail (`try`), does not count.

    Args:
        files: all files.
        loaded: those that are loaded, if not all: a folder of data may have programs.
    """
    local = {part.removesuffix(".py") for name in files for part in name.split("/")}
    found: set[str] = set()
    for name, path in (files if loaded is None else loaded).items():
        if name.endswith(".py"):
            for node in read_source(path).body:
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif (
                    isinstance(node, ast.ImportFrom) and node.module and not node.level
                ):
                    found.add(node.module.partition(".")[0])
    return found - local - set(sys.stdlib_module_names)


# How a script joins its ranks by itself.
JOINS = re.compile(
    r"\b(?:init_process_group|init_distributed|init_device_mesh|hvd\.init)\("
    r"""|["'](?:LOCAL_)?(?:RANK|WORLD_SIZE)["']"""
)


def unlisted_files(
    path: Path, files: Mapping[str, Path], words: Sequence[str] = ()
) -> list[str]:
    """What a script may read: files and folders below its own that its files name.

    Its folder `data` is that of the site: it is linked, and not copied.

    Args:
        path: the script.
        files: those that are known: its Python files, and those under `files`.
        words: arguments of the script, which may name some as well.
    """
    found: set[str] = set()
    start = Path(os.path.normpath(path.parent))
    names = [word.rpartition("=")[2] for word in words]
    for source in (file for file in files.values() if file.suffix == ".py"):
        nodes = ast.walk(read_source(source))
        values = [node.value for node in nodes if isinstance(node, ast.Constant)]
        names += [value for value in values if isinstance(value, str)]
    # A longer name is a text.
    for name in (name for name in names if 0 < len(name) < 100 and "\0" not in name):
        place = Path(os.path.normpath(start / name))
        known = place.name in _WRITTEN or place in files.values()
        # A folder with Python files is a package.
        if (
            start in place.parents
            and start / "data" not in (place, *place.parents)
            and place.exists()
            and not (known or any(place.glob("*.py")))
        ):
            found.add(os.path.relpath(place, start))
    return sorted(found)


def files_at(start: Path, given: str, top: Path | None = None) -> Files:
    """The file, or all files of the folder, that `given` names, relative to `start`.

    Links are followed. Folders that a run writes are left out.

    Raises:
        ValueError: there is none, or it lies outside of `top` (default: `start`).
    """
    path = Path(os.path.normpath(start / given))
    if PurePosixPath(given).is_absolute() or not path.is_relative_to(top or start):
        raise ValueError(f"{given}: expected a path below {top or start}")
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder")
    if not path.is_dir():
        return {os.path.relpath(path, start): path}
    found: list[Path] = []
    seen: set[str] = set()
    for folder, below, names in os.walk(path, followlinks=True):
        seen.add(os.path.realpath(folder))
        below[:] = [
            name
            for name in below
            if name not in _WRITTEN
            and os.path.realpath(os.path.join(folder, name)) not in seen
        ]
        found += [Path(folder, name) for name in names]
    return {os.path.relpath(path, start): path for path in found if path.is_file()}


def _local_imports(
    tree: ast.Module, path: Path, folders: Sequence[Path]
) -> Iterator[Path]:
    """Files in these folders, the last of which holds all, that this file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _resolve_first(folders, [alias.name.split(".")])
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            bases: Sequence[Path] = folders
            if node.level:
                bases = list(path.parents)[node.level - 1 : node.level]
                if not bases or not bases[0].is_relative_to(folders[-1]):
                    continue  # It leads out of the folder, so Python will refuse it.
            names = [parts, *([*parts, alias.name] for alias in node.names)]
            yield from _resolve_first(bases, names)


def _resolve_first(
    folders: Iterable[Path], modules: Iterable[Sequence[str]]
) -> list[Path]:
    """The files of modules in the first folder that has one of them."""
    found = ([f for one in modules for f in _resolve(place, one)] for place in folders)
    return next(filter(None, found), [])


def _resolve(base: Path, parts: Sequence[str]) -> Iterator[Path]:
    """The file of a module, and those of the packages that contain it."""
    for number in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:number])
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.is_file():
                yield path


# --- the arguments of a training script ----------------------------------------------

# Fields of a cell that say nothing to a script.
_HIDDEN = {
    *("strategy", "own_strategy", "options", "model", "model_options", "data"),
    *("own_files", "script"),
}


def values_of(cell: Cell, rank: int = 0, local_rank: int = 0) -> dict[str, Any]:
    """Placeholder -> value: fields of a cell, its sizes, and the place of a rank."""
    size = cell.size
    fields = {k: v for k, v in cell.to_dict().items() if k not in _HIDDEN}
    return fields | {
        "nodes": size.nodes,
        "devices": size.devices,
        "devices_per_node": size.devices_per_node,
        "rank": rank,
        "local_rank": local_rank,
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
    filled = []
    for word in words:
        if unknown := placeholders(word) - values.keys():
            near = get_close_matches(min(unknown), values, 1)
            hint = f"known: {', '.join(sorted(values))}"
            if near:
                hint = f"did you mean {{{near[0]}}}?"
            raise ValueError(f"args: unknown placeholder {{{min(unknown)}}} ({hint})")
        try:
            filled.append(word.format_map(values))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            given = ", ".join(f"{n} is {values[n]!r}" for n in placeholders(word))
            raise ValueError(f"args: {word}: {given} ({error})") from error
    return filled


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


def count_samples(product: str, values: Mapping[str, Any]) -> int:
    """The samples of a step over all ranks: ``batch_size * devices``.

    Args:
        product: whole numbers and placeholders without braces, with ``*`` between.
        values: from `values_of`.

    Raises:
        ValueError: a factor is something else, or less than 1.
    """
    found = 1
    for factor in _factors(product):
        value = int(factor) if factor.isdecimal() else values.get(factor)
        if type(value) is not int or value < 1:
            numbers = sorted(n for n, known in values.items() if type(known) is int)
            raise ValueError(
                f"samples_per_step: {product!r}: expected a number, or a product such "
                f"as batch_size * devices; {factor!r} is no whole number above 0 "
                f"(known: {', '.join(numbers)})"
            )
        found *= value
    return found


def names_in(product: str) -> set[str]:
    """The placeholders that a product for `count_samples` names."""
    return {factor for factor in _factors(product) if not factor.isdecimal()}


def _factors(product: str) -> list[str]:
    return [factor.strip() for factor in product.split("*")]


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


def describe_tokens(path: Path, dtype: str, vocabulary: int) -> dict[str, int]:
    """The `SHAPE` of a file of token ids, and under `tokens` their number.

    Args:
        path: the file.
        dtype: a key of `TYPES`.
        vocabulary: number of tokens of the tokenizer.

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
    largest = int(np.memmap(path, f"<u{width}", "r").max())
    if largest >= vocabulary:
        raise ValueError(
            f"{path}: vocabulary {vocabulary}, but the file has the id {largest}: it "
            f"must have no header, and ids of the type {dtype}"
        )
    longest = (count - 1) // 2
    context = min(CONTEXT, longest)
    train, test = count_sequences(count, context)
    return {
        "vocabulary": vocabulary,
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
