"""What goes wrong with launches over two hosts: typed, in words, and nothing left."""

from __future__ import annotations

import shlex

import faulty_strategies
import pytest
from allocations import Site
from pretend_host import PretendError, wait_until

pytestmark = pytest.mark.cluster

EXPERIMENT = """
name: {name}
strategy: {strategy}
model: lenet
topology: 2x1
launcher: {launcher}
launches: 1
steps: 40
gate: false
time_limit: {limit}
"""


def plan(site: Site, strategy: str, launcher: str = "srun", limit: int = 300) -> str:
    """An experiment with a strategy that goes wrong; its cell."""
    name = f"{strategy}-{launcher}"
    source = getattr(faulty_strategies, strategy.upper())
    site.project.add_strategy(strategy, source)
    text = EXPERIMENT.format(
        name=name, strategy=strategy, launcher=launcher, limit=limit
    )
    (cell,) = site.plan(text, name)
    return cell


def in_training(site: Site, name: str, cell: str) -> bool:
    work = site.project.root / f"results/{name}/records/{cell}/1/1/work"
    try:
        data = (work / "progress").read_bytes()
    except FileNotFoundError:
        return False
    return data[0] == data[8] == 3


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("srun", "rank 1 was ended by SIGKILL"),
        ("torchrun", "rank 1 was ended by SIGKILL"),
        ("manual", "rank 1 was ended by SIGKILL"),
        # It tells how the process that it started there has ended.
        ("mpirun", "rank 1"),
    ],
)
def test_a_rank_of_another_host_that_is_killed(
    site: Site, launcher: str, words: str
) -> None:
    cell = plan(site, "killed", launcher)
    name = f"killed-{launcher}"
    site.measure(name, [cell])
    (record,) = site.records(name)[cell]
    assert record["status"] == "crashed"
    assert words in record["reason"]
    assert not site.processes()


HOLD = """
import os, socket, time
from rankbench.launch.slurm import Allocation
port = Allocation(os.environ["SLURM_JOB_ID"], ()).port(1)
with socket.create_server(("", port)):
    open("held", "w").close()
    time.sleep(600)
"""


def test_a_port_that_is_taken(site: Site) -> None:
    text = EXPERIMENT.format(name="port", strategy="ddp", launcher="srun", limit=300)
    (cell,) = site.plan(text, "port")
    hold = ("srun", "--overlap", "--nodes=1", "--nodelist=node1", site.python, "-c")
    wait = "until [ -e held ]; do sleep 0.1; done"
    site.measure("port", [cell], before=f"{shlex.join([*hold, HOLD])} & {wait}")
    first, second = site.records("port")[cell]
    assert (first["status"], first["cause"]) == ("crashed", "port")
    assert second["status"] == "ok"


def test_hosts_with_different_numbers_of_tasks_are_refused(site: Site) -> None:
    text = EXPERIMENT.format(name="uneven", strategy="ddp", launcher="srun", limit=300)
    (cell,) = site.plan(text, "uneven")
    with pytest.raises(PretendError, match="every host must have equally many"):
        site.measure("uneven", [cell], "--ntasks=3")
    assert not site.records("uneven")


@pytest.mark.parametrize("launcher", ["srun", "spawn", "mpirun"])
def test_a_time_limit_ends_the_ranks_of_all_hosts(site: Site, launcher: str) -> None:
    cell = plan(site, "hang", launcher, limit=30)
    site.measure(f"hang-{launcher}", [cell])
    (record,) = site.records(f"hang-{launcher}")[cell]
    assert record["status"] == "timeout"
    assert "time limit of 30 s reached: rank 0 in" in record["reason"]
    assert not site.processes()


def test_a_cancelled_job(site: Site) -> None:
    cell = plan(site, "slow", "torchrun")
    run = site.start("slow-torchrun", cell, "--job-name=to-be-cancelled")
    wait_until(lambda: in_training(site, "slow-torchrun", cell), 240, "training")
    site.cluster.run("scancel", "--name=to-be-cancelled")
    run.communicate(timeout=120)
    (record,) = site.records("slow-torchrun")[cell]
    assert (record["status"], record["cause"]) == ("cancelled", "user")
    assert record["reason"] == "its Slurm job was cancelled"
    wait_until(lambda: not site.processes(), 20, "nothing left")


def test_ranks_end_themselves_when_their_supervisor_is_killed(site: Site) -> None:
    cell = plan(site, "slow", "srun")
    run = site.start("slow-srun", cell)
    wait_until(lambda: in_training(site, "slow-srun", cell), 240, "training")
    site.cluster.run("pkill", "--signal=KILL", "--full", f"rankbench.launch.*{cell}")
    run.communicate(timeout=120)
    wait_until(lambda: not site.processes(), 40, "nothing left")
    site.measure("slow-srun", [cell])
    lost, again = site.records("slow-srun")[cell]
    assert (lost["status"], lost["cause"]) == ("cancelled", "owner")
    assert again["status"] == "ok"
