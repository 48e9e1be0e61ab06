"""The torch and the devices of this machine, found without importing torch here.

Importing torch takes longer than planning an experiment. So a child process looks once.
Its answer is kept in the environment that it describes, under a fingerprint of
everything that could change it.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from rankbench.cell import PACKAGES
from rankbench.environ import physical_cores
from rankbench.launch.hosts.base import run_to_end
from rankbench.launch_spec import SOURCE
from rankbench.record import write_json

# A file of each package that every new build of it replaces.
_LOOKED_AT = {"torch": "version.py", **dict.fromkeys(PACKAGES, "__init__.py")}

CACHE = Path(sys.prefix) / "var" / "rankbench" / "probe.json"


def probe_machine(
    programs: Sequence[str] = (), *, write: bool = True, cache: Path = CACHE
) -> dict[str, Any]:
    """Facts of the environment that ranks will run in.

    Args:
        programs: names of programs to look for.
        write: keep a new answer (a dry run must not).
        cache: where answers are kept.

    Returns:
        torch (version), cuda (version or None), cuda_devices (names), backends (names),
        cores (physical, within the affinity of this process), rpc (whether torch has
        it), horovod (its backends), packages (versions), programs (whether they are
        there).

    Raises:
        ValueError: torch cannot be imported; the message says what it said.
    """
    # Facts that may change with each start and take no time to find.
    now = {"cores": len(physical_cores()), "programs": find_programs(programs)}
    mark = _fingerprint()
    try:
        kept = json.loads(cache.read_text())
    except (OSError, ValueError):
        kept = {}
    if kept.get("fingerprint") == mark:
        return {**kept["facts"], **now}
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONNOUSERSITE": "1"}
    probe = [sys.executable, "-m", "rankbench.rank.facts.probe"]
    done = run_to_end(probe, env=environment)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ValueError(
            f"torch does not work in {sys.executable}: {said} "
            "(install it with `pip install 'rankbench[rank]'`, in a checkout with "
            "`pip install -r requirements-torch.txt`)"
        )
    facts = json.loads(done.stdout)
    if write:
        try:
            write_json(cache, {"fingerprint": mark, "facts": facts})
        except OSError:
            pass  # The environment is read-only: probe again next time.
    return {**facts, **now}


def count_gpus() -> int:
    """NVIDIA GPUs that CUDA will show, without asking torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return count_visible(visible, len(glob.glob("/dev/nvidia[0-9]*")))


def count_visible(visible: str | None, present: int) -> int:
    """How many GPUs CUDA shows.

    Args:
        visible: CUDA_VISIBLE_DEVICES; None if it is not set.
        present: GPUs that the kernel lists.
    """
    if visible is None or not present:
        return present
    # As in CUDA, the first entry that names no GPU ends the list.
    names = [name.strip() for name in visible.split(",")]
    named = takewhile(
        lambda name: (
            name.startswith(("GPU-", "MIG-"))
            or (name.isdecimal() and int(name) < present)
        ),
        names,
    )
    return len(list(named))


def find_programs(names: Sequence[str]) -> dict[str, bool]:
    """Whether each program is there: beside this Python, or on PATH."""
    beside = Path(sys.executable).parent
    return {
        name: (beside / name).exists() or shutil.which(name) is not None
        for name in names
    }


def _fingerprint() -> str:
    parts: list[Any] = [
        sys.executable,
        PACKAGES,
        sorted(glob.glob("/dev/nvidia[0-9]*")),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
    ]
    for package, file in _LOOKED_AT.items():
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            path = Path(found.origin).with_name(file)
            parts += [str(path), path.stat().st_mtime_ns]
    facts = SOURCE / "rankbench" / "rank" / "facts"
    parts += [(facts / name).read_text() for name in ("probe.py", "host.py")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


if __name__ == "__main__":
    print(json.dumps(probe_machine(), indent=1))
