#!/usr/bin/env python3
"""A pretend cluster: a real Slurm over hosts that are namespaces of this machine.

Needs root. docs/pretend-cluster.md tells more.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pretend_cluster import Cluster, slurm_environment
from pretend_down import down
from pretend_host import PretendError
from pretend_up import up

STATE = "PRETEND_CLUSTER"


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(description=__doc__)
    whole.add_argument(
        "--state",
        type=Path,
        default=os.environ.get(STATE),
        metavar="FOLDER",
        help=f"of the cluster; default: ${STATE}, or for `up` a temporary one",
    )
    commands = whole.add_subparsers(dest="command", required=True)

    start = commands.add_parser("up", help="bring a cluster up")
    start.add_argument("--hosts", type=int, default=4)
    start.add_argument("--cpus", type=int, default=2, help="of each host, for Slurm")
    start.add_argument("--user", default="rankbench", help="whose commands `run` runs")
    start.add_argument(
        "--share",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="below /tmp, for the hosts to see too",
    )
    commands.add_parser("down", help="take it down, and all that still runs on it")

    run = commands.add_parser(
        "run", help="run a command as the user, on the login side"
    )
    run.add_argument("argv", nargs=argparse.REMAINDER)
    on_host = commands.add_parser("exec", help="run a command on a host, as root")
    on_host.add_argument("host")
    on_host.add_argument("argv", nargs=argparse.REMAINDER)
    for name, what in {
        "stop": "end a host's slurmd",
        "start": "start a host's slurmd",
        "cut": "cut a host's link",
        "mend": "a host's link as it was at first",
        "slow": "limit a host's link",
    }.items():
        one = commands.add_parser(name, help=what)
        one.add_argument("host")
        if name == "slow":
            one.add_argument("rate", help="either way, as tc writes it: 100mbit")
    return whole


def main() -> None:
    given = parser().parse_args()
    if given.command == "up":
        cluster = up(
            given.state,
            hosts=given.hosts,
            cpus=given.cpus,
            user=given.user,
            shared=given.share,
        )
        print(f"export {STATE}={cluster.state}")
        return
    if given.state is None:
        raise PretendError(f"which cluster? Give --state, or set {STATE}")
    if given.command == "down":
        down(given.state)
    else:
        command_of(Cluster.load(given.state.resolve()), given)


def command_of(cluster: Cluster, given: argparse.Namespace) -> None:
    if given.command == "run":
        replace_by(cluster.command(given.argv))
    host = cluster.host(given.host)
    match given.command:
        case "exec":
            os.environ.update(slurm_environment(cluster.state))
            replace_by(host.command(given.argv))
        case "stop":
            cluster.stop(host.name)
        case "start":
            cluster.start(host.name)
        case "cut":
            host.cut()
        case "mend":
            host.mend()
        case "slow":
            host.slow(given.rate)


def replace_by(command: list[str]) -> None:
    """Become that command: its input, output and exit status are this program's."""
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    try:
        main()
    except PretendError as error:
        sys.exit(f"pretend.py: {error}")
