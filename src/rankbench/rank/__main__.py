"""One rank of a launch: ``python -m rankbench.rank SPEC``, started by a launcher.

The rank reads its place among the ranks from the environment, or from arguments if it
is started by hand. It chooses its cores before it imports torch, because torch sizes
its thread pools by the cores of the process.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import os
import sys
from pathlib import Path

from rankbench.cell import Cell, Shape
from rankbench.cores import physical_cores
from rankbench.environ import Place, read_place, restore_devices
from rankbench.rank import variants
from rankbench.rank.purposes.duty import Duty, log_of
from rankbench.rank.world.lifeline import Progress, report_failure, watch_heartbeat
from rankbench.rank.world.placement import choose_cores, pin

# Purpose of a launch -> module with `run(duty)`.
_PURPOSES = {
    "measure": "rankbench.rank.purposes.measure",
    "gate": "rankbench.rank.purposes.gate",
    "profile": "rankbench.rank.purposes.profile",
    "script": "rankbench.rank.purposes.script",
}


def run_rank(
    spec_path: Path, *, place: Place | None = None, init_method: str = "env://"
) -> None:
    """Run a rank from start to end; a rank that fails ends the process.

    Args:
        spec_path: JSON file that describes the launch.
        place: place of this rank among all; None reads it from the environment.
        init_method: URL at which the ranks meet.
    """
    spec = json.loads(spec_path.read_text())
    place = place or read_place()
    restore_devices()
    # A script changes its working directory.
    directory = Path(spec["directory"]).absolute()
    work = directory / "work"
    # All output of this process, also that of libraries, goes to its own log.
    log = os.open(
        log_of(directory, place), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    report = functools.partial(report_failure, work, place.rank)
    progress = Progress(work / "progress", place.rank)
    watch_heartbeat(work / "heartbeat", spec["heartbeat_grace"], report, progress)
    cell, shape = Cell.from_dict(spec["cell"]), Shape(**spec["shape"])
    for kind, (name, file) in spec.get("own", {}).items():
        variants.own[kind, name] = Path(file)
    affinity = os.sched_getaffinity(0)
    if shape.cores_per_rank:
        pin(choose_cores(place.local_rank, shape.cores_per_rank, physical_cores()))
    try:
        # Imports torch, inside `try` so that a failing import is reported as well.
        purpose = importlib.import_module(_PURPOSES[spec["purpose"]])
        duty = Duty(
            cell=cell,
            shape=shape,
            place=place,
            init_method=init_method,
            phases=spec["phases"],
            work=work,
            data_dir=Path(spec["data_dir"]),
            threads=spec["threads"],
            affinity=affinity,
            progress=progress,
            save_model=spec.get("save_model", "none"),
            collectives=spec.get("collectives", False),
            seeds=spec.get("seeds", ()),
            script=spec.get("script"),
        )
        purpose.run(duty)
    except BaseException as error:
        report(error)
        # sys.exit would wait for threads that hang in a collective operation.
        os._exit(1)
    # Python collects garbage before it exits. That takes half a second with torch
    # loaded, and the kernel frees the memory anyway.
    gc.freeze()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rankbench.rank")
    by_hand = parser.add_argument_group("in place of the environment")
    for name in _PLACE:
        by_hand.add_argument(f"--{name}", type=int)
    by_hand.add_argument("--init-method", metavar="URL", default="env://")
    parser.add_argument("spec", type=Path)
    arguments = parser.parse_args()
    given = [getattr(arguments, name.replace("-", "_")) for name in _PLACE]
    place = None
    if given != [None] * len(given):
        if None in given:
            parser.error(f"{', '.join(f'--{name}' for name in _PLACE)}: give all")
        rank, size, local_rank, local_size = given
        place = Place(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            node=rank // local_size,
        )
    run_rank(arguments.spec, place=place, init_method=arguments.init_method)


_PLACE = ("rank", "world-size", "local-rank", "local-world-size")

if __name__ == "__main__":
    main()
