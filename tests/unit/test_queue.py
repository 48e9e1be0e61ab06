"""Jobs of cells in Slurm's queue, and waiting for those of a lost run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankbench.launch.hosts import slurm as queue
from rankbench.launch.hosts.slurm import (
    CellJob,
    parse_queue,
    read_queue,
    wait_for_lost_jobs,
)

pytestmark = pytest.mark.unit

SQUEUE = """\
7|RUNNING|node[1-2]|None|/p|rule_cell_wildcards_x_ddp.gloo.2x1
8|PENDING||Resources|/p|rule_cell_wildcards_x_ddp.gloo.1x1
9|RUNNING|node3|None|/elsewhere|rule_cell_wildcards_x_ddp.gloo.1x1
10|RUNNING|node3|None|/p|rule_cell_wildcards_y_ddp.gloo.1x1
11|RUNNING|node3|None|/p|rule_hosts
12|RUNNING|node3|None|/p|(null)
13|PENDING||Priority|/p|mine|with|bars
"""
RUNNING = CellJob("7", "ddp.gloo.2x1", "RUNNING", "node[1-2]", "None")
QUEUED = CellJob("8", "ddp.gloo.1x1", "PENDING", "", "Resources")


def test_jobs_of_this_experiment_in_this_folder() -> None:
    cells = ("ddp.gloo.1x1", "ddp.gloo.2x1", "single.none.1x1")
    assert parse_queue(SQUEUE, "x", "/p", cells, {}) == [RUNNING, QUEUED]


def test_jobs_of_other_cells_are_nobodys() -> None:
    assert parse_queue(SQUEUE, "x", "/p", ["ddp.gloo.1x2"], {}) == []


def test_a_shared_job_is_that_of_each_of_its_cells() -> None:
    line = "14|RUNNING|node[1-4]|None|/p|rule_job_wildcards_x_experiment"
    shared = {"experiment": ["ddp.gloo.2x1", "ddp.gloo.4x1"]}
    jobs = parse_queue(line, "x", "/p", ["ddp.gloo.2x1"], shared)
    assert [(job.id, job.cell) for job in jobs] == [
        ("14", "ddp.gloo.2x1"),
        ("14", "ddp.gloo.4x1"),
    ]
    assert parse_queue(line, "y", "/p", [], shared) == []


def test_jobs_in_words() -> None:
    assert RUNNING.describe() == "job 7 running on node[1-2]"
    assert QUEUED.describe() == "job 8 queued (Resources)"


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo no controller >&2; exit 1", "squeue fails: no controller"),
        (None, "squeue is not here: .*login node"),
        ("sleep 5", "has not answered for 0.2 s"),
    ],
)
def test_a_queue_that_does_not_answer_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    complaint: str,
) -> None:
    if script is not None:
        program = tmp_path / "squeue"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    monkeypatch.setattr(queue, "ASK_SECONDS", 0.2 if script == "sleep 5" else 20)
    with pytest.raises(ValueError, match=complaint):
        read_queue("x", tmp_path, ["c"], {})


def test_waiting_goes_on_until_no_job_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_WAIT_SECONDS", 0)
    answers: Iterator[list[CellJob]] = iter([[RUNNING, QUEUED], [QUEUED], []])
    said: list[str] = []
    assert wait_for_lost_jobs(lambda: next(answers), say=said.append)
    assert said[0].startswith("2 jobs of an earlier run are still in the queue")
    assert said[1:] == [
        "  ddp.gloo.2x1  job 7 running on node[1-2]",
        "  ddp.gloo.1x1  job 8 queued (Resources)",
        "  ddp.gloo.2x1  job 7 has ended, 1 left",
        "  ddp.gloo.1x1  job 8 has ended, 0 left",
    ]


def test_a_slurm_that_is_away_for_a_while_ends_no_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "_WAIT_SECONDS", 0)
    answers = iter([[QUEUED], None, []])

    def look() -> list[CellJob]:
        answer = next(answers)
        if answer is None:
            raise ValueError("squeue fails: try again")
        return answer

    said: list[str] = []
    assert wait_for_lost_jobs(look, say=said.append)
    assert "  squeue fails: try again" in said
    assert said[-1] == "  ddp.gloo.1x1  job 8 has ended, 0 left"


def test_nothing_is_said_where_nothing_was_lost() -> None:
    assert not wait_for_lost_jobs(list, say=pytest.fail)
