"""Models, data sets, strategies and scripts in files of the user's own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath
from typing import Any

from rankbench.cell import safe_name
from rankbench.matrix.catalog import Catalog, Own
from rankbench.matrix.declarations import (
    MODEL_DEFAULTS,
    NONE,
    READERS,
    SCRIPT_DATA,
    defined_names,
    find_module,
    literals,
)
from rankbench.own_files import (
    SUFFIX,
    TYPES,
    Files,
    describe_tokens,
    find_files,
    hash_files,
    imports_of,
    read_source,
)
from rankbench.schema import check, gather, naming

# Keys of an experiment that may name such a file. A script is a strategy of its own.
KEYS = ("model", "data", "strategy", "script")

# Library -> what holds for all of its models. Many models of images normalise over the
# batch, and only building one would tell.
LIBRARIES: dict[str, dict[str, Any]] = {
    "torchvision": {"channels": [3], "batch_statistics": True},
    "timm": {"batch_statistics": True},
    "transformers": {"inputs": "tokens"},
}
_LIBRARY_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")

# Beginnings of models of torchvision that people call by their names alone.
OF_TORCHVISION = (
    *("resnet34", "resnet152", "resnext", "wide_resnet", "vgg", "densenet", "alexnet"),
    *("googlenet", "inception_v3", "squeezenet1_", "mobilenet_v", "efficientnet_"),
    *("shufflenet_", "regnet_", "convnext_", "swin_", "vit_", "maxvit_"),
)

# The data set that may be a file.
TOKENS = "tokens"
_OF_TOKENS = "tokens: {file: ./ids.bin, dtype: uint16, vocabulary: 50257}"
_TOKENS_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["file", "vocabulary"],
    "properties": {
        "file": {"type": "string"},
        "dtype": {"enum": list(TYPES)},
        "vocabulary": {"type": "integer", "minimum": 2},
    },
}


@dataclass(frozen=True)
class OwnFile:
    """A file of the user's own, with the local files that it imports.

    Attributes:
        key: of the experiment that names it.
        name: what it is called in ids and tables.
        files: name below the folder that holds them -> path.
        facts: what the catalog says of such a variant.
        more: of a file of tokens, how to read it.
    """

    key: str
    name: str
    files: Files
    facts: dict[str, Any]
    path: Path
    digest: str
    more: dict[str, str] = field(default_factory=dict)


@dataclass
class OwnFiles:
    """All files of the user's own in an experiment.

    Attributes:
        files: kind and name -> file.
        libraries: models of libraries, LIBRARY/NAME.
    """

    files: dict[tuple[str, str], OwnFile] = field(default_factory=dict)
    libraries: set[str] = field(default_factory=set)

    def facts(self) -> Own:
        """What the plan keeps of them: kind -> name -> facts."""
        kept: Own = {}
        for (kind, name), file in self.files.items():
            kept.setdefault(kind, {})[name] = file.facts
        for name in sorted(self.libraries):
            kept.setdefault("model", {})[name] = describe_library_model(name)
        if any(file.key == "script" for file in self.files.values()):
            # A script brings its own model and data.
            kept.setdefault("model", {})[NONE] = {**MODEL_DEFAULTS, "options": {}}
            kept.setdefault("data", {})[NONE] = dict(SCRIPT_DATA)
        return kept

    def of_cell(self, kind: str, name: str) -> dict[str, str] | None:
        """The file that a cell uses; None if it is a variant of rankbench."""
        file = self.files.get((kind, name))
        if file is None:
            return None
        (place,) = (place for place, path in file.files.items() if path == file.path)
        return {"file": place, "digest": file.digest, **file.more}


def adopt(
    values: Mapping[str, Any], catalog: Catalog, folder: Path, own: OwnFiles
) -> dict[str, Any]:
    """Read the files that a sweep names; return the sweep with their names.

    Args:
        values: key -> list of its values.
        catalog: the variants of rankbench, whose names are taken.
        folder: the folder that paths are relative to.
        own: the files; those of this sweep are added.

    Raises:
        ValueError: a file is missing, does not compile, lacks what it must define, or
            two files have one name.
    """
    adopted = dict(values)
    with gather() as each:
        for key in KEYS:
            more = values.get("files") or () if key == "script" else ()
            adopted[key] = []
            for entry in values.get(key) or ():
                with each():
                    name = _adopt(key, entry, catalog, folder, own, more)
                    adopted[key].append(name)
    return adopted


def describe_file(path: Path) -> OwnFile:
    """A file outside of an experiment: what it defines says what kind it is.

    Raises:
        ValueError: it is missing or does not compile, or what it defines is wrong.
    """
    tree = read_source(path)
    declared, defined = literals(path), defined_names(tree)
    if "build" in defined:
        key = "model"
    elif "SHAPE" in declared or "generate" in defined:
        key = "data"
    else:
        key = "strategy" if "needs" in declared or "like" in declared else "script"
        if key == "script" and (model := find_module(tree)):
            raise ValueError(
                f"{path}: has the model {model}, but no function build(**options) that "
                "returns it, and nothing that a training script would run"
            )
    return _read(key, _name_of(path.name), path.absolute())


def _adopt(
    key: str,
    entry: Any,
    catalog: Catalog,
    folder: Path,
    own: OwnFiles,
    more: Sequence[str],
) -> Any:
    """The entry with the name of the file in place of its path."""
    given, options = entry, None
    has_options = isinstance(entry, Mapping) and len(entry) == 1
    if has_options:
        ((given, options),) = entry.items()
    if has_options and key == "data":
        return _adopt_tokens(given, options, folder, own)
    if key == "model" and str(given).partition("/")[0] in LIBRARIES:
        describe_library_model(given)
        own.libraries.add(given)
        return entry
    module = key == "script" and isinstance(given, str) and given.startswith(_MODULE)
    if not module and not (isinstance(given, str) and given.endswith(".py")):
        if key == "script":
            raise ValueError(
                f"script: expected a Python file, or -m MODULE, got {given!r}"
            )
        return entry
    start, dotted = None, ""
    if module:
        place, _, dotted = given.removeprefix(_MODULE).strip().rpartition("/")
        start = _absolute(folder, place)
        path = start.joinpath(*dotted.split("."))
        path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    else:
        path = _absolute(folder, given)
    name, kind = _name_of(dotted or given), "strategy" if key == "script" else key
    if name in catalog.names(kind):
        if key != "script":
            raise ValueError(
                f"{key}: {given}: {name} is a {kind} of rankbench: rename the file"
            )
        name = f"own-{name}"
    before = own.files.get((kind, name))
    if before is not None and (before.path != path or before.key != key):
        raise ValueError(f"{key}: {given} and {before.path} are both called {name}")
    if before is None:
        top = _absolute(folder, "") if key == "script" else None
        with naming(key):
            found = _read(key, name, path, more, top=top, start=start)
        own.files[kind, name] = replace(
            found, more={"module": dotted} if module else {}
        )
    return {name: options} if has_options else name


# How a script is named that Python starts as a module: -m [FOLDER/]MODULE.
_MODULE = "-m "


def _absolute(folder: Path, given: str) -> Path:
    return Path(os.path.normpath(folder.absolute() / given))


def _adopt_tokens(given: Any, options: Any, folder: Path, own: OwnFiles) -> str:
    """The name of a file of token ids, which is given as `_OF_TOKENS`."""
    place = "data.tokens"
    if given != TOKENS or not isinstance(options, Mapping):
        raise ValueError(f"data: only {TOKENS} takes options: {{{_OF_TOKENS}}}")
    check(options, _TOKENS_SCHEMA, source=place)
    file, dtype = options["file"], options.get("dtype", "uint16")
    path = (folder / file).absolute()
    if not file.endswith(SUFFIX) or not path.is_file():
        raise ValueError(
            f"{place}: file: expected a file *{SUFFIX} of ids without a header (of "
            f"ids.npy, `numpy.load(...).tofile('ids.bin')`), there is no {path}"
        )
    name = _name_of(file.removesuffix(SUFFIX))
    before = own.files.get(("data", name))
    if before is not None and before.path != path:
        raise ValueError(f"data: {file} and {before.path} are both called {name}")
    facts = describe_tokens(path, dtype, options["vocabulary"])
    more = {"dtype": dtype, "vocabulary": str(facts["vocabulary"])}
    if before is not None and before.more != more:
        raise ValueError(f"{place}: {file} is listed twice, with other options")
    files = {path.name: path}
    own.files["data", name] = before or OwnFile(
        *("data", name, files, {**facts, "prepared": False}, path, hash_files(files)),
        more=more,
    )
    return name


def _name_of(entry: str) -> str:
    """``./models/net.py`` is called ``models-net``; its name is safe in an id."""
    if not entry.isprintable() or "\\" in entry:
        raise ValueError(
            f"{entry!r}: expected a path without control characters and backslashes"
        )
    parts = PurePosixPath(entry).parts
    name = "-".join(part for part in parts if part not in (".", "..", "/"))
    return safe_name(name.removesuffix(".py")).replace("~", "-")


def _read(
    key: str, name: str, path: Path, more: Sequence[str] = (), **where: Path | None
) -> OwnFile:
    """Read a file; `where` has `top` and `start`, as for `find_files`."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    files = find_files(path, more, **where)
    facts = READERS[key](path)
    loaded = find_files(path, (), **where) if more else files
    needed = sorted(imports_of(files, loaded))
    missing = [package for package in needed if not _is_there(package)]
    if missing:
        # A strategy's facts are its needs.
        facts.get("needs", facts)["missing"] = missing
    return OwnFile(key, name, files, facts, path, hash_files(files))


def _is_there(module: str) -> bool:
    """Whether ranks can import a module, which have no PYTHONPATH of the user's."""
    given = set(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = [place for place in sys.path if place and place not in given]
    return module == "rankbench" or bool(
        PathFinder.find_spec(module, path) or module in sys.builtin_module_names
    )


def describe_library_model(entry: str) -> dict[str, Any]:
    """What the catalog says of a model of a library.

    Raises:
        ValueError: the name cannot be one.
    """
    library, _, name = entry.partition("/")
    if not _LIBRARY_MODEL.fullmatch(name):
        raise ValueError(f"model: {entry!r}: expected {library}/NAME")
    return {
        **MODEL_DEFAULTS,
        **LIBRARIES[library],
        "sequential": False,
        "packages": [library],
        "options": {},
        "open": True,
    }
