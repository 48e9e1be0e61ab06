"""Runs the command of a launcher that does not tell torch's ranks where to meet.

It sets the address and the port for `env://`. In the command it replaces `{port}` by
that port and `{node}` by the number of this host. It removes Slurm's variables: mpirun
would ask Slurm for more tasks than this one, and ranks of other launchers would mistake
this task for their place.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rankbench.environ import check_name, keep_devices, read_node, without_job
from rankbench.launch_spec import LOOPBACK, LaunchSpec
from rankbench.rank.world.lifeline import report_failure
from rankbench.rank.world.places import find_free_port


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rankbench.rank.world.meeting")
    parser.add_argument("--address", default=LOOPBACK)
    parser.add_argument("--port", type=int, help="default: a free port of this host")
    parser.add_argument(
        "--keep-devices",
        action="store_true",
        help="the launcher is started once on each host, and renumbers its GPUs",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    spec = Path(arguments.command[-1])
    try:
        check_name(arguments.address)
    except OSError as error:
        # The failure of the launcher is reported as that of this host's first rank.
        first = read_node() * LaunchSpec.read(spec).shape.ranks_per_node
        report_failure(spec.parent, first, error)
        raise
    port = str(arguments.port or find_free_port())
    known = {"{port}": port, "{node}": str(read_node())}
    argv = arguments.command
    for name, value in known.items():
        argv = [word.replace(name, value) for word in argv]
    meeting = {"MASTER_ADDR": arguments.address, "MASTER_PORT": port}
    print("rendezvous:", *(f"{k}={v}" for k, v in meeting.items()), flush=True)
    kept = keep_devices() if arguments.keep_devices else {}
    os.execvpe(argv[0], argv, {**without_job(), **kept, **meeting})  # noqa: S606


if __name__ == "__main__":
    main()
