"""Files of a result directory, checked before they are used: plans, records, steps.

They may come in a bundle of unknown origin: nothing in them is trusted. What passes
here needs no check behind.
"""

from __future__ import annotations

import functools
import io
import itertools
import re
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import fastjsonschema
import numpy as np
from numpy.typing import NDArray

from rankbench.record import (
    LONGEST_JSON,
    RECORD_VERSION,
    Record,
    complete,
    first_line,
    numbered,
    read_versioned,
)
from rankbench.schema import compile_schema, load_schema

# Bytes, by kind.
_LONGEST = {"record": 4 * 1024**2}
_SHOWN = 60  # Number of characters that are shown of a refused value.
_HEADER = 128  # Of an array, as numpy pads it.

# A rank never writes values beyond these.
_LONGEST_STEP = 1e9  # seconds
_LARGEST_LOSS = 1e40  # of float32


class Steps(NamedTuple):
    """The contents of steps.npz.

    Attributes:
        warmup: seconds, [ranks, steps, phases].
        timed: seconds of the timed window, [ranks, steps, phases].
        losses: of every step, warm-up first: [warmup + steps].
    """

    warmup: NDArray[np.float64]
    timed: NDArray[np.float64]
    losses: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch that ended: its record and the directory that holds it."""

    directory: Path
    record: Record

    @property
    def path(self) -> Path:
        return self.directory / "record.json"

    @property
    def number(self) -> int:
        return int(self.directory.name)

    def read_steps(self) -> Steps:
        """Read the times of all ranks, and the losses.

        Raises:
            ValueError: steps.npz is damaged or does not match the record.
        """
        warmup, count = self.record["warmup"], self.record["steps"]
        phases = len(self.record["phases"])
        shapes: dict[str, tuple[int, ...]] = {
            "warmup": (warmup, phases),
            "seconds": (count, phases),
            "loss": (warmup + count,),
        }
        path = self.directory / "steps.npz"
        try:
            with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
                found = {
                    name: self._read(archive, name, shape)
                    for name, shape in shapes.items()
                }
        except Exception as error:
            # Damage may be in the directory of the zip, in the header of an array, or
            # in a checksum. Each raises exceptions of its own.
            reason = first_line(str(error)) or type(error).__name__
            raise ValueError(f"{path} is damaged: {reason}") from error
        # In a pipeline, the last stage alone knows the loss. NaN if one of the ranks
        # that know it has no number: training has diverged.
        known = [losses for losses in found["loss"] if not np.isnan(losses).all()]
        mean = np.asarray(np.mean(known or found["loss"], axis=0))
        return Steps(found["warmup"], found["seconds"], mean)

    def _read(
        self, archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]
    ) -> NDArray[np.float64]:
        """An array of each rank: [ranks, *shape]."""
        ranks = [f"rank{rank['rank']}/{name}.npy" for rank in self.record["ranks"]]
        array = np.stack([_read_array(archive, rank, shape) for rank in ranks])
        if name == "loss":
            if (np.isfinite(array) & (np.abs(array) > _LARGEST_LOSS)).any():
                raise ValueError("losses beyond all float32")
        # NaN is neither smaller nor larger.
        elif not ((array >= 0) & (array <= _LONGEST_STEP)).all():
            raise ValueError(f"{name} that are no times")
        return array


def _read_array(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """An array of floats of this shape.

    Raises:
        ValueError: another shape or type, such as pickled objects.
    """
    info = archive.getinfo(name)
    # Ranks do not compress arrays, so reading never gives more bytes than the file has.
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    data = archive.read(info)
    form, begin = _read_header(data[:_HEADER])
    if form not in ((shape, False, np.float32), (shape, False, np.float64)):
        raise ValueError(f"{name} has {form}, not floats of shape {shape}")
    return np.frombuffer(data, form[2], offset=begin).reshape(shape).astype(float)


@functools.lru_cache
def _read_header(begin: bytes) -> tuple[tuple[tuple[int, ...], bool, Any], int]:
    """Shape, order and type of an array, and where its values begin in its file.

    Most arrays of an experiment begin alike, and numpy needs longer for a header than
    for the values.
    """
    file = io.BytesIO(begin)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array of another version")
    return np.lib.format.read_array_header_1_0(file), file.tell()


def read_launches(
    attempt: Path, *, measured: bool = True, damaged: list[ValueError] | None = None
) -> list[Launch]:
    """The launches in a folder that have ended, by number.

    Args:
        attempt: the folder.
        measured: whether they belong to a cell, and not to its gate or profile.
        damaged: receives what is wrong with damaged records, which are then left out.

    Raises:
        ValueError: a record is damaged or of another schema version, and `damaged` is
            None.
    """
    launches: list[Launch] = []
    for number in numbered(attempt):
        place = attempt / str(number)
        if (place / "record.json").exists():
            try:
                launch = read_launch(place, measured=measured)
                if measured:
                    _check_place(launch)
            except ValueError as error:
                if damaged is None:
                    raise
                damaged.append(error)
                continue
            last = launches[-1].record if launches else {}
            launches.append(Launch(place, _share(launch.record, last)))
    return launches


def _check_place(launch: Launch) -> None:
    """Check that a record lies where its launch was.

    Raises:
        ValueError: it is of another launch; the message names it.
    """
    record = launch.record
    *_, cell, attempt, number = launch.directory.parts
    place = {"cell_id": cell, "attempt": int(attempt), "launch": int(number)}
    for key, value in place.items():
        if record.get(key, value) != value:
            said = f"{key} is {record[key]!r:.200}, so it is of another launch"
            raise ValueError(f"{launch.path} is damaged: {said}")


def _share(new: Any, old: Any) -> Any:
    """The value, with equal parts of another record: ten thousand take half the memory.

    Launches of one cell differ in few parts.
    """
    if new == old and type(new) is type(old):
        return old
    if isinstance(new, dict):
        beside = old if isinstance(old, dict) else {}
        return {
            sys.intern(key): value
            if isinstance(value, float)
            else _share(value, beside.get(key))
            for key, value in new.items()
        }
    if isinstance(new, list):
        others = old if isinstance(old, list) else []
        pairs = itertools.zip_longest(new, others[: len(new)])
        return [_share(*both) for both in pairs]
    return sys.intern(new) if isinstance(new, str) else new


def read_launch(directory: Path, *, measured: bool = True) -> Launch:
    """Read a launch that ended.

    Raises:
        ValueError: its record is damaged or of another schema version.
    """
    path = directory / "record.json"
    record = read_checked(path, "record", version=RECORD_VERSION)
    if measured:
        # Beside those that the schema requires.
        needed = ["wanted", "cell_hash", *["ranks"] * (record["status"] == "ok")]
        if missing := [name for name in needed if name not in record]:
            raise ValueError(f"{path} is damaged: it lacks {', '.join(missing)}")
    return Launch(directory, complete(record))


# --- schemas --------------------------------------------------------------------------


def read_checked(path: Path, kind: str, *, version: int) -> Record:
    """Read a JSON file and check it against ``workflow/schemas/KIND.schema.yaml``.

    Args:
        path: the file.
        kind: `plan`, `record` or `history`.
        version: of its schema.

    Raises:
        ValueError: it is damaged or of another version. The message names the file, the
            key and what was expected.
    """
    longest = _LONGEST.get(kind, LONGEST_JSON)
    value = read_versioned(path, kind, version, longest=longest)
    check(value, kind, path)
    return value


def check(value: Any, kind: str, path: Path) -> None:
    """Check a value against ``workflow/schemas/KIND.schema.yaml``.

    Raises:
        ValueError: it does not match; the message names the path.
    """
    try:
        _checker(kind)(value)
    except fastjsonschema.JsonSchemaValueException as error:
        # ``ranks[0].window_s must be number (found 'fast')``
        said = re.sub(r"^data\.?", "", error.message).strip()
        if error.rule not in ("required", "dependencies"):
            # The beginning of the value, without characters that a terminal obeys.
            text = repr(error.value)
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
            said += f" (found {shown})"
        raise ValueError(f"{path} is damaged: {said}") from None


@functools.cache
def _checker(kind: str) -> Callable[[Any], Any]:
    # Aliases in place of `$ref`: compiled checks format their position at every
    # reference, which takes longer than the check itself.
    return compile_schema(load_schema(kind), all_errors=False)
