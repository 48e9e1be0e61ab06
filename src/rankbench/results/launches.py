"""One launch as it lies on disk: its record, and its steps on demand."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankbench.record import FAILURES, Record, check_version, read_json

_ALWAYS = ("status", "reason", "wanted", "cell_hash")
_IF_OK = (
    "phases",
    "steps",
    "steps_per_epoch",
    "samples",
    "accuracy",
    "ranks",
    "hosts",
    "software",
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch that ended: its record and the directory that holds it."""

    directory: Path
    record: Record

    @property
    def path(self) -> Path:
        return self.directory / "record.json"

    def read_steps(self, *, warmup: bool = False) -> NDArray[np.float64]:
        """Seconds of the timed window, or of the warm-up: [ranks, steps, phases].

        Raises:
            ValueError: steps.npz is damaged or does not match the record.
        """
        steps, member = ("warmup", "warmup") if warmup else ("steps", "seconds")
        shape = (self.record[steps], len(self.record["phases"]))
        ranks = self._read(member)
        for seconds in ranks:
            if seconds.shape != shape or not np.isfinite(seconds).all():
                raise ValueError(
                    f"{self._steps} is damaged: not {shape[0]} steps of {shape[1]} "
                    f"phases (found {seconds.shape}, "
                    f"finite: {np.isfinite(seconds).all()})"
                )
        return np.stack(ranks)

    def read_losses(self) -> NDArray[np.float64]:
        """Loss of every step, warm-up first: [warmup + steps].

        The mean over the ranks that know it, as on a pipeline the last stage alone
        does. NaN where one of those has none: training that has diverged.

        Raises:
            ValueError: steps.npz is damaged or does not match the record.
        """
        shape = (self.record.get("warmup", 0) + self.record["steps"],)
        ranks = self._read("loss")
        for losses in ranks:
            if losses.shape != shape:
                raise ValueError(
                    f"{self._steps} is damaged: not the loss of {shape[0]} steps "
                    f"(found {losses.shape})"
                )
        known = [losses for losses in ranks if not np.isnan(losses).all()]
        mean = np.mean(known, axis=0) if known else np.full(shape, np.nan)
        return np.asarray(mean)

    @property
    def _steps(self) -> Path:
        return self.directory / "steps.npz"

    def _read(self, member: str) -> list[NDArray[np.float64]]:
        """A member of steps.npz by rank."""
        names = [f"rank{rank['rank']}/{member}" for rank in self.record["ranks"]]
        damage = (OSError, EOFError, ValueError, LookupError, TypeError)
        try:
            with np.load(self._steps, allow_pickle=False) as members:
                return [np.asarray(members[name], dtype=float) for name in names]
        except (*damage, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{self._steps} is damaged: {error}") from error


def read_launch(directory: Path) -> Launch:
    """Read a launch that ended.

    Raises:
        ValueError: its record is damaged or of another schema version.
    """
    path = directory / "record.json"
    record = read_json(path)
    if not isinstance(record, dict):
        raise ValueError(f"{path} is damaged: not a JSON object")
    check_version(record, path)
    needed = (*_ALWAYS, *_IF_OK) if record.get("status") == "ok" else _ALWAYS
    missing = [name for name in needed if name not in record]
    if missing:
        raise ValueError(f"{path} is damaged: it lacks {', '.join(missing)}")
    if record["status"] not in ("ok", *FAILURES):
        raise ValueError(f"{path} is damaged: unknown status {record['status']!r}")
    if record["status"] == "ok" and not _is_whole(record):
        raise ValueError(f"{path} is damaged: its ranks, hosts or software")
    return Launch(directory, record)


def _is_whole(record: Record) -> bool:
    """Whether the nested members that the marks and the notes read are there."""
    try:
        return bool(
            record["ranks"]
            and record["software"]["torch"]
            and all(
                {"host", "cpu", "cores", "memory_gib", "gpus"} <= host.keys()
                for host in record["hosts"]
            )
        )
    except (LookupError, TypeError, AttributeError):
        return False
