"""The variables by which launchers and schedulers describe a process."""

from __future__ import annotations

import pytest

from factories import read_pairs
from rankbench.environ import (
    Place,
    SlurmAllocation,
    for_srun,
    job_id,
    keep_job,
    launch_id,
    read_job,
    read_node,
    read_place,
    restore_job,
    step_id,
    without_job,
)

pytestmark = pytest.mark.unit

PLACE = Place(rank=5, size=8, local_rank=1, local_size=4, node=1)

# The variables that Slurm sets for a task of a step, and those about its job.
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_ID": "3",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "node[1-3]",
    "SLURM_TASKS_PER_NODE": "4(x3)",
    "SLURM_CPUS_PER_TASK": "2",
    "SLURM_CONF": "/etc/slurm.conf",
}


def test_place_survives_the_environment():
    environ = PLACE.export()
    assert read_place(environ) == PLACE
    # Without the rank of its group, it is on the first host.
    del environ["GROUP_RANK"]
    assert read_place(environ).node == 0


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_missing_variable_is_named(name):
    environ = PLACE.export()
    del environ[name]
    with pytest.raises(ValueError, match=f"did not set '{name}'"):
        read_place(environ)


@pytest.mark.parametrize(("launcher", "variables"), read_pairs("launchers.txt"))
def test_other_launchers_have_other_names(launcher, variables):
    environ = dict(word.split("=") for word in variables.split())
    assert read_place(environ) == PLACE


def test_ranks_of_horovodrun_are_not_those_of_an_mpirun_around_it():
    outer = {"RANK": "0", "SIZE": "1", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    outer = {f"OMPI_COMM_WORLD_{name}": value for name, value in outer.items()}
    own = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1"}
    place = read_place({**outer, **own, "HOROVOD_LOCAL_SIZE": "2"})
    assert (place.rank, place.size) == (1, 2)


def test_ranks_of_a_launcher_are_not_the_tasks_that_it_runs_in():
    assert read_place({**SRUN, **Place(0, 2, 0, 2, 0).export()}).size == 2
    ompi = {"RANK": "7", "SIZE": "8", "LOCAL_RANK": "3", "LOCAL_SIZE": "4"}
    mpirun = {f"OMPI_COMM_WORLD_{name}": value for name, value in ompi.items()}
    assert read_place({**SRUN, **mpirun}).rank == 7
    # A launcher that says half of it does not count as srun.
    with pytest.raises(ValueError, match="did not set"):
        read_place({**SRUN, "RANK": "0", "WORLD_SIZE": "2"})


def test_job():
    assert read_job(SRUN) == SlurmAllocation("4711", "node[1-3]", "4(x3)")
    assert read_job({}) is None
    assert (job_id(SRUN), job_id({})) == ("4711", None)
    assert step_id(SRUN) == "3"
    assert read_node(SRUN) == 1
    assert read_node({}) == 0
    # Each task of an array is a job with one host, which is the first of that job.
    assert read_node({"SLURM_ARRAY_TASK_ID": "2", "SLURM_NODEID": "0"}) == 2


def test_srun_finds_its_job_and_no_options():
    assert for_srun({**SRUN, "PATH": "/bin"}) == {
        "SLURM_JOB_ID": "4711",
        "SLURM_CONF": "/etc/slurm.conf",
    }


def test_without_job():
    pmi = {"PMIX_RANK": "0", "PMI_FD": "3", "SLURMD_NODENAME": "node1"}
    left = without_job({**SRUN, **pmi, "PATH": "/bin"})
    assert left == {"PATH": "/bin", "SLURM_STEP_ID": "3"}


def test_what_slurm_says_survives_a_program_that_takes_it_away():
    said = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a[1-2]", "SLURM_CONF": "/c"}
    environ = {**said, "HOME": "/h"}
    keep_job(environ)
    below = {k: v for k, v in environ.items() if k not in ("SLURM_CONF", *said)}
    below["SLURM_JOB_ID"] = "7"
    keep_job(below)  # Snakemake's inner process calls it with fewer variables.
    restore_job(below)
    assert below == {**said, "HOME": "/h"}
    # Outside of a job, nothing is kept.
    environ = {"HOME": "/h"}
    keep_job(environ)
    restore_job(environ)
    assert environ == {"HOME": "/h"}


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, "7"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"}, "7.3"),
        # Each task of an array is a job of its own.
        ({"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7"}, "7"),
    ],
)
def test_what_the_hosts_of_a_launch_have_in_common(environ, launch):
    assert launch_id(environ) == launch
