"""Which launches something else than their cell has disturbed.

Standard library only: jobs, tables and `rankbench verify` ask this module. It reads the
surroundings of a launch, as its record has them, and never how fast the launch was, so
a disturbed launch can be repeated without preferring fast ones. It counts shares, not
seconds, because slow cells last longer. What a cell may cause itself is its own
performance: its heat during the launch, swapping, the network, the placement of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# A launch is disturbed from this share on: of the CPU time of a rank's cores that other
# programs or other virtual machines took, and of the periods in which a quota held
# processes back.
_TAKEN = 0.05

# The same of the timed window during which processes were suspended. Nothing else slows
# a launch by all of its share.
_STOPPED = 0.01

# Mark of a row with a launch that counts although it was disturbed.
DISTURBED = "disturbed"

# Mark of a row whose ranks had fewer cores or GPUs than they need.
OVERSUBSCRIBED = "oversubscribed"


def disturbances(record: Mapping[str, Any]) -> list[str]:
    """What disturbed a launch, in words; [] if nothing did.

    Args:
        record: of a launch; `stopping.brief` keeps all that is read here.
    """
    found = [
        f"{words} on {host['host']}"
        for host in record.get("surroundings") or ()
        for words in _of_host(host, _planned_cores(record))
    ]
    for device in record.get("devices") or ():
        before = device.get("before") or {}
        if before.get("others"):
            found.append(f"another process used GPU {device['index']}")
        if reasons := before.get("throttled"):
            found.append(
                f"GPU {device['index']} was throttled before: {', '.join(reasons)}"
            )
    return found


def _of_host(host: Mapping[str, Any], planned: int | None) -> Iterator[str]:
    for key, words in (
        ("foreign", "other programs took {:.0%} of a rank's cores"),
        ("steal", "other virtual machines took {:.0%} of a rank's cores"),
    ):
        if host[key] >= _TAKEN:
            yield words.format(host[key])
    # A quota below the planned cores holds all launches back: repeating cannot help.
    is_enough = planned is None or (host["quota"] or 0) >= planned
    if host["throttled"] >= _TAKEN and is_enough:
        yield f"a CPU quota throttled {host['throttled']:.0%} of the periods"
    if host["stopped"] >= _STOPPED:
        yield f"processes were suspended for {host['stopped']:.0%} of the window"


def lacks_cores(record: Mapping[str, Any]) -> bool:
    """Whether ranks had fewer cores than planned, and so in every launch.

    They share some, were given fewer, or a CPU quota allows fewer.
    """
    planned = _planned_cores(record)
    if planned is None:
        return False
    for host in record.get("surroundings") or ():
        quota = host["quota"]
        is_held_back = quota is not None and quota < planned
        if is_held_back and host["throttled"] >= _TAKEN:
            return True
    taken: dict[str, set[int]] = {}
    for rank in record.get("ranks") or ():
        cores = set(rank.get("cores") or ())
        of_others = taken.setdefault(rank["host"], set())
        if cores and (cores & of_others or len(cores) < _cores_of_rank(record)):
            return True
        of_others |= cores
    return False


def _planned_cores(record: Mapping[str, Any]) -> int | None:
    """Cores that the ranks of a host shall have; None if they share all of its."""
    each = _cores_of_rank(record)
    return each * record["shape"]["ranks_per_node"] if each else None


def _cores_of_rank(record: Mapping[str, Any]) -> int:
    return (record.get("shape") or {}).get("cores_per_rank") or 0
