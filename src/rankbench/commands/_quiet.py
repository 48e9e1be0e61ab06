"""Whether other programs use the cores that a run is to measure on."""

from __future__ import annotations

import os
import pwd
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rankbench.record import minutes
from rankbench.say import say

# A machine is quiet if others use less than so many cores: from this share of its core
# on, a rank is disturbed (record.disturbances).
_QUIET = 0.05

_LOOK = 0.5  # seconds; in ticks of 10 ms, shorter ones are too coarse
_BETWEEN = 10.0  # seconds between looks while waiting
_NAMED = 3  # programs; more are summed up

_PROC = Path("/proc")

# In /proc/stat: user, nice and system, which have guests; and steal.
_BUSY, _STEAL = slice(0, 3), 7


def wait_until_quiet(limit: float) -> None:
    """Say who else uses this machine, and wait until nobody does.

    Args:
        limit: seconds; then the run goes on all the same.
    """
    begun, told = time.monotonic(), False
    while others := find_others():
        if not told:
            cores, used = len(os.sched_getaffinity(0)), sum(others.values())
            who = ", ".join(f"{name} {each:.1f}" for name, each in others.items())
            say(f"busy: others use {used:.1f} of {cores} cores: {who}", aside=True)
        left = limit - (time.monotonic() - begun)
        if left <= 0:
            how = "goes on all the same, and repeats disturbed launches, twice at most"
            more = "" if limit else " (--wait-quiet 9 waits 9 min)"
            say(f"  {how}{more}", aside=True)
            return
        if not told:
            say(f"  waits for them, at most {minutes(limit)}", aside=True)
            told = True
        time.sleep(min(_BETWEEN, left))


def find_others(seconds: float = _LOOK, proc: Path = _PROC) -> Mapping[str, float]:
    """What programs use now, by program and user, in cores, most first; {} if little.

    Programs that are not seen from here, as from within a container, have one entry.

    Args:
        seconds: how long to look.
        proc: where the kernel shows its processes.
    """
    before = _read(proc)
    time.sleep(seconds)
    found = _read(proc)
    found.subtract({name: before[name] for name in found})
    ticks = seconds * os.sysconf("SC_CLK_TCK")
    cores = {name: count / ticks for name, count in found.items()}
    steal, busy = cores.pop("steal"), cores.pop("busy")
    by_name: dict[str, float] = {}
    for name, used in cores.items():
        program = name.partition("/")[2]
        by_name[program] = by_name.get(program, 0.0) + used
    most = sorted(by_name, key=lambda program: -by_name[program])[:_NAMED]
    shown = {name: by_name[name] for name in most if by_name[name] >= _QUIET}
    shown["others"] = busy - sum(shown.values())
    shown["other virtual machines"] = steal
    is_quiet = busy + steal < _QUIET
    return {} if is_quiet else {k: v for k, v in shown.items() if v >= _QUIET}


def _read(proc: Path) -> Counter[str]:
    """CPU time so far, in ticks: of each process but this, and of the machine."""
    found: Counter[str] = Counter()
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    for line in (proc / "stat").read_text().splitlines():
        name, *values = line.split()
        if name in mine:
            counts = [int(value) for value in values]
            found["busy"] += sum(counts[_BUSY])
            found["steal"] += counts[_STEAL]
    for place in proc.glob("[0-9]*"):
        with suppress(OSError, KeyError):
            # The name may contain anything but ")".
            name, _, rest = (place / "stat").read_text().rpartition(")")
            fields = rest.split()
            used = int(fields[14 - 3]) + int(fields[15 - 3])
            if place.name == str(os.getpid()):
                found["busy"] -= used
                continue
            owner = pwd.getpwuid(place.stat().st_uid).pw_name
            # The kernel names its own by what they do at the moment.
            program = name.partition("(")[2].partition("/")[0]
            found[f"{place.name}/{program} of {owner}"] = used
    return found
