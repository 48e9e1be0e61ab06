"""Files of the user's own: which of them belong together, and their digest.

Standard library only. A file of the user's is read here, but neither imported nor run.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

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
        found |= _find_more(folder, given)
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


def _find_more(folder: Path, given: str) -> Files:
    """The file, or all files of the folder, that `given` names."""
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
