"""Make from a bundle an experiment that measures the same cells on another machine."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from rankbench.cell import Cell, safe_name
from rankbench.own_files import SUFFIX as TOKENS_SUFFIX
from rankbench.own_files import files_below
from rankbench.plan import PlannedCell
from rankbench.record import Layout, Record, read_json, write_atomically
from rankbench.results.bundle.contents import own_digests, own_files, read_records
from rankbench.results.bundle.disguise import PUBLIC
from rankbench.results.bundle.signatures import SUMS
from rankbench.results.compare.sides import Side
from rankbench.schema import dump_yaml, parse_yaml

# Keys of an experiment whose value may be a file of the user's own.
_OWN_KEYS = ("model", "data", "strategy", "script", "file")

# Keys that say what is started while an experiment is planned.
_NOT_TAKEN = {"images"}

_LONGEST_NAME = 64
_LARGEST = 1024 * 1024  # bytes of an experiment file


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A bundle as an experiment of this machine.

    Attributes:
        name: of the experiment here: that of the bundle, and a digest of it.
        override: the override that the bundle was measured with.
        cells: ids of the cells that have launches in the bundle.
        planned: id -> cell of its plan; nothing else is measured.
        code: files of their own that the bundle brings, and variables `NAME=value`
            that its cells set and that may load or run code.
        files: path below the new experiment's folder -> file of the bundle.
        images: name -> SHA-256 of the images that they measured in.
        text: the experiment file.
        moved: id of a cell of a partition that is left out -> its id and hash here.
    """

    name: str
    override: str | None
    cells: Sequence[str]
    planned: Mapping[str, Cell]
    code: Sequence[str]
    files: Mapping[str, Path]
    images: Mapping[str, str | None]
    text: str
    moved: Mapping[str, tuple[str, str]]

    def refuse_others(self, here: Iterable[PlannedCell]) -> None:
        """Check that all cells that would be measured here are cells of the bundle.

        Raises:
            ValueError: one is not; the message names it, and what differs.
        """
        known = {cell.hash() for cell in self.planned.values()}
        known |= {digest for _, digest in self.moved.values()}
        for own in here:
            if own.hash not in known:
                said = "is no cell of the bundle's plan"
                if theirs := self.planned.get(own.id):
                    ours = own.cell.to_dict()
                    told = [
                        f"{key} {value!r} there, {ours[key]!r} here"
                        for key, value in theirs.to_dict().items()
                        if value != ours[key]
                    ]
                    said = f"is another cell here: {', '.join(told)}"
                raise ValueError(
                    f"experiment.yaml: {own.id} {said}: it is not measured"
                )

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
    code = [
        path.relative_to(root).as_posix()
        for digest in own_digests(plan, records.values())
        for path in files_below(layout.own(digest)).values()
    ]
    experiment = _read_experiment(layout.experiment)
    digest = hashlib.sha256((root / SUMS).read_bytes()).hexdigest()[:8]
    name = safe_name(f"replay-{plan['experiment']['name']}-{digest}", _LONGEST_NAME)
    without = without | _NOT_TAKEN
    adapter = _Adapter(plan, layout, without)
    changed = adapter.adapt(experiment) | {"name": name}
    cells = {entry["id"]: Cell.from_dict(entry["cell"]) for entry in plan["cells"]}
    moved = {
        name: (
            name.replace(f".partition={cell.partition}", ""),
            replace(cell, partition=None).hash(),
        )
        for name, cell in cells.items()
        if cell.partition and "partition" in without
    }
    variables = {
        f"{variable}={value}"
        for cell in cells.values()
        for variable, value in cell.env.items()
        if not variable.startswith(PUBLIC)
    }
    return Replay(
        name=name,
        override=plan["experiment"].get("override"),
        cells=sorted({folder.split("/")[1] for folder in records}),
        planned=cells,
        code=[*code, *sorted(variables)],
        files=adapter.files,
        images={
            image["name"]: image["sha256"]
            for record in records.values()
            if (image := record["image"])
        },
        text=dump_yaml(changed),
        moved=moved,
    )


def write_replay(replay: Replay, folder: Path) -> Path:
    """Write the experiment, and the files that the bundle brings, into a folder.

    Returns:
        The experiment file.
    """
    for name, source in replay.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    path = folder / "experiment.yaml"
    write_atomically(path, replay.text.encode())
    return path


def _read_experiment(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    if len(data) > _LARGEST:
        raise ValueError(f"{path.name} has more than {_LARGEST} bytes")
    experiment = parse_yaml(data.decode(errors="replace"), path.name, aliases=False)
    if not isinstance(experiment, dict):
        raise ValueError(f"{path.name} is damaged: expected a mapping")
    return experiment


class _Adapter:
    """Puts files of a bundle in place of files of its author, into an experiment.

    Attributes:
        files: path below the new experiment's folder -> file of the bundle.
    """

    def __init__(self, plan: Record, layout: Layout, without: Set[str]) -> None:
        self._layout, self._without = layout, without
        self.files: dict[str, Path] = {}
        # Name of a file or module -> what the plan says of it.
        self._named: dict[str, list[Mapping[str, str]]] = {}
        for frozen in own_files(plan["cells"]):
            name = PurePosixPath(frozen["file"]).name
            if "module" in frozen:
                name = f"-m {frozen['module']}"
            known = self._named.setdefault(name, [])
            if frozen not in known:
                known.append(frozen)

    def adapt(self, value: Any, key: str = "") -> Any:
        """A value of the experiment, without keys that are not taken, and their rules.

        Raises:
            ValueError: it names a file that the bundle does not have.
        """
        if isinstance(value, dict):
            # The name of a file with options is a key.
            own = key in _OWN_KEYS
            return {
                self.adapt(n, key) if own else n: self.adapt(item, "" if own else n)
                for n, item in value.items()
                if n not in self._without
            }
        if key == "exclude":
            rules = map(str, value if isinstance(value, list) else [value])
            return [rule for rule in rules if not self._without & _keys_of(rule)]
        if isinstance(value, list):
            return [self.adapt(item, key) for item in value]
        if key not in _OWN_KEYS or not isinstance(value, str):
            return value
        is_module = key == "script" and value.startswith("-m ")
        if not is_module and not value.endswith((".py", TOKENS_SUFFIX)):
            return value
        return self._place(value.removeprefix("-m ").strip(), is_module)

    def _place(self, given: str, is_module: bool) -> str:
        """What the new experiment calls a file. Its name is a part of ids of cells."""
        parts = [p for p in PurePosixPath(given).parts if p not in (".", "..", "/")]
        name = f"-m {parts[-1]}" if is_module else parts[-1]
        known = self._named.get(name, [])
        if len(known) != 1:
            many = "no file" if not known else "several files"
            said = f"the bundle has {many} of that name"
            raise ValueError(f"experiment.yaml names {given!r:.60}, and {said}")
        (frozen,) = known
        folder = self._layout.own(frozen["digest"])
        file = PurePosixPath(frozen["file"])
        above, given = parts[: -len(file.parts)], "/".join(parts)
        if is_module:
            depth = frozen["module"].count(".") + (file.name == "__main__.py")
            place = PurePosixPath("own", folder.name, file.parents[depth])
            above, given = ["own", folder.name], f"-m {place}/{frozen['module']}"
        for below, path in files_below(folder).items():
            target = PurePosixPath(*above, below).as_posix()
            if self.files.setdefault(target, path) != path:
                raise ValueError(f"experiment.yaml names two files {target!r:.60}")
        return given


def _keys_of(rule: str) -> set[str]:
    return {word.partition("=")[0] for word in rule.split()}
