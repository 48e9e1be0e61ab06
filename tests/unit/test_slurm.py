"""Questions to Slurm, answered by replaced programs; and jobs in its queue."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from factories import read_pairs
from rankbench.launch.hosts import slurm
from rankbench.launch.hosts import slurm_job_array as job_array
from rankbench.launch.hosts.base import CellJob
from rankbench.launch.hosts.slurm import (
    SlurmJob,
    is_up,
    parse_queue,
    read_states,
    why_job_ended,
)
from rankbench.launch.job.claim import Owner
from rankbench.project.start import wait_for_lost_jobs

pytestmark = pytest.mark.unit

Install = Callable[[str, str], Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Replaces a program of Slurm, and keeps its calls."""
    monkeypatch.setenv("PATH", str(tmp_path))
    calls = tmp_path / "calls"
    calls.touch()

    def install(name: str, script: str) -> Path:
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho {name} "$@" >> {calls}\n{script}\n')
        path.chmod(0o755)
        return calls

    return install


def in_job(monkeypatch: pytest.MonkeyPatch, tasks: str | None = None) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-3]")
    monkeypatch.delenv("SLURM_TASKS_PER_NODE", raising=False)
    if tasks:
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", tasks)


THREE = "echo node1; echo node2; echo node3"


@pytest.mark.parametrize("tasks", [None, "2(x3)", "2,2", "2(x2),2"])
def test_hosts_of_the_job(monkeypatch, program, tasks):
    in_job(monkeypatch, tasks)
    calls = program("scontrol", THREE)
    assert SlurmJob.find(2) == SlurmJob("4711", ("node1", "node2", "node3"))
    assert calls.read_text() == "scontrol show hostnames node[1-3]\n"


@pytest.mark.parametrize(
    ("tasks", "script", "complaint"),
    [
        *(
            (tasks, THREE, rf"{re.escape(tasks)} tasks .* equally many")
            for tasks in ("2(x2),1", "1,2", "4,2(x7)")
        ),
        (None, "echo node1", "2 hosts are needed, job 4711 has 1"),
        (None, None, "scontrol does not list the hosts"),
    ],
)
def test_a_job_whose_hosts_cannot_be_used(
    monkeypatch, program, tasks, script, complaint
):
    in_job(monkeypatch, tasks)
    if script:
        program("scontrol", script)
    with pytest.raises(ValueError, match=complaint):
        SlurmJob.find(2)
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(ValueError, match=r"no Slurm job: .*`salloc --nodes=2"):
        SlurmJob.find(2)


PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL Default=YES MaxNodes=2 MaxTime=00:30:00 MinNodes=0
PartitionName=gpu AllowGroups=ALL Default=NO MaxTime=2-01:00:00 MinNodes=0
PartitionName=long AllowGroups=ALL Default=NO MaxTime=UNLIMITED MinNodes=0
"""


def test_partitions_and_their_time_limits(tmp_path, program):
    (tmp_path / "said").write_text(PARTITIONS)
    program("scontrol", f"while read line; do echo $line; done < {tmp_path}/said")
    limits = {None: 30, "cpu": 30, "gpu": 2940, "long": math.inf}
    assert SlurmJob.limits() == limits
    program("scontrol", "exit 1")
    assert SlurmJob.limits() == {}


def test_slurms_commands_start_without_the_users_filters(
    program, tmp_path, monkeypatch
):
    """SQUEUE_STATES=PD hid a running job, whose cells were submitted again."""
    monkeypatch.setenv("SQUEUE_STATES", "PD")
    lines = f"7|RUNNING|node1|None|{tmp_path}|rule_job_wildcards_x_c"
    program("squeue", f"[ -n \"$SQUEUE_STATES\" ] || printf '7\\n{lines}\\n'")
    assert [job.id for job in SlurmJob.read_queue("x", tmp_path, {"c": ["c"]})] == ["7"]
    assert not SlurmJob.has_ended("7")


def test_the_hosts_of_a_small_cell_rotate():
    job = SlurmJob("7", ("a", "b", "c"))
    one = [*(job.choose(1, turn).names for turn in range(4))]
    assert one == [("a",), ("b",), ("c",), ("a",)]
    # In Slurm's order, in which srun numbers its tasks.
    assert job.choose(2, 2).names == ("a", "c")
    assert job.choose(3, 1) == job


def test_what_a_launch_has_left_is_ended_and_waited_for(program, tmp_path):
    """Steps of others stay: those of the user, and the one that the job itself is."""
    calls = program(
        "squeue",
        f"read n < {tmp_path}/n; echo $((n - 1)) > {tmp_path}/n; echo 7.batch batch;"
        " echo 7.1 bash; [ $n -le 0 ] || echo 7.3 rankbench.launch",
    )
    (tmp_path / "n").write_text("3\n")
    program("scancel", "")
    SlurmJob("7", ()).end_steps()
    asked = calls.read_text().splitlines()
    assert asked.count("scancel --signal=KILL 7.3") == 1
    assert len(asked) == 5


@pytest.mark.parametrize(("said", "why"), read_pairs("ended_jobs.txt"))
def test_why_a_job_ends(program, said, why):
    program("scontrol", f"echo JobId=7 UserId=me {said} Requeue=0")
    end = SlurmJob("7", ()).why_ended()
    found = f"{end.cause}: {end.what}" if end else "nothing"
    assert found.startswith(why)


@pytest.mark.parametrize(
    ("state", "lost"),
    [
        ("allocated", None),
        ("allocated*", "node2"),
        ("down", "node2"),
        ("down*", "node2"),
    ],
)
def test_a_host_that_does_not_answer(program, state, lost):
    calls = program("sinfo", f"echo 'node1 mixed'; echo 'node2 {state}'")
    assert SlurmJob("7", ("node1", "node2")).find_lost() == lost
    assert "--nodes=node1,node2" in calls.read_text()


def test_hosts_that_are_not_up_have_slurms_reason(program):
    lines = "node1|idle~|none", "node2|mixed|none", "node3|drained|fan|noise"
    calls = program("sinfo", f"printf '%s\\n' {' '.join(map(repr, lines))}")
    hosts = SlurmJob.list_hosts({"partition": "cpu"})
    assert [*hosts.values()] == [None, None, "Slurm says drained on node3: fan|noise"]
    assert "--partition=cpu" in calls.read_text()


@pytest.mark.parametrize(
    ("state", "up"),
    [
        ("MIXED+PLANNED", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("idle~", True),
        ("allocated$", False),
        ("allocated", True),
        ("idle*", False),
        ("DOWN*+DRAIN", False),
        ("IDLE+NOT_RESPONDING", False),
        ("mixed+drain", False),
        ("maint", False),
        ("inval", False),
    ],
)
def test_states_of_hosts(state, up):
    assert is_up(state) is up


def test_states_of_all_jobs(program):
    program("squeue", "printf '7|RUNNING\\n8|COMPLETED\\n'")
    assert read_states() == {"7": "RUNNING", "8": "COMPLETED"}
    program("squeue", "exit 1")
    assert read_states() is None


def test_what_is_known_of_a_job_that_has_ended(program):
    program("scontrol", "exit 1")
    assert SlurmJob("7", ()).why_ended() is None
    assert why_job_ended("7") == "job 7 ended"
    # With accounting.
    program("sacct", "echo 'CANCELLED by 1000|node2'")
    cancelled = "job 7: its Slurm job was cancelled; Slurm says CANCELLED on node2"
    assert why_job_ended("7") == cancelled
    program("sacct", "echo 'CANCELLED by 1000|None assigned'")
    assert why_job_ended("7").endswith("Slurm says CANCELLED")
    program("scontrol", "echo JobId=7 JobState=NODE_FAIL Reason=None BatchHost=node1")
    assert why_job_ended("7").endswith("Slurm says NODE_FAIL on node1")


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("echo 6; echo 7", False),
        ("echo 70", True),
        ("true", True),
        ("echo slurm_load_jobs error: Unable to contact controller >&2; exit 1", False),
        (None, False),  # Without Slurm, no job is known to be over.
    ],
)
def test_the_owner_of_a_claim_lives_with_its_job(program, tmp_path, script, ended):
    if script:
        program("squeue", script)
    assert SlurmJob.has_ended("7") == ended
    (tmp_path / "work").mkdir()
    (tmp_path / "work/heartbeat").touch()
    owner = Owner(host="elsewhere", boot="", pid=1, started=1, job_id="7")
    assert owner.is_alive(tmp_path) != ended


def test_a_job_array_does_not_wait_for_a_slurm_that_hangs(
    program, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(slurm, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(job_array, "SUBMIT_SECONDS", 0.2)
    monkeypatch.setattr(job_array, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(job_array, "GONE_AFTER", 0.5)
    for name in ("sbatch", "scontrol", "scancel"):
        program(name, "exec /bin/sleep 600")
    begun = time.monotonic()
    assert job_array.submit(2, tmp_path, [], ["true"]) is None
    assert "sbatch has not answered for 0.2 s" in capsys.readouterr().out
    assert job_array.look("7") is None
    job_array.cancel("7")
    assert time.monotonic() - begun < 300


def test_a_job_array_that_slurm_refuses_says_why(program, tmp_path, capsys):
    program("sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    assert job_array.submit(2, tmp_path, [], ["true"]) is None
    assert "invalid partition" in capsys.readouterr().out
    program("sbatch", "echo '7;cluster'")
    assert job_array.submit(2, tmp_path, [], ["true"]) == "7"


SQUEUE = """\
CLUSTER: a
7|RUNNING|node[1-2]|None|/p|rule_job_wildcards_x_ddp.gloo.2x1
8|PENDING||Resources|/p|rule_job_wildcards_x_ddp.gloo.1x1
9|RUNNING|node3|None|/elsewhere|rule_job_wildcards_x_ddp.gloo.1x1
10|RUNNING|node3|None|/p|rule_job_wildcards_y_ddp.gloo.1x1
11|RUNNING|node3|None|/p|rule_hosts
12|RUNNING|node3|None|/p|(null)
13|PENDING||Priority|/p|mine|with|bars
"""
RUNNING = CellJob("7", "ddp.gloo.2x1", "RUNNING", "node[1-2]", "None")
QUEUED = CellJob("8", "ddp.gloo.1x1", "PENDING", "", "Resources")


def test_jobs_of_this_experiment_in_this_folder():
    cells = ("ddp.gloo.1x1", "ddp.gloo.2x1", "single.none.1x1")
    jobs = parse_queue(SQUEUE, "x", "/p", {cell: [cell] for cell in cells})
    assert jobs == [RUNNING, QUEUED]
    said = ["job 7 running on node[1-2]", "job 8 queued (Resources)"]
    assert [job.describe() for job in jobs] == said
    assert parse_queue(SQUEUE, "x", "/p", {"ddp.gloo.1x2": ["ddp.gloo.1x2"]}) == []


def test_a_shared_job_is_that_of_each_of_its_cells():
    line = "14|RUNNING|node[1-4]|None|/p|rule_job_wildcards_x_experiment"
    shared = {"experiment": ["ddp.gloo.2x1", "ddp.gloo.4x1"]}
    jobs = parse_queue(line, "x", "/p", shared)
    assert [(job.id, job.cell) for job in jobs] == [
        ("14", "ddp.gloo.2x1"),
        ("14", "ddp.gloo.4x1"),
    ]
    assert parse_queue(line, "y", "/p", shared) == []


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo no controller >&2; exit 1", "squeue fails: no controller"),
        (None, "squeue is not here: .*login node"),
        ("exec /bin/sleep 5", "has not answered for 0.2 s"),
    ],
)
def test_a_queue_that_does_not_answer_is_told(
    program, tmp_path, monkeypatch, script, complaint
):
    if script is not None:
        program("squeue", script)
    monkeypatch.setattr(slurm, "ASK_SECONDS", 0.2 if "sleep" in f"{script}" else 20)
    with pytest.raises(ValueError, match=complaint):
        SlurmJob.read_queue("x", tmp_path, {"c": ["c"]})


def test_waiting_goes_on_until_no_job_is_left():
    # None stands for a Slurm that does not answer for a while.
    answers: Iterator[list[CellJob] | None] = iter(
        [[RUNNING, QUEUED], None, [QUEUED], []]
    )

    def look() -> list[CellJob]:
        answer = next(answers)
        if answer is None:
            raise ValueError("squeue fails: try again")
        return answer

    said: list[str] = []
    assert wait_for_lost_jobs(look, say=said.append, every=0)
    assert said[0].startswith("2 jobs of an earlier run are still in the queue")
    assert said[1:] == [
        "  jobs that run: 1, jobs that wait (Resources): 1",
        "  squeue fails: try again",
        "  jobs that wait (Resources): 1",
    ]
    assert not wait_for_lost_jobs(list, say=pytest.fail)
