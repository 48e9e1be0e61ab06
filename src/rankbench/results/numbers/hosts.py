"""Which hosts are slow: by launches that had one host, and by the ranks that are late.

Launches of a cell differ by host in jobs that cells share, and with `hosts: each`. The
logarithm of a launch's throughput is a value of its host plus scatter, which is the
same on all hosts. A host is compared with the median of the others. Student's brackets
hold together, at the level of Sidak (JASA 62, 1967); a host is slow if its bracket lies
below `AT_LEAST`. Hosts need no common rounds: they do not disturb each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from rankbench.results.numbers.statistics import (
    Estimate,
    LogRatio,
    confidence_of_each,
    geometric_mean,
)

if TYPE_CHECKING:
    from rankbench.results.numbers.result_set import Summary

# A host is slow, or a row too slow, whose speed is surely below this share of the
# others', or of its base.
AT_LEAST = 0.95

# The ranks of a host are late if, in each of so many launches or more, the latest rank
# is there, and works longer than a typical one for such a share of the step.
LATE, LAUNCHES = 0.1, 3

# Variance of a median over that of a mean, of normal values.
_OF_MEDIAN = math.pi / 2


@dataclass(frozen=True, kw_only=True)
class HostSpeed:
    """A host, by the launches of one cell.

    Attributes:
        cell: id of the row.
        launches: how many there are; `numbers`: theirs.
        rates: throughput of each; `throughput`: their mean.
        ratio: its speed over that of the other hosts; one without an interval if there
            are too few launches.
        slow: `yes` if it surely is, or empty.
        others: how many other hosts there are, or the name of the only one.
    """

    host: str
    cell: str
    launches: int
    numbers: Sequence[int]
    rates: Sequence[float]
    throughput: float
    ratio: Estimate
    slow: str
    others: str

    def __str__(self) -> str:
        """Such as ``node2 is 6.1 times slower than node1 (launches 2, 4)``."""
        numbers = ", ".join(map(str, self.numbers))
        times = f"{1 / self.ratio.value:.3g} times slower than {self.others}"
        return f"{self.host} is {times} (launches {numbers})"


def compare_hosts(
    rows: Sequence[Summary], at_least: float = AT_LEAST
) -> list[list[HostSpeed]]:
    """The hosts of each cell that ran on several of them, the fastest first.

    Cells that differ in their host alone are one. A host is slow if its speed is surely
    below a share of the others'.
    """
    groups: dict[str, dict[str, list[tuple[str, int, float]]]] = {}
    for row in rows:
        of = groups.setdefault(row.cell.apart_from(("hosts",)), {})
        names = ("hosts", "launch", "throughput")
        columns = (row.launches[name].tolist() for name in names)
        for hosts, launch, rate in zip(*columns, strict=True):
            if len(hosts) == 1:
                of.setdefault(hosts[0], []).append((row.id, launch, rate))
    several = [of for of in groups.values() if len(of) > 1]
    # Of two hosts, both ratios are the same.
    count = sum(len(of) if len(of) > 2 else 1 for of in several)
    found = []
    for of in several:
        rates = {host: [rate for *_, rate in own] for host, own in of.items()}
        ratios = compare_rates(rates, count)
        speeds = []
        for host in sorted(of, key=lambda host: -ratios[host].value):
            names, numbers, _ = zip(*of[host], strict=True)
            rest, high = [other for other in of if other != host], ratios[host].high
            one = HostSpeed(
                host=host,
                cell=names[0],
                launches=len(numbers),
                numbers=numbers,
                rates=rates[host],
                throughput=geometric_mean(rates[host]).value,
                ratio=ratios[host],
                slow="yes" if high is not None and high < at_least else "",
                others=rest[0] if len(rest) == 1 else f"the {len(rest)} others",
            )
            speeds.append(one)
        found.append(speeds)
    return found


def compare_rates(
    rates: Mapping[str, Sequence[float]], count: int
) -> dict[str, Estimate]:
    """The speed of each host over the median of the others, with its bracket.

    Args:
        rates: of the launches of each host.
        count: number of the brackets that hold together, those of other cells included.
    """
    logs = {host: np.log(own) for host, own in rates.items()}
    means = {host: float(own.mean()) for host, own in logs.items()}
    freedom = sum(len(own) - 1 for own in logs.values())
    square = sum(float(((o - o.mean()) ** 2).sum()) for o in logs.values())
    confidence = confidence_of_each(count)
    found = {}
    for host, own in logs.items():
        others = [other for other in logs if other != host]
        value = means[host] - float(np.median([means[other] for other in others]))
        launches, error = sum(len(logs[other]) for other in others), math.inf
        if freedom >= 2:
            factor = 1.0 if len(others) < 3 else _OF_MEDIAN
            error = math.sqrt(square / freedom * (1 / len(own) + factor / launches))
        found[host] = LogRatio(value, error, freedom, len(own)).bracket(confidence)
    return found


def find_slow_hosts(rows: Sequence[Summary]) -> dict[str, str]:
    """Id of each row that a slow host holds back -> which, in words."""
    speeds = (speed for several in compare_hosts(rows) for speed in several)
    found = {speed.cell: str(speed) for speed in speeds if speed.slow}
    for row in rows:
        if late := find_late_host(row.launches):
            host, ms = late
            found[row.id] = f"ranks on {host} are late in each launch, by {ms:.3g} ms"
    return found


def find_late_host(launches: pd.DataFrame) -> tuple[str, float] | None:
    """The host on which the latest rank always is; None if there is none.

    Args:
        launches: of a row.

    Returns:
        The host, and what its rank works longer than a typical one: milliseconds of a
        step, the mean over launches.
    """
    late_ms, step_ms = (launches[name].to_numpy() for name in ("late_ms", "step_ms"))
    if len(launches) < LAUNCHES or not (late_ms >= LATE * step_ms).all():
        return None
    if not all(len(hosts) > 1 for hosts in launches["hosts"]):
        return None
    places = zip(launches["record"], launches["late"], strict=True)
    hosts = {record["ranks"][late[0]]["host"] for record, late in places}
    return (hosts.pop(), float(late_ms.mean())) if len(hosts) == 1 else None
