"""What one launch is to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankbench.cell import Cell, Shape
from rankbench.launch.hosts.base import Hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one launch is to do.

    Attributes:
        heartbeat_grace: seconds without a heartbeat after which ranks end themselves.
        hosts: where the ranks run.
        purpose: ``measure``, ``gate`` or ``profile``.
        gate: the result of the attempt's gate, for the record.
        image: name, file, recipe and sha256 of the image; None for no image.
        interface: the network interface between hosts; None leaves it to libraries.
        wanted: launches of the attempt; the largest number, if a rule ends them.
        rule: the rule that ends them; None if their number is fixed.
        turn: the launch's place in a round; None if the cell is measured alone.
        serial: differs between launches that follow each other on the same hosts.
        scratch: a folder of this launch's own on each host, TMPDIR of the ranks; None
            leaves them what they find.
        env: variables that the site file sets for every rank.
        binds: paths of the host that an image also sees, read-only.
        own: kind of a variant -> the user's own file that defines it.
    """

    experiment: str
    cell_id: str
    cell_hash: str
    cell: Cell
    shape: Shape
    phases: list[str]
    marks: list[str]
    attempt: int
    number: int
    wanted: int
    directory: Path
    data_dir: Path
    time_limit: float
    threads: int
    backend_logs: bool
    save_model: str
    collectives: bool
    heartbeat_grace: float
    hosts: Hosts
    code: Mapping[str, Any]
    purpose: str = "measure"
    gate: Mapping[str, Any] | None = None
    image: Mapping[str, Any] | None = None
    interface: str | None = None
    rule: Mapping[str, Any] | None = None
    turn: Mapping[str, Any] | None = None
    serial: int = 0
    scratch: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    binds: Sequence[Path] = ()
    own: Mapping[str, Path] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        """Where ranks and supervisor meet; it goes with the launch."""
        return self.directory / "work"
