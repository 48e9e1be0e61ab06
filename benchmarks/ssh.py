"""Overhead of launches over hosts by ssh, compared with the same commands by hand.

    sudo .venv/bin/python benchmarks/ssh.py         # needs an idle machine

It measures a cell of two hosts, on a pretend cluster without Slurm
(docs/pretend-cluster.md), in turn by `rankbench run` and by one ssh command for each
host. It compares the time of a step, and the time from the start of the launch to the
end of its ranks. Then it looks how long it takes to find that a host lacks nothing.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pairs import median_of, report
from pretend_login import USER, Desk, down, give, make_desk, up

from cluster import step_seconds, write_spec_like

NAME = "cost"
EXPERIMENT = f"""
name: {NAME}
strategy: ddp
topology: 2x1
model: convnet
data: synthetic
batch_size: 32
launches: 1
steps: {{steps}}
gate: false
"""
CELL_GLOB = f"results/{NAME}/records/*/*/*/record.json"
# How long it takes until hosts are connected, locked, and lack nothing.
CONNECT = """
import sys, time
from pathlib import Path
from rankbench.launch.hosts.base import Needs, Waiting
from rankbench.launch.hosts.ssh import SshHosts, bring
from rankbench.launch.job.provenance import rank_code_hash
from rankbench.launch_spec import SOURCE
from rankbench.record import read_json
site = read_json(Path("results/cost/plan.json"))["site"]
data = Path("data").resolve()
needs = Needs(source=SOURCE, code=rank_code_hash(), data_dir=data,
              data=[data / "digits.npz"], native=True)
say = lambda line: print(line, file=sys.stderr)
begun = time.monotonic()
nodes = len(site["hosts"])
with SshHosts.open(site, nodes, needs, Waiting(say, lambda: None)) as found:
    print(time.monotonic() - begun)
    for session in found.sessions:
        begun = time.monotonic()
        bring(session, needs, say)
        print(time.monotonic() - begun)
"""


@contextmanager
def desks() -> Iterator[tuple[Desk, Desk]]:
    """Two desks: one whose files all hosts see, and one that copies."""
    with tempfile.TemporaryDirectory(prefix="rankbench-ssh-") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        prepare = [sys.executable, "-m", "rankbench.rank.data.prepare", "digits"]
        subprocess.run([*prepare, "--root", name], check=True, capture_output=True)
        shared = [folder, Path(sys.prefix)]
        cluster = up(folder / "cluster", user=USER, shared=shared, slurm=False)
        try:
            digits = folder / "digits.npz"
            sees = make_desk(cluster, "node4", digits, at=folder / "project")
            yield sees, make_desk(cluster, "node3", digits)
        finally:
            down(cluster.state)


def by_rankbench(desk: Desk, *options: str) -> dict[str, Any]:
    """Measure the cell once more; its record."""
    experiment = desk.experiment(NAME)
    command = ("rerun", *experiment, *options) if options else ("run", *experiment)
    desk.rankbench(*command, *(() if options else ("--no-plots",)))
    paths = desk.project.root.glob(CELL_GLOB)
    path = max(paths, key=lambda one: one.stat().st_mtime)
    directory = desk.root / path.parent.relative_to(desk.project.root)
    return {**json.loads(path.read_text()), "directory": str(directory)}


def by_hand(desk: Desk, like: dict[str, Any], number: int) -> tuple[float, float]:
    """Run the same launch by ssh.

    Returns:
        The seconds of a step, and the seconds until all commands end.
    """
    folder = desk.root / f"bare-{number}"
    work = write_spec_like(like, folder).work
    give(folder)
    launcher = like["launcher"]
    argv = launcher["argv"][launcher["argv"].index("--") + 1 :]
    argv = [part.replace(like["directory"], str(folder)) for part in argv]
    lines = []
    for node, host in enumerate(launcher["hosts"]):
        env = {**launcher["env"], "RANKBENCH_NODE": str(node)}
        words = ["env", *(f"{key}={value}" for key, value in env.items()), *argv]
        lines.append(shlex.join(["ssh", host, shlex.join(words)]) + " &")
    begun = time.monotonic()
    done = subprocess.run(
        desk.command("sh", "-c", "\n".join([*lines, "wait"])),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - begun
    ranks = [json.loads(path.read_text()) for path in work.glob("rank*.json")]
    if [rank for rank in ranks if "rank" not in rank] or len(ranks) != 2:
        raise RuntimeError(f"the launch by hand failed: {done.stdout}{done.stderr}")
    window = max(rank["rank"]["window_s"] for rank in ranks)
    return window / like["steps"], seconds


def compare(desk: Desk, pairs: int) -> None:
    """Measure pairs in alternating order, after a first pair that warms the caches."""
    like = by_rankbench(desk)
    by_hand(desk, like, 0)
    steps: dict[str, list[float]] = {"rankbench": [], "hand": []}
    beyond = []
    for pair in range(1, pairs + 1):
        if pair % 2:
            step, alone = by_hand(desk, like, pair)
        record = by_rankbench(desk, like["cell_id"])
        if not pair % 2:
            step, alone = by_hand(desk, like, pair)
        steps["rankbench"].append(step_seconds(record) * 1e3)
        steps["hand"].append(step * 1e3)
        beyond.append(record["seconds"]["launch"] - alone)
        ours, theirs = (values[-1] for values in steps.values())
        print(
            f"pair {pair}: step {ours:.1f} over {theirs:.1f} ms, launch "
            f"{beyond[-1]:+.2f} s",
            flush=True,
        )
    report("step, rankbench over ssh", steps["rankbench"], steps["hand"], unit="ms")
    middle, low, high = median_of(beyond)
    print(
        f"a launch beyond the one by hand: {middle:.2f} s [{low:.2f}, {high:.2f}], "
        f"n = {len(beyond)}"
    )


def look_again(desk: Desk, times: int) -> None:
    """Print how long it takes to connect, and to find that nothing is to be copied."""
    by_rankbench(desk)
    rows = []
    for _ in range(times):
        command = desk.command(sys.executable, "-c", CONNECT)
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append([float(word) for word in said.stdout.split()])
    connected, *copies = zip(*rows, strict=True)
    print(f"two hosts connected, locked, compared: {median_of(connected)[0]:.2f} s")
    each = [seconds for host in copies for seconds in host]
    middle, low, high = median_of(each)
    print(f"nothing to copy, a host: {middle:.2f} s [{low:.2f}, {high:.2f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=200, help="steps of each launch")
    arguments = parser.parse_args()
    text = EXPERIMENT.format(steps=arguments.steps)
    with desks() as (sees, copies):
        for desk in (sees, copies):
            desk.project.experiment(text, f"{NAME}.yaml")
        compare(sees, arguments.pairs)
        look_again(copies, 6)


if __name__ == "__main__":
    main()
