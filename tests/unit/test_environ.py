"""What launchers and schedulers tell a process."""

from __future__ import annotations

import pytest

from rankbench.environ import Place, job_id, read_place

pytestmark = pytest.mark.unit

PLACE = Place(rank=5, size=8, local_rank=1, local_size=4, node=1)


def test_place_survives_the_environment() -> None:
    assert read_place(PLACE.export()) == PLACE


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_missing_variable_is_named(name: str) -> None:
    environ = PLACE.export()
    del environ[name]
    with pytest.raises(ValueError, match=f"did not set '{name}'"):
        read_place(environ)


def test_without_a_group_rank_it_is_the_first_host() -> None:
    environ = PLACE.export()
    del environ["GROUP_RANK"]
    assert read_place(environ).node == 0


@pytest.mark.parametrize(
    "environ",
    [
        {
            "OMPI_COMM_WORLD_RANK": "5",
            "OMPI_COMM_WORLD_SIZE": "8",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        },
        {
            "PMI_RANK": "5",
            "PMI_SIZE": "8",
            "MPI_LOCALRANKID": "1",
            "MPI_LOCALNRANKS": "4",
        },
        {
            "HOROVOD_RANK": "5",
            "HOROVOD_SIZE": "8",
            "HOROVOD_LOCAL_RANK": "1",
            "HOROVOD_LOCAL_SIZE": "4",
            "HOROVOD_CROSS_RANK": "1",
        },
        {
            "RANK": "5",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "LOCAL_SIZE": "4",
            "CROSS_RANK": "1",
        },
    ],
    ids=["mpirun", "hydra", "horovodrun", "deepspeed"],
)
def test_other_launchers_have_other_names(environ: dict[str, str]) -> None:
    assert read_place(environ) == PLACE


def test_ranks_of_horovodrun_are_not_those_of_an_mpirun_around_it() -> None:
    outer = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    }
    own = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1"}
    place = read_place({**outer, **own, "HOROVOD_LOCAL_SIZE": "2"})
    assert (place.rank, place.size) == (1, 2)


def test_job_id() -> None:
    assert job_id({"SLURM_JOB_ID": "4711"}) == "4711"
    assert job_id({}) is None
