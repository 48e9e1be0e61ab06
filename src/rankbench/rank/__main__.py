"""One rank of a launch: ``python -m rankbench.rank SPEC``, started by a launcher.

The rank reads its place among the ranks from the environment. It chooses its cores
before it imports torch, because torch sizes its thread pools by the cores of the
process.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import os
import sys
from pathlib import Path

from rankbench import environ
from rankbench.launch_spec import LaunchSpec
from rankbench.rank import variants
from rankbench.rank.world import lifeline


def run_rank(spec_path: Path, init_method: str = "env://") -> None:
    """Run a rank from start to end; a rank that fails ends the process.

    Args:
        spec_path: JSON file that describes the launch.
        init_method: URL at which the ranks meet.
    """
    spec = LaunchSpec.read(spec_path)
    place = environ.read_place()
    environ.restore_devices()
    # All output of this process, also that of libraries, goes to its own log.
    path = spec.log(place.rank)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    lifeline.log_stacks()
    report = functools.partial(lifeline.report_failure, spec.work, place.rank)
    progress = lifeline.Progress(spec.progress, place.rank)
    lifeline.watch_heartbeat(spec.heartbeat, spec.heartbeat_grace, report, progress)
    for kind, file in spec.own.items():
        variants.own[kind, getattr(spec.cell, kind)] = file
    affinity = os.sched_getaffinity(0)
    if cores := spec.shape.cores_per_rank:
        environ.pin(
            environ.choose_cores(place.local_rank, cores, environ.physical_cores())
        )
    name = spec.purpose if spec.cell.script is None else "script"
    # A quarter of the time of an import is a vain look for garbage.
    gc.disable()
    try:
        # Imports torch, inside `try` so that a failing import is reported as well.
        purpose = importlib.import_module(f"rankbench.rank.purposes.{name}")
        if spec.cell.script is None:
            # The first optimizer does.
            importlib.import_module("torch._dynamo")
        gc.freeze()
        gc.enable()
        duty = lifeline.Duty(
            spec=spec,
            place=place,
            init_method=init_method,
            affinity=affinity,
            progress=progress,
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
    parser.add_argument("--init-method", metavar="URL", default="env://")
    parser.add_argument("spec", type=Path)
    arguments = parser.parse_args()
    run_rank(arguments.spec, arguments.init_method)


if __name__ == "__main__":
    main()
