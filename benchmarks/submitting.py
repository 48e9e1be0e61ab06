"""Load on the login side of a cluster while 1,000 cells wait in its queue.

    sudo .venv/bin/python benchmarks/submitting.py

It runs `snakemake --profile slurm_profile` on a pretend cluster
(docs/pretend-cluster.md). The partition accepts jobs but starts none, so the queue
grows up to the limit `jobs` of the profile. It reports the time until the first and the
last job is queued, the largest length of the queue, and the peak memory of Snakemake,
including its status checks.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import time
from pathlib import Path

from pretend_login import SNAKEMAKE, Login, pretend_login

NAME = "many"
EXPERIMENT = f"""
name: {NAME}
strategy: single
model: convnet
data: synthetic
learning_rate: {{rates}}
gate: false
"""
LOOKS = 3  # status checks of Snakemake to wait for when the queue is full
SECONDS_BETWEEN_LOOKS = 10  # as in the profile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, nargs="+", default=[50, 1_000], help="caps")
    arguments = parser.parse_args()
    rates = [round(0.0001 * (cell + 1), 4) for cell in range(arguments.cells)]
    text = EXPERIMENT.format(rates=rates)
    with pretend_login(text, NAME) as login:
        closed = ("PartitionName=pretend", "State=DOWN")
        login.cluster.administer("scontrol", "update", *closed)
        for cap in arguments.jobs:
            submit(login, arguments.cells, cap)


def submit(login: Login, cells: int, cap: int) -> None:
    """Let Snakemake fill the queue and check it, and print the measurements."""
    command = (*SNAKEMAKE, f"--jobs={cap}", "--config", f"experiment={NAME}.yaml")
    log = login.home / f"{cap}.log"
    begun = time.monotonic()
    with open(log, "w") as said:
        session = subprocess.Popen(
            login.cluster.command(command, login.variables),
            cwd=login.home,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        watch(login, session, begun, cells, cap)
    finally:
        session.kill()
        session.wait()
        login.run("scancel", "--user", login.cluster.user)


def watch(
    login: Login, session: subprocess.Popen[bytes], begun: float, cells: int, cap: int
) -> None:
    """Watch the queue until it is full and Snakemake has checked it, and print."""
    first = full = 0.0
    most, ends = 0, float("inf")
    while time.monotonic() < ends:
        if session.poll() is not None:
            said = (login.home / f"{cap}.log").read_text()
            raise SystemExit(f"Snakemake has ended:\n{said}")
        queued = len(login.run("squeue", "--me", "--noheader").splitlines())
        now = time.monotonic()
        most = max(most, queued)
        if queued and not first:
            first = now - begun
        if queued >= min(cells, cap) and not full:
            full = now - begun
            ends = now + LOOKS * SECONDS_BETWEEN_LOOKS + 5
        time.sleep(1)
    print(
        f"{cells} cells, at most {cap} jobs: first queued after {first:.0f} s, "
        f"{most} at most, reached after {full:.0f} s; "
        f"peak {peak_mib(session.pid):.0f} MiB"
    )


def peak_mib(pid: int) -> float:
    """Peak resident memory of a running process, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(kib) / 1024


if __name__ == "__main__":
    main()
