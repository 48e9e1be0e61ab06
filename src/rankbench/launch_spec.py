"""What one launch is: made by its job, read by supervisor, launcher and ranks.

Standard library only: every rank imports this module before it imports torch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rankbench.cell import Cell, Shape
from rankbench.record import OVERSUBSCRIBED, Below, encode, read_json, write_json

LOOPBACK = "127.0.0.1"

# Ranks of a launch meet at a port of this range, below the one from which the kernel
# chooses (32768 and above).
FIRST_PORT, LAST_PORT = 20000, 31999

# The folder that contains the package.
SOURCE = Path(__file__).resolve().parents[1]

# Purposes of a launch. Those of a gate and of a profile have folders of these names.
MEASURE = "measure"

# The stages of a rank, in order, as numbers and as words.
STARTING, SET_UP, WARM_UP, TRAINING, COLLECTIVES, EVALUATION, THE_END = range(7)
STAGES = (
    *("starting", "set-up", "warm-up", "training"),
    *("collectives", "evaluation", "the end"),
)
# With this begins what a script's rank says that hangs before its first step.
SEEN = "rankbench has seen"
# The entry of a rank in the file of its host below `LaunchSpec.progress`: stage; step;
# the heartbeat that asked for it, or 0; seconds since the rank last moved.
PROGRESS_ENTRY = struct.Struct("<iiqd")


def choose_port(owner: int, serial: int) -> int:
    """Return the port at which the ranks of a launch meet.

    Owners that share a host, and successive launches, use different ports, because an
    earlier launch may still hold its port.

    Args:
        owner: number of the job or process.
        serial: of the launch.
    """
    return FIRST_PORT + (owner * 97 + serial) % (LAST_PORT + 1 - FIRST_PORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Keys of an experiment that supervisor or ranks read.

    A new one is a key of the experiment's schema and a field here: it reaches every
    rank. The values here are for launches without an experiment.

    Attributes:
        time_limit: seconds that the ranks have.
        save_model: ``none``, ``per_rank`` or ``consolidated``.
        collectives: whether to time the strategy's communication operations.
        backend_logs: whether UCX logs how it sends, as NCCL always does.
    """

    time_limit: float = 600.0
    save_model: str = "none"
    collectives: bool = False
    backend_logs: bool = False

    @classmethod
    def choose(cls, values: Mapping[str, Any]) -> LaunchOptions:
        """The options among the keys of an experiment."""
        return cls(**{option.name: values[option.name] for option in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """What one launch is.

    Attributes:
        data_dir: folder of the prepared data sets.
        source: the folder that contains the package rankbench.
        threads: number of CPU threads of a rank.
        heartbeat_grace: seconds without a heartbeat after which ranks end themselves.
        python: the interpreter of the ranks.
        hosts: where they run, that of rank 0 first; empty if that is not known yet.
        port: at which they meet; 0 is a free one, if all ranks are on one host.
        interface: the network interface between hosts; None leaves it to libraries.
        scratch: a folder of this launch's own on each host, TMPDIR of the ranks; None
            leaves them what they find.
        env: variables that the site file sets for every rank.
        binds: paths of the host that an image also sees, read-only.
        image: name, file, recipe and sha256 of the image; None for no image.
        own: kind of a variant -> the user's own file that defines it.
        seeds: those that a gate checks; empty means the seed of the cell.
        purpose: ``measure``, ``gate`` or ``profile``.
        marks: of its row that are known before.
        about: what its record says besides: cell, attempt, round, code.
    """

    directory: Path
    cell: Cell
    shape: Shape
    data_dir: Path
    threads: int
    heartbeat_grace: float
    options: LaunchOptions = LaunchOptions()
    source: Path = SOURCE
    python: str = "python3"
    hosts: tuple[str, ...] = ("localhost",)
    port: int = 0
    interface: str | None = None
    scratch: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[Path, ...] = ()
    image: Mapping[str, Any] | None = None
    own: Mapping[str, Path] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    purpose: str = MEASURE
    marks: list[str] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)

    # Where ranks and supervisor meet; it goes with the launch.
    work = Below("work", "directory")
    # The file that tells each rank what to do.
    file = Below("work/launch.json", "directory")
    # The folder in which ranks write where they are, a file for each host.
    progress = Below("work/progress", "directory")
    heartbeat = Below("work/heartbeat", "directory")
    # An empty folder, the home inside an image: libraries keep caches there.
    home = Below("work/home", "directory")
    hostfile = Below("work/hostfile", "directory")
    # Only its owner can read it.
    secret = Below("work/secret", "directory")

    def log(self, rank: int) -> Path:
        """All output of a rank."""
        return self.directory / f"rank{rank}.log"

    @property
    def is_spread(self) -> bool:
        """Whether there is more than one host."""
        return self.shape.nodes > 1

    @property
    def address(self) -> str:
        """Where the ranks meet."""
        return self.hosts[0] if self.hosts and self.is_spread else LOOPBACK

    @property
    def shares_cores(self) -> bool:
        """Whether several ranks take turns on a core."""
        return OVERSUBSCRIBED in self.marks

    @property
    def own_folders(self) -> dict[str, Path]:
        """Kind of a variant -> the folder of all files of the user's own for it."""
        names = self.cell.own_digests
        depths = {k: own.get("file", "").count("/") for k, own in names.items()}
        return {k: file.parents[depths.get(k, 0)] for k, file in self.own.items()}

    def write(self, file: Path | None = None) -> None:
        """Write the file that ranks read; `file` is where it lies now, if elsewhere."""
        write_json(file or self.file, encode(self), durable=False)

    @classmethod
    def read(cls, file: Path) -> LaunchSpec:
        """Read what `write` wrote."""
        value = read_json(file)
        scratch = value["scratch"]
        typed = {
            "directory": Path(value["directory"]),
            "cell": Cell.from_dict(value["cell"]),
            "shape": Shape(**value["shape"]),
            "data_dir": Path(value["data_dir"]),
            "source": Path(value["source"]),
            "options": LaunchOptions(**value["options"]),
            "hosts": tuple(value["hosts"]),
            "scratch": None if scratch is None else Path(scratch),
            "binds": tuple(map(Path, value["binds"])),
            "own": {kind: Path(file) for kind, file in value["own"].items()},
        }
        return cls(**{**value, **typed})
