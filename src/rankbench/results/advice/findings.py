"""What an answer holds: `answer.json` has these values, under these names.

Estimates are objects of value, low and high; `low` and `high` are null without an
interval. Ids of cells are keys of `names`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rankbench.results.numbers.statistics import Estimate, round_off

if TYPE_CHECKING:
    from rankbench.results.numbers.losses import Loss

ANSWER_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A row beside the best one.

    Attributes:
        ratio: to the best row; None if they have no common rounds.
        verdict: `equal`, `untold`, `few`, `apart` or `less`, as of `choose`.
        launches: of both that would probably settle it; None if nothing is open, or if
            they are too many.
    """

    cell: str
    ratio: Estimate | None
    verdict: str
    launches: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best row by throughput, or by throughput of a device.

    Attributes:
        recommended: the best row, or a simpler one that is equal.
        rivals: all other rows, in descending order.
    """

    cell: str
    recommended: str
    rivals: Sequence[Rival]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """When and where the launches of a workload ran.

    Attributes:
        launches: the fewest and the most of a row that count.
        disturbed: launches that are left out, as far slower than their round explains.
        repeated: launches that another one replaces.
        partial: cell -> launches that are done, and that are wanted; of rows that are
            not measured to the end.
        seconds_left: that the other launches of these will probably take.
    """

    days: Sequence[str]
    launches: Sequence[int]
    disturbed: int
    repeated: int
    hosts: int
    machines: Sequence[str]
    partial: Mapping[str, Sequence[int]]
    seconds_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a row trains: what must be equal for speeds to be all that differs.

    Attributes:
        samples: of a step, of all replicas.
        loss: of the curve, after `Workload.seconds`: median of the launches, the
            lowest and the highest; None if it is not known.
    """

    cell: str
    precision: str
    is_lossy: bool
    samples: int
    loss: Sequence[float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How far a series keeps its efficiency.

    Attributes:
        cells: all sizes, with the base on one device.
        largest: the cell up to which the efficiency is above the wanted one, or None.
        end: the first one that is not, or None.
        is_below: whether that one is below; else it cannot be told.
    """

    series: str
    cells: Sequence[str]
    largest: str | None
    end: str | None
    is_below: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """What weakens rows that the answer rests on."""

    cells: Sequence[str]
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class More:
    """Launches that a cell lacks to settle a question."""

    cell: str
    launches: int
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLaunches:
    """The launches that would probably settle a question, and their cost."""

    settles: str
    cells: Sequence[More]
    device_hours: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The answer for one workload.

    Attributes:
        workload: what is trained.
        unit: of throughput: samples/s or tokens/s.
        device: core or GPU, or device: several cores.
        rows: number of the rows that compete.
        names: cell -> its name in words.
        rates: cell -> its throughput, of the rows that compete, the fastest first.
        base: the cell that speedups are relative to, or None.
        devices, speedups, efficiencies: cell -> its number.
        undecided: why no row is called the best; None if one is.
        same_training: the fastest cell that has the precision and the samples of a step
            of the base, where the recommended row has not; or None.
        seconds: after which the losses of `training` are compared; None without them.
        training: of the recommended row and the base.
        costs: cell -> device-hours of a million samples or tokens, of the recommended
            row and the cheapest.
        untested: a usual rival that the experiment lacks, and how to add it; or None.
        lost: what a step of the recommended row takes longer than with efficiency 1.
        alike: sentences about settings that make no difference here.
    """

    workload: str
    unit: str
    device: str
    rows: int
    names: Mapping[str, str]
    rates: Mapping[str, Estimate]
    measured: Measured
    base: str | None = None
    devices: Mapping[str, int]
    speedups: Mapping[str, Estimate]
    efficiencies: Mapping[str, Estimate]
    undecided: str | None = None
    fastest: Choice | None = None
    cheapest: Choice | None = None
    costs: Mapping[str, Estimate] = field(default_factory=dict)
    same_training: str | None = None
    seconds: float | None = None
    training: Sequence[Training] = ()
    untested: str | None = None
    lost: Loss | None = None
    scaling: Sequence[Scaling] = ()
    trust: Sequence[Doubt] = ()
    alike: Sequence[str] = ()
    next: Sequence[NextLaunches] = ()

    @property
    def is_open(self) -> bool:
        """Whether no row is called the best, or another may be as good."""
        rivals = self.fastest.rivals if self.fastest else ()
        told = ("equal", "less")
        return bool(self.undecided) or any(one.verdict not in told for one in rivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """Rows that have no numbers for one reason."""

    status: str
    reason: str
    first: str
    cells: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a result directory.

    Attributes:
        source: how commands name it: its file, its override, the folder of its site.
        margin: rows that differ by less are equally good, as a share.
        efficiency: a topology is sensible if its efficiency is higher.
        price: of a device-hour, and its currency; or None.
        workloads: by what is trained.
        without_numbers: the other rows, by reason.
    """

    schema: int = ANSWER_VERSION
    experiment: str
    source: Mapping[str, Any]
    margin: float
    efficiency: float
    price: tuple[float, str] | None
    workloads: Sequence[Workload]
    without_numbers: Sequence[Without]


def choose_unit(hours: Estimate) -> tuple[int, str]:
    """Of device time: hours, or seconds if they are few; with the factor to it."""
    return (1, "hours") if hours.value >= 0.1 else (3600, "seconds")


def to_json(value: Any) -> Any:
    """Findings as JSON values."""
    if isinstance(value, Estimate):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        names = (one.name for one in dataclasses.fields(value))
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {name: to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    return round_off(value) if isinstance(value, float) else value
