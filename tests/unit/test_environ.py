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


def test_job_id() -> None:
    assert job_id({"SLURM_JOB_ID": "4711"}) == "4711"
    assert job_id({}) is None
