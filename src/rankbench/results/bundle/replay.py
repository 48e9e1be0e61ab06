"""Make from a bundle an experiment that measures the same cells on another machine."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from rankbench.cell import Cell
from rankbench.own_files import files_below
from rankbench.record import Layout, Record, read_json, write_atomically
from rankbench.results.bundle.contents import own_digests, read_records
from rankbench.results.bundle.manifest import MANIFEST
from rankbench.results.compare.sides import Side

# Keys of an experiment whose value may be a Python file of the user's own.
_OWN_KEYS = ("model", "data", "strategy", "script")

_LARGEST = 1024 * 1024  # bytes of an experiment file


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A bundle as an experiment of this machine.

    Attributes:
        name: of the experiment here: that of the bundle, and a digest of it.
        override: the override that the bundle was measured with.
        cells: ids of the cells that have launches in the bundle.
        code: files of their own that the bundle brings: path in the bundle -> path.
        images: name -> SHA-256 of the images that they measured in.
        text: the experiment file.
        moved: id of a cell of a partition that is left out -> its id and hash here.
    """

    name: str
    override: str | None
    cells: Sequence[str]
    code: Mapping[str, Path]
    images: Mapping[str, str | None]
    text: str
    moved: Mapping[str, tuple[str, str]]

    def match(self, theirs: Side, ours: Side) -> Side:
        """Our side, with cells that lost their partition under the ids of theirs."""
        cells = dict(ours.cells)
        for name, (here, digest) in self.moved.items():
            own, known = ours.cells.get(here), theirs.cells[name].hash
            if own and own.hash == digest:
                cells[name] = replace(own, hash=known)
        return replace(ours, cells=cells)


def plan_replay(root: Path, without: Set[str] = frozenset()) -> Replay:
    """Read how the cells of a bundle can be measured again; nothing is written or run.

    Args:
        root: the bundle, unpacked and verified.
        without: keys of its experiment that this site does not have.

    Raises:
        ValueError: its experiment names files that it does not have.
    """
    layout = Layout(root)
    plan = read_json(layout.plan)
    records = read_records(layout, [cell["id"] for cell in plan["cells"]])
    digests = own_digests(plan, records.values())
    code = {
        path.relative_to(root).as_posix(): path
        for digest in digests
        for path in files_below(layout.own(digest)).values()
    }
    experiment = _read_experiment(layout.experiment)
    digest = hashlib.sha256((root / MANIFEST).read_bytes()).hexdigest()[:8]
    name = f"replay-{plan['experiment']['name']}-{digest}"
    changed = _adapt(experiment, without, _find_named(plan)) | {"name": name}
    cells = {entry["id"]: Cell.from_dict(entry["cell"]) for entry in plan["cells"]}
    return Replay(
        name=name,
        override=plan["experiment"].get("override"),
        cells=sorted({folder.split("/")[1] for folder in records}),
        code=code,
        images={
            image["name"]: image["sha256"]
            for record in records.values()
            if (image := record.get("image"))
        },
        text=yaml.safe_dump(changed, sort_keys=False, allow_unicode=True),
        moved={
            name: (
                name.replace(f".partition={cell.partition}", ""),
                replace(cell, partition=None).hash(),
            )
            for name, cell in cells.items()
            if cell.partition and "partition" in without
        },
    )


def write_replay(replay: Replay, folder: Path) -> Path:
    """Write the experiment, and the files that the bundle brings, into a folder.

    Returns:
        The experiment file.
    """
    for name, source in replay.code.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    path = folder / "experiment.yaml"
    write_atomically(path, replay.text.encode())
    return path


def _read_experiment(path: Path) -> dict[str, Any]:
    text = path.read_bytes()
    if len(text) > _LARGEST:
        raise ValueError(f"{path.name} has more than {_LARGEST} bytes")
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError(f"{path.name} has YAML aliases: replay expands none")
        experiment = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        said = str(error).splitlines()[0] if str(error) else "nested too deeply"
        raise ValueError(f"{path.name} is damaged: {said}") from error
    if not isinstance(experiment, dict):
        raise ValueError(f"{path.name} is damaged: expected a mapping")
    return experiment


def _find_named(plan: Record) -> dict[str, set[str]]:
    """Name of a file of their own -> what an experiment beside own/ calls it."""
    found: dict[str, set[str]] = {}
    for entry in plan["cells"]:
        cell = entry["cell"]
        own = (cell.get("own_files") or {}).values()
        for frozen in (*own, cell.get("own_strategy")):
            if frozen is not None:
                folder = Layout(Path()).own(str(frozen["digest"])).as_posix()
                file = PurePosixPath(folder, str(frozen["file"]))
                name, path = file.name, str(file)
                if (module := frozen.get("module")) is not None:
                    depth = module.count(".") + (file.name == "__main__.py")
                    name, path = f"-m {module}", f"-m {file.parents[depth]}/{module}"
                found.setdefault(name, set()).add(path)
    return found


def _adapt(
    value: Any, without: Set[str], named: Mapping[str, set[str]], key: str = ""
) -> Any:
    """The experiment with files of the bundle in place of files of its author.

    Keys that this site does not have are left out, and rules that name them.
    """
    if isinstance(value, dict):
        return {
            name: _adapt(item, without, named, str(name))
            for name, item in value.items()
            if name not in without
        }
    if key in ("exclude", "include", "zip"):
        rules = value if isinstance(value, list) else [value]
        return [_adapt(r, without, named) for r in rules if not without & _keys_of(r)]
    if isinstance(value, list):
        return [_adapt(item, without, named, key) for item in value]
    if key not in _OWN_KEYS or not isinstance(value, str):
        return value
    is_module = key == "script" and value.startswith("-m ")
    if not is_module and not value.endswith(".py"):
        return value
    name = value.removeprefix("-m ").strip().replace("\\", "/").rpartition("/")[2]
    places = sorted(named.get(f"-m {name}" if is_module else name, ()))
    if len(places) != 1:
        many = "no file" if not places else "several files"
        said = f"the bundle has {many} of that name"
        raise ValueError(f"experiment.yaml names {value!r:.60}, and {said}")
    return places[0]


def _keys_of(rule: Any) -> set[str]:
    words = rule if isinstance(rule, dict) else str(rule).split()
    return {str(word).partition("=")[0] for word in words}
