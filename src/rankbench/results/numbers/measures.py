"""Reduce one launch, its record and its steps, to a few numbers.

A step is divided as the POP metrics do. It ends when its slowest rank is ready. So its
time is the work of a typical rank, what the slowest rank needs longer, and the exchange
that goes on after the slowest rank has joined it. See the POP standard metrics for
parallel performance analysis (https://pop-coe.eu/node/69): load balance and transfer
are those of POP, given as times instead of as ratios.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rankbench.record import Record, round_of
from rankbench.results.numbers.statistics import spread
from rankbench.results.numbers.steady import find_warmup
from rankbench.results.read.launches import Launch

INPUT = ("load", "transfer")
EXCHANGE = "communication"
PIPELINE = "pipeline"

# The loss of single steps scatters: it is the mean of so many steps.
LOSS_STEPS = 20


@dataclass(frozen=True, slots=True)
class Composition:
    """The mean step of a launch, in milliseconds; the parts add up to it.

    Attributes:
        step: until the slowest rank is ready.
        input: a typical rank waits for data and copies them.
        computation: a typical rank computes. If `is_separate` is false, it communicates
            within this time, too.
        waiting: a typical rank waits for the slowest one, or in a pipeline for the
            other stages.
        exchange: communication that no computation hides, after the slowest rank has
            joined it.
        host: the GPU idles although neither data nor ranks are waited for.
        is_separate: whether the phases separate communication from computation.
        late: the rank with the most work, and the phase in which it exceeds a typical
            rank most; None if the ranks are alike or wait for no one.
    """

    step: float
    input: float
    computation: float
    waiting: float
    exchange: float
    host: float
    is_separate: bool
    late: tuple[int, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The numbers of one launch, over the steady part of its timed window.

    The steady part begins after the warm-up. Without a steady state it is the whole
    window.

    Attributes:
        launch: with its record.
        warmup: steps before the steady part; at least those that the cell asks for.
        steady: whether there is a steady state.
        throughput: samples, or tokens, of all replicas per second of the slowest rank.
        step_ms: mean over the steps of the slowest rank's step time.
        step_p95_ms: 95 % of the steps of the slowest rank are shorter than this.
        step_spread: interquartile range of the same times over their median.
        epoch_s: seconds of one epoch's worth of steps.
        epochs_s: seconds of each whole epoch of the window, of its slowest rank.
        total_s: seconds of the whole window, of the slowest rank.
        memory_mib: peak memory of the rank that used most, after the warm-up; see
            `peak_memory`.
        setup_memory_mib: the same until the warm-up ended; None for older records.
        accuracy: share of the held-out samples, 0 to 1; None if not evaluated.
        class_accuracy: the same by class; None for a class without samples.
        loss: at the first and the last step of the window; None if not a number.
        phase_ms: mean per step by phase, over ranks and steps.
        parts: what the mean step is made of.
        torch: version.
        steps_s: seconds of each step of the whole window, of its slowest rank, [steps].
        losses: of every step, warm-up first, [warmup + steps].
    """

    launch: Launch = field(repr=False, compare=False)
    warmup: int
    steady: bool
    throughput: float
    step_ms: float
    step_p95_ms: float
    step_spread: float
    epoch_s: float
    epochs_s: tuple[float, ...]
    total_s: float
    memory_mib: float
    setup_memory_mib: float | None
    accuracy: float | None
    class_accuracy: tuple[float | None, ...]
    loss: tuple[float | None, float | None]
    phase_ms: dict[str, float]
    parts: Composition
    torch: str
    steps_s: NDArray[np.float64] = field(repr=False, compare=False)
    losses: NDArray[np.float64] = field(repr=False, compare=False)

    def steps_to(self, goal: str, value: float) -> int | None:
        """Steps from the first of the warm-up until a goal is reached; None if never.

        Args:
            goal: loss: the mean of the last `LOSS_STEPS` steps is not above the value.
                accuracy, which is known after the last step only: not below it.
        """
        if goal == "accuracy":
            good = self.accuracy is not None and self.accuracy >= value
            return len(self.losses) if good else None
        width = min(LOSS_STEPS, len(self.losses))
        means = np.convolve(self.losses, np.full(width, 1 / width), mode="valid")
        reached = np.flatnonzero(means <= value)
        return int(reached[0]) + width if len(reached) else None

    @property
    def turn(self) -> Hashable:
        """The round of the launch; one outside of rounds has a key of its own."""
        return round_of(self.launch.record) or self.launch.directory

    def seconds_of(self, steps: float) -> float:
        """Time of steps, each taking the mean time of the timed ones."""
        return self.total_s * steps / len(self.steps_s)

    @property
    def load_ms(self) -> float:
        """Time of a step spent on waiting for data."""
        return self.phase_ms.get("load", 0.0)

    @property
    def transfer_ms(self) -> float:
        """Time of a step spent on copies to the device."""
        return self.phase_ms.get("transfer", 0.0)

    @property
    def update_ms(self) -> float:
        """Time of a step without waiting for data."""
        return sum(self.phase_ms.values()) - self.load_ms

    @property
    def compute_ms(self) -> float:
        """Time of a step spent on arithmetic and communication."""
        return self.update_ms - self.transfer_ms

    @property
    def load_share(self) -> float:
        """Share of a step spent on waiting for data, 0 to 1."""
        return self.load_ms / (self.load_ms + self.update_ms)


def measure(launch: Launch, units: int = 1) -> Measures:
    """Reduce a launch that succeeded.

    Args:
        launch: the launch.
        units: what throughput counts for each sample; see `Cell.units_per_sample`.

    Raises:
        ValueError: the record or its steps are damaged; the message names the file.
    """
    record = launch.record
    try:
        ranks, count = record["ranks"], record["steps"]
        fixed = record.get("warmup", 0)
        read = launch.read_steps()
        timed = read.timed
        found = find_warmup(slowest_rank(read.warmup, timed), fixed)
        warmup = fixed if found is None else found
        late, steps = np.split(timed, [warmup - fixed], axis=1)
        # The window holds more than its steps: subtract only those of the warm-up.
        kept = steps.shape[1]
        windows = np.array([rank["window_s"] for rank in ranks])
        seconds = float((windows - late.sum(axis=(1, 2))).max())
        throughput = units * record["samples"] * kept / count / seconds
        if not 0 < throughput < math.inf:
            raise ValueError(f"{launch.path} is damaged: {throughput} per second")
        slowest = slowest_rank(steps)
        mean_ms = 1e3 * steps.mean(axis=(0, 1))
        if not mean_ms.any():
            raise ValueError(f"{launch.path} is damaged: its steps took no time")
        accuracy, parts = record["accuracy"], compose(steps, record)
        loss = record.get("loss") or {}
        setup = [{"memory": rank["memory"].get("setup")} for rank in ranks]
        epochs = zip(*(rank.get("epochs_s") or () for rank in ranks), strict=False)
        return Measures(
            launch=launch,
            warmup=warmup,
            steady=found is not None,
            throughput=throughput,
            step_ms=parts.step,
            step_p95_ms=1e3 * float(np.quantile(slowest, 0.95)),
            step_spread=spread(slowest),
            epoch_s=seconds * record["steps_per_epoch"] / kept,
            epochs_s=tuple(map(max, epochs)),
            total_s=float(windows.max()),
            memory_mib=peak_memory(ranks),
            setup_memory_mib=(
                None if {"memory": None} in setup else peak_memory(setup)
            ),
            accuracy=None if accuracy is None else accuracy["overall"],
            class_accuracy=tuple((accuracy or {}).get("per_class") or ()),
            loss=(loss.get("first"), loss.get("last")),
            phase_ms=dict(zip(record["phases"], mean_ms.tolist(), strict=True)),
            parts=parts,
            torch=record["software"]["torch"],
            steps_s=slowest_rank(timed),
            losses=read.losses,
        )
    except Exception as error:
        if str(launch.directory) in str(error):
            raise
        raise ValueError(f"{launch.path} is damaged: {error!r}") from error


def compose(steps: NDArray[np.float64], record: Record) -> Composition:
    """Divide the mean step of a launch.

    A typical rank is the lower median of the ranks, by their work. With the mean
    instead, half of what a slow rank of two costs would count as computation.

    Args:
        steps: seconds of [ranks, steps, phases].
        record: of the launch.
    """
    phases: Sequence[str] = record["phases"]
    mean = 1e3 * steps.mean(axis=1)
    at = {name: i for i, name in enumerate(phases)}
    step = float(1e3 * steps.sum(axis=2).max(axis=0).mean())
    # Share of the pipeline in which each rank waits, if it is one.
    shares = [(rank.get("details") or {}).get("bubble") for rank in record["ranks"]]
    is_pipeline = None not in shares and len(shares) > 1
    if is_pipeline and PIPELINE in at:
        waiting = float((np.array(shares) * mean[:, at[PIPELINE]]).mean())
        parts, late = mean.mean(axis=0), None
        longest = step
        work = step - waiting
    else:
        own = steps.copy()
        if EXCHANGE in at:
            own[:, :, at[EXCHANGE]] = 0
        totals = own.sum(axis=2)
        longest = float(1e3 * totals.max(axis=0).mean())
        by_rank = 1e3 * totals.mean(axis=1)
        typical = int(np.argsort(by_rank, kind="stable")[(len(by_rank) - 1) // 2])
        parts = mean[typical]
        work = float(by_rank[typical])
        waiting = longest - work
        # What the latest rank needs more than a typical one, by phase.
        means = own.mean(axis=1)
        latest = int(means.sum(axis=1).argmax())
        phase = phases[int((means[latest] - means[typical]).argmax())]
        late = None if latest == typical else (latest, phase)
    loading = float(sum(parts[at[name]] for name in INPUT if name in at))
    # Shares of the window in which no kernel ran on a GPU.
    idle = [
        1 - device["utilisation_mean"]
        for device in record.get("devices") or []
        if device.get("utilisation_mean") is not None
    ]
    idle_share = float(np.mean(idle)) if idle else 0.0
    host = min(work - loading, max(0.0, idle_share * step - loading))
    return Composition(
        step=step,
        input=loading,
        computation=work - loading - host,
        waiting=waiting,
        exchange=step - longest,
        host=host,
        # Ranks that share a replica communicate within forward and backward.
        is_separate=len(mean) == 1
        or is_pipeline
        or (EXCHANGE in phases and record["shape"]["replica_ranks"] == 1),
        late=late,
    )


def slowest_rank(*parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of each step, [steps], until its slowest rank is done.

    Args:
        parts: seconds of [ranks, steps, phases], one after the other.
    """
    return np.asarray(np.concatenate(parts, axis=1).sum(axis=2).max(axis=0))


def memory_of_device(record: Record, device: str) -> float | None:
    """MiB of the smallest GPU, or of the smallest host; None if it is not recorded."""
    hosts = record["hosts"]
    if device == "cuda":
        hosts = [gpu for host in hosts for gpu in host.get("gpus") or ()]
    sizes = [one["memory_gib"] for one in hosts if one.get("memory_gib")]
    return 1024.0 * min(sizes) if sizes else None


def peak_memory(ranks: Sequence[Record]) -> float:
    """Peak MiB of the rank that used most: CUDA tensors, or else resident memory."""
    cuda = [rank["memory"]["cuda_allocated_mib"] for rank in ranks]
    present = [mib for mib in cuda if mib is not None]
    resident = [rank["memory"]["rss_peak_mib"] for rank in ranks]
    return float(max(present or resident))
