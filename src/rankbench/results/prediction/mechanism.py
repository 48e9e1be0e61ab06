"""Predict the step of a series from what its steps are made of.

A model of a series is fitted to its measured scales and then gives the seconds of a
step of any other shape. Each says in `find_model` what it needs.

In a pipeline, stage s can run a micro-batch forward when the stage before has sent it,
and backward when the stage behind has (Huang and others, GPipe, NeurIPS 2019). Under
1F1B a stage begins with as many forwards as there are stages behind it and itself, and
then takes turns (Narayanan and others, PipeDream, SOSP 2019).

An operation has an alpha-beta model: a call takes a latency for each step of the
algorithm, and the time of its bytes. In a ring of P ranks, an all-reduce has 2 (P - 1)
steps and each rank sends 2 (P - 1) / P of the bytes; a reduce-scatter or an all-gather
has half of both. Along a binomial tree, a broadcast has ceil(log2 P) steps, and its
bytes pass the root's link as often (Thakur, Rabenseifner and Gropp, Optimization of
Collective Communication Operations in MPICH, IJHPCA 19, 2005). Two trees at once do an
all-reduce in 2 log2 P steps with the volume of a ring (Sanders, Speck and Traeff, Two-
tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing 35,
2009). Of several algorithms the one counts that fits best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from rankbench.cell import Shape
from rankbench.decoder import split_evenly
from rankbench.record import Record
from rankbench.results.numbers.launches import EXCHANGE
from rankbench.results.numbers.losses import Sweep, find_sweeps
from rankbench.results.numbers.result_set import Summary
from rankbench.results.numbers.statistics import Estimate, geometric_mean
from rankbench.results.read.records import Launch

# Without recorded buckets, gradients count as becoming ready in so many equal parts.
_PARTS = 8

# Communication within training takes between so much and so much of a sweep's time.
_LEAST, _MOST = 1e-3, 1e3

_SCHEDULES = ("gpipe", "1f1b")

# Of so many steps of a launch, at most, the ranks are compared.
_STEPS = 200

# Of bytes that are sent together: seconds from the start of the computation that hides
# communication until they are ready, and of their communication by itself.
Bucket = tuple[float, float]


# --- how long an operation takes on more ranks than it was measured on ---------------


# Of an algorithm, as functions of the number of ranks: how many messages follow each
# other, and how often the bytes pass the slowest link.
Shares = tuple[Callable[[int], float], Callable[[int], float]]

_HALF_RING: Shares = (lambda p: p - 1, lambda p: (p - 1) / p)
_ALGORITHMS: Mapping[str, Sequence[Shares]] = {
    "all_reduce": (
        (lambda p: 2 * (p - 1), lambda p: 2 * (p - 1) / p),
        (lambda p: 2 * math.log2(p), lambda p: 2 * (p - 1) / p),
    ),
    "reduce_scatter": (_HALF_RING,),
    "all_gather": (_HALF_RING,),
    "broadcast": (
        (lambda p: math.ceil(math.log2(p)), lambda p: math.ceil(math.log2(p))),
        (lambda p: p - 1, lambda p: 1.0),
    ),
    "send_recv": ((lambda p: 1.0, lambda p: 1.0),),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """The fitted model of one operation.

    Attributes:
        shares: of its algorithm.
        alpha: seconds of a step.
        beta: seconds of a byte on the slowest link.
        rest: bytes, ascending -> log of measured over fitted time, median over the
            measured numbers of ranks: what the two numbers do not describe.
    """

    shares: Shares
    alpha: float
    beta: float
    rest: Mapping[float, float]

    def seconds(self, size: float, ranks: int) -> float:
        """Of a call; 0 on a single rank."""
        if ranks < 2 or size <= 0:
            return 0.0
        steps, volume = self.shares
        fitted = self.alpha * steps(ranks) + self.beta * volume(ranks) * size
        known = np.log2(list(self.rest))
        rest = np.interp(math.log2(size), known, list(self.rest.values()))
        return float(fitted * math.exp(rest))


def fit_network(sweeps: Sequence[Sweep]) -> dict[str, Operation]:
    """Fit each operation that has a known algorithm."""
    found = {}
    for name in dict.fromkeys(sweep.operation for sweep in sweeps):
        own = [sweep for sweep in sweeps if sweep.operation == name]
        fitted = [_fit(shares, own) for shares in _ALGORITHMS.get(name, ())]
        if fitted:
            _, found[name] = min(fitted, key=lambda one: one[0])
    return found


def _fit(shares: Shares, sweeps: Sequence[Sweep]) -> tuple[float, Operation]:
    """The sum of squared relative errors, and the fitted model."""
    # Relative errors count, so that small calls matter as much as large ones.
    steps, volume = shares
    points = [(sweep.ranks, point) for sweep in sweeps for point in sweep.points]
    terms = [(steps(ranks), volume(ranks) * point.size) for ranks, point in points]
    known = np.array(terms) / np.array([[p.us.value / 1e6] for _, p in points])
    (alpha, beta), error = optimize.nnls(known, np.ones(len(points)))
    rest: dict[float, list[float]] = {}
    for (_, point), fitted in zip(points, known @ (alpha, beta), strict=True):
        rest.setdefault(point.size, []).append(-math.log(fitted))
    medians = {size: float(np.median(rest[size])) for size in sorted(rest)}
    return float(error), Operation(shares, float(alpha), float(beta), medians)


# --- what was measured at one scale of a series --------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """A pipeline that has recorded its stages.

    Attributes:
        forward, backward: seconds of a micro-batch, all stages together.
        update: seconds of the optimizer on the slowest rank.
        costs: of each part of the model, in any unit, as the split weighed them.
        counts: parts of each stage.
    """

    schedule: str
    microbatches: int
    forward: float
    backward: float
    update: float
    costs: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A row of a series. Times are in seconds, medians over launches.

    Attributes:
        shape: its ranks, devices and samples.
        throughput: samples/s, also of language models.
        work: of a typical rank in a step, without waiting for others.
        exposed: communication that no computation hides.
        is_separate: whether `work` is free of communication.
        has_exchange: whether there is a phase for exposed communication.
        window: the part of the step that may hide communication.
        late: what the ranks need more or less than a typical rank, of each step.
        operations: communication operation -> how many times it moves the weights in a
            step; empty if that is not known.
        weights: bytes of the model.
        buckets: bytes of what DDP sends together, and its seconds since the start of
            backward; empty if not recorded.
        stages: None if this is no pipeline, or if it recorded too little.
        sweeps: times of the operations by themselves.
    """

    summary: Summary
    shape: Shape
    throughput: Estimate
    work: float
    exposed: float
    is_separate: bool
    has_exchange: bool
    window: float
    late: NDArray[np.float64]
    operations: Mapping[str, float]
    weights: float
    buckets: tuple[tuple[float, float], ...]
    stages: Stages | None
    sweeps: Sequence[Sweep]

    @property
    def devices(self) -> int:
        return self.summary.devices

    @property
    def step(self) -> float:
        return self.shape.global_batch / self.throughput.value

    @property
    def noise(self) -> float:
        """Log of how far the median may be off; 0 if there is no interval."""
        ends = self.throughput.interval
        return 0.0 if ends is None else math.log(ends[1] / ends[0]) / 2


def read_scale(summary: Summary) -> Scale:
    """Reduce a row that is ok."""
    sweeps = find_sweeps(summary)
    records, launches = summary.records, summary.launches
    times = [sweep.times_weights for sweep in sweeps]
    rates = summary.counted["throughput"].to_numpy()
    work = launches["input"] + launches["computation"] + launches["host"]
    has_exchange = EXCHANGE in records[0]["phases"]
    # Communication hides behind backward; if it is mixed in, behind forward, too.
    hiding = ("backward",) if has_exchange else ("forward", "backward")
    return Scale(
        summary=summary,
        shape=Shape(**records[0]["shape"]),
        throughput=geometric_mean(rates).scaled(1 / summary.cell.units_per_sample),
        work=work.median() / 1e3,
        exposed=launches["exchange"].median() / 1e3,
        is_separate=bool(launches["is_separate"].all()),
        has_exchange=has_exchange,
        window=_median_of(summary, hiding),
        late=np.concatenate([*map(_late, launches["directory"], records)]),
        operations={}
        if None in times
        else {sweep.operation: sweep.times_weights or 0.0 for sweep in sweeps},
        weights=float(records[0]["model"].get("parameter_bytes") or 0),
        buckets=_buckets(records),
        stages=_stages(summary),
        sweeps=sweeps,
    )


def _median_of(summary: Summary, phases: Collection[str]) -> float:
    """Seconds of these phases of a step, median over launches."""
    each = summary.launches["phase_ms"]
    return float(np.median([sum(o.get(p, 0.0) for p in phases) for o in each]) / 1e3)


def _late(directory: Path, record: Record) -> NDArray[np.float64]:
    """Seconds that each rank of each step exceeds a typical one: [ranks x steps]."""
    steps = Launch(directory, record).read_steps().timed[:, -_STEPS:]
    totals = (steps * [name != EXCHANGE for name in record["phases"]]).sum(axis=2)
    by_rank = totals.mean(axis=1)
    typical = np.argsort(by_rank, kind="stable")[(len(by_rank) - 1) // 2]
    late: NDArray[np.float64] = (totals - by_rank[typical]).ravel()
    return late


def _buckets(records: Sequence[Record]) -> tuple[tuple[float, float], ...]:
    """Medians over ranks and launches, if all have the same buckets."""
    found = [
        rank["details"].get("buckets") or []
        for record in records
        for rank in record["ranks"]
    ]
    sizes = {tuple(bucket["bytes"] for bucket in rank) for rank in found}
    if len(sizes) != 1:
        return ()
    ready = np.array([[bucket["ready_s"] for bucket in rank] for rank in found])
    medians = np.median(ready, axis=0) if ready.size else ()
    return tuple(zip(map(float, sizes.pop()), map(float, medians), strict=True))


def _stages(summary: Summary) -> Stages | None:
    launches = [[rank["details"] for rank in r["ranks"]] for r in summary.records]
    # On a mesh, several ranks share a stage.
    on_mesh = "pipe" in summary.cell.options
    if on_mesh or not all("forward_s" in rank for ranks in launches for rank in ranks):
        return None

    def median(name: str) -> float:
        return float(np.median([sum(r[name] for r in ranks) for ranks in launches]))

    costs = launches[0][0].get("part_costs") or ()
    return Stages(
        schedule=str(summary.cell.options.get("schedule")),
        microbatches=int(launches[0][0]["microbatches"]),
        forward=median("forward_s"),
        backward=median("backward_s"),
        update=_median_of(summary, ("update",)),
        costs=tuple(map(float, costs)),
        counts=tuple(
            len(stage) for rank in launches[0] for stage in rank.get("stages", ())
        ),
    )


# --- models --------------------------------------------------------------------------


def find_model(scales: Sequence[Scale]) -> _DataParallel | _Pipeline | str:
    """Fit what explains these scales, or say what is missing for it.

    Args:
        scales: of one series, by ascending devices; at least two.
    """
    several = [scale for scale in scales if scale.shape.ranks > 1]
    if not several:
        return "no row has several ranks"
    if several[-1].stages:
        return _Pipeline.fit(several)
    if any(scale.shape.replica_ranks > 1 for scale in scales):
        return "its ranks share replicas, and what they exchange is not recorded"
    if any(one.ranks < scale.shape.ranks for scale in several for one in scale.sweeps):
        return "its ranks exchange within groups, whose sizes do not scale"
    if not all(scale.operations and scale.weights for scale in several):
        return "there is no sweep of its operations (collectives: true measures it)"
    if not any(map(_is_pure, scales)):
        return "its phases contain communication, and no row of one rank is without"
    return _DataParallel.fit(scales)


def _overlapped(scale: Scale) -> set[str]:
    """Operations that go on beside computation; others wait for it.

    Where there is a phase for exposed communication, it is that of the gradients' own
    all-reduce; other phases contain the rest. Without such a phase, the operations are
    within forward and backward.
    """
    if scale.has_exchange:
        return {"all_reduce"} & scale.operations.keys()
    return set(scale.operations)


def _is_pure(scale: Scale) -> bool:
    """Whether the phases show the work of a rank without any communication."""
    return scale.shape.ranks == 1 or (
        scale.is_separate and _overlapped(scale) == set(scale.operations)
    )


@dataclass(frozen=True)
class _DataParallel:
    """Replicas that exchange a volume equal to the weights, a fixed number of times.

    Attributes:
        work: seconds of a step without samples, and of a sample of a rank.
        late: what ranks need more or less than a typical one, sorted.
        measured: the largest scale.
        hiding: the scale whose window and buckets the others resemble.
        slowdowns: how much longer communication takes in training than in the sweep:
            beside computation, and by itself.
    """

    work: tuple[float, float]
    late: NDArray[np.float64]
    measured: Scale
    hiding: Scale
    network: dict[str, Operation]
    slowdowns: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def fit(cls, scales: Sequence[Scale]) -> _DataParallel:
        several = [scale for scale in scales if scale.shape.ranks > 1]
        late = np.sort(np.concatenate([scale.late for scale in several]))
        network = fit_network([sweep for scale in several for sweep in scale.sweeps])
        pure = [scale for scale in scales if _is_pure(scale)]
        last = several[-1]
        # Without a phase for communication, forward and backward contain it.
        hiding = last if last.has_exchange else pure[-1]
        fitted = cls(_fit_work(pure), late, last, hiding, network)
        found = np.array([fitted._find_slowdowns(scale) for scale in several])
        beside, alone = np.median(found, axis=0)
        return replace(fitted, slowdowns=(float(beside), float(alone)))

    def seconds(self, shape: Shape) -> float:
        """Of a step of this shape."""
        buckets, computing = self._buckets(shape)
        beside, alone = self.slowdowns
        return (
            self._compute(shape)
            + expected_maximum(self.late, shape.ranks)
            + exposed(buckets, computing, beside)
            + alone * self._serial(shape)
        )

    def _compute(self, shape: Shape) -> float:
        """Seconds of a typical rank without communication."""
        return self.work[0] + self.work[1] * shape.rank_batch

    def _find_slowdowns(self, scale: Scale) -> tuple[float, float]:
        """Beside computation, and by itself, as one scale shows them."""
        shape, compute = scale.shape, self._compute(scale.shape)
        serial = self._serial(shape)
        if scale.has_exchange:
            left = scale.exposed
            alone = max(0.0, scale.work - compute) / serial if serial else 1.0
        else:
            late = expected_maximum(self.late, shape.ranks)
            left, alone = max(0.0, scale.step - compute - late), 1.0
        return find_slowdown(*self._buckets(shape), left), alone

    def _serial(self, shape: Shape) -> float:
        """Seconds of the operations that nothing hides, by themselves."""
        names = self.measured.operations.keys() - _overlapped(self.measured)
        return self._takes(names, 1.0, shape.ranks)

    def _buckets(self, shape: Shape) -> tuple[list[Bucket], float]:
        """What is sent in a step of this shape, and the time that may hide it."""
        hiding, names = self.hiding, _overlapped(self.measured)
        stretch = self._compute(shape) / self._compute(hiding.shape)
        if hiding.buckets:
            pieces = [
                (ready, self._takes(names, size / hiding.weights, shape.ranks))
                for size, ready in hiding.buckets
            ]
        else:
            whole = self._takes(names, 1.0, shape.ranks)
            pieces = [
                (hiding.window * (i + 1) / _PARTS, whole / _PARTS)
                for i in range(_PARTS)
            ]
        computing = max(ready for ready, _ in pieces)
        buckets = [(stretch * ready, takes) for ready, takes in pieces]
        return buckets, stretch * computing

    def _takes(self, names: Collection[str], share: float, ranks: int) -> float:
        """Seconds that these operations need for a share of the weights."""
        return sum(
            self.measured.operations[name]
            * self.network[name].seconds(share * self.measured.weights, ranks)
            for name in names
            if name in self.network
        )


@dataclass(frozen=True)
class _Pipeline:
    """Stages of consecutive parts, as its own strategy would split them.

    Attributes:
        measured: the largest scale.
        fixed: seconds of a step that its schedule does not explain.
        hop: seconds from one stage to the next.
    """

    measured: Scale
    fixed: float = 0.0
    hop: float = 0.0

    @classmethod
    def fit(cls, scales: Sequence[Scale]) -> _Pipeline | str:
        stages = [scale.stages for scale in scales]
        last = stages[-1]
        if last is None or None in stages or not last.costs:
            return "what each part of its model costs is not recorded"
        if last.schedule not in _SCHEDULES:
            return f"the schedule {last.schedule} is not modelled"
        # The last micro-batch goes forward and backward through all stages.
        hops = np.array([2.0 * (scale.shape.ranks - 1) for scale in scales])
        rest = np.array(
            [scale.step - cls(scale).seconds(scale.shape) for scale in scales]
        )
        known = np.stack([np.ones_like(hops), hops], axis=1)
        (fixed, hop), _ = optimize.nnls(known, np.maximum(0.0, rest))
        return cls(scales[-1], float(fixed), float(hop))

    def seconds(self, shape: Shape) -> float:
        """Of a step of this shape.

        Raises:
            ValueError: the model of the cell cannot be shared by so many ranks.
        """
        stages = self.measured.stages
        assert stages is not None
        counts = (
            stages.counts
            if shape.ranks == self.measured.shape.ranks
            else split_evenly(stages.costs, shape.ranks)
        )
        ends = np.cumsum(counts)
        shares = [
            sum(stages.costs[end - count : end]) / sum(stages.costs)
            for count, end in zip(counts, ends, strict=True)
        ]
        scheduled = step_seconds(
            [stages.forward * share for share in shares],
            [stages.backward * share for share in shares],
            stages.microbatches,
            self.hop,
            stages.schedule,
        )
        update = stages.update * self.measured.shape.ranks / shape.ranks
        return scheduled + update + self.fixed


def _fit_work(scales: Sequence[Scale]) -> tuple[float, float]:
    """Seconds of a step without samples, and of a sample; neither is negative."""
    samples = np.array([float(scale.shape.rank_batch) for scale in scales])
    seconds = np.array([scale.work for scale in scales])
    if len(set(samples)) == 1:
        return 0.0, float(np.median(seconds / samples))
    known = np.stack([np.ones_like(samples), samples], axis=1) / seconds[:, None]
    (fixed, each), _ = optimize.nnls(known, np.ones_like(samples))
    return float(fixed), float(each)


def expected_maximum(ordered: NDArray[np.float64], draws: int) -> float:
    """Mean of the largest of so many draws from these values, in ascending order.

    The largest is at most the i-th of n values with probability (i / n)^draws.
    """
    count = len(ordered)
    shares = (np.arange(count + 1) / count) ** draws
    return float(ordered @ np.diff(shares))


def exposed(buckets: Sequence[Bucket], computing: float, slowdown: float) -> float:
    """Seconds from the end of the computation until the last bucket has arrived.

    Buckets are sent in the order in which they are ready, one after the other, as DDP
    does (Li and others, PyTorch Distributed, VLDB 13, 2020).

    Args:
        computing: seconds of the computation that hides communication.
        slowdown: how much longer communication takes beside computation.
    """
    end = 0.0
    for ready, takes in sorted(buckets):
        end = max(end, ready) + slowdown * takes
    return max(0.0, end - computing)


def find_slowdown(
    buckets: Sequence[Bucket], computing: float, measured: float
) -> float:
    """The slowdown with which `exposed` gives what was measured, by bisection."""
    low, high = _LEAST, _MOST
    for _ in range(60):
        middle = math.sqrt(low * high)
        if exposed(buckets, computing, middle) < measured:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def step_seconds(
    forward: Sequence[float],
    backward: Sequence[float],
    microbatches: int,
    hop: float,
    schedule: str,
) -> float:
    """Seconds until the last stage is done.

    Args:
        forward, backward: seconds of a micro-batch, by stage.
        hop: seconds that a micro-batch takes from one stage to the next.
        schedule: ``gpipe`` or ``1f1b``.
    """
    count = len(forward)
    # A task is forward or backward, the number of a stage, and that of a micro-batch.
    needs: dict[tuple[str, int, int], list[tuple[str, int, int]]] = {}
    for stage in range(count):
        ahead = microbatches if schedule == "gpipe" else count - stage
        forwards = [("F", stage, batch) for batch in range(microbatches)]
        order, later = forwards[:ahead], forwards[ahead:]
        for batch in range(microbatches):
            order += [("B", stage, batch), *later[batch : batch + 1]]
        for place, (kind, _, batch) in enumerate(order):
            sender = stage - 1 if kind == "F" else stage + 1
            received = [(kind, sender, batch)] if 0 <= sender < count else []
            needs[order[place]] = [*order[max(0, place - 1) : place], *received]
    done: dict[tuple[str, int, int], float] = {}
    for task in TopologicalSorter(needs).static_order():
        kind, stage, _ = task
        ready = (done[one] + (hop if one[1] != stage else 0.0) for one in needs[task])
        takes = forward if kind == "F" else backward
        done[task] = max(ready, default=0.0) + takes[stage]
    return max(done.values())
