"""Jobs that Slurm refuses, and the environment of its commands."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from factories import read_pairs, read_plan_of
from rankbench.environ import for_slurm, submit_from_here
from rankbench.failures import JOB, PLAN_VARIABLE, Need, explain_failures, note_attempt
from rankbench.launch.hosts import slurm
from rankbench.launch.hosts.slurm import why_job_ended
from rankbench.launch.job.claim import make_request
from rankbench.matrix.site import check_gres
from rankbench.project.status import find_state
from rankbench.record import Layout, write_json
from rankbench.results.numbers.result_set import read
from rankbench.snakemake_fixes import explain_refusal, submit_well
from unit.synthetic import make_cell, plan_cell, write_launches, write_plan

pytestmark = pytest.mark.unit

HEAD = "SLURM sbatch failed. The error message was '{}'.\n    sbatch call:\n        x\n"


def refused(said: str) -> str:
    return HEAD.format(f"sbatch: error: {said}")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plugin, with its attributes restored afterwards; reports are kept."""
    found = pytest.importorskip("snakemake_executor_plugin_slurm", reason="make venv")
    for name in ("delete_slurm_environment", "set_gres_string"):
        monkeypatch.setattr(found, name, getattr(found, name))
    reported: list[tuple[Any, str]] = []

    def report(_: Any, info: Any, msg: str) -> None:
        reported.append((info, msg))

    for name in ("_report_job_error_threadsafe", "report_job_error"):
        monkeypatch.setattr(found.Executor, name, report)
    found.reported = reported
    return found


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A run of two cells, one of which is measured; the other has a job."""
    cells = [plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))]
    layout = write_plan(tmp_path / "results", cells)
    write_launches(layout, cells[0])
    write_json(layout.agenda, {"jobs": {"1x2": {"cells": [cells[1]["id"]]}}})
    monkeypatch.setenv(PLAN_VARIABLE, str(layout.plan))
    return layout


@pytest.mark.parametrize(("said", "remedy"), read_pairs("refused_submissions.txt"))
def test_a_refusal_has_sbatchs_words_and_a_remedy(said, remedy):
    explained = explain_refusal(refused(said))
    assert explained.startswith(said)
    assert remedy in explained
    assert "\n" not in explained
    other = "Job submission failed with exception: x"
    assert explain_refusal(f"{other}\n  more") == other


def test_the_reason_of_a_refused_job_is_in_the_rows_of_its_cells(plugin, layout):
    submit_well(layout, why_job_ended)
    job = SimpleNamespace(wildcards=SimpleNamespace(experiment="x", job="1x2"))
    message = refused("invalid partition specified: nosuch")
    plugin.Executor._report_job_error_threadsafe(
        None, SimpleNamespace(job=job), message
    )
    assert [msg for _, msg in plugin.reported] == [message]
    # Then the plugin tells of an error of the job, which has no number.
    info = SimpleNamespace(job=job, external_jobid=None)
    plugin.Executor.report_job_error(None, info, msg=message)
    measured, other = read(layout).rows
    assert measured.reason is None
    said = "its job could not be submitted: invalid partition specified: nosuch"
    assert said in str(other.reason)
    # The site's other rules have no cells.
    site_check = SimpleNamespace(job=SimpleNamespace(wildcards=SimpleNamespace()))
    plugin.Executor._report_job_error_threadsafe(None, site_check, message)


def test_why_slurm_ended_a_job_is_in_the_rows_of_its_cells(plugin, layout, monkeypatch):
    """As its supervisor is gone with its host, nobody else can say it."""
    said = "JobState=NODE_FAIL Reason=NodeDown BatchHost=node1"
    monkeypatch.setattr(slurm, "try_slurm", lambda *_: said)
    submit_well(layout, why_job_ended)
    info = SimpleNamespace(
        job=SimpleNamespace(wildcards=SimpleNamespace(job="1x2")), external_jobid="7"
    )
    plugin.Executor.report_job_error(None, info, msg="failed")
    reason = str(read(layout).rows[1].reason)
    assert reason.startswith("job 7: a host of the job failed; Slurm says NODE_FAIL")
    assert "NodeDown on node1; log: " in reason


def test_status_tells_why_a_job_was_refused(tmp_path, monkeypatch):
    plan = read_plan_of(tmp_path, "name: x\nstrategy: single\ntopology: 1x1")
    layout = Layout(tmp_path / "results")
    monkeypatch.setenv(PLAN_VARIABLE, str(layout.plan))
    (cell,) = plan.cells.values()
    note_attempt(Need(JOB, cell.id), "invalid partition", "")
    make_request(layout, cell.id, launches=2, cell_hash=cell.hash)
    state = find_state(plan, layout, cell)
    assert (state.status, state.launches) == ("not-run", "0/2")
    assert state.reason == "invalid partition"
    # A cell's id may have characters that no image has.
    need = Need(JOB, "ddp.gloo.1x2.convnet.digits.batch_size=32,lr=0.1+x")
    note_attempt(need, "no", "")
    assert explain_failures(layout, [need]) == "no"


@pytest.mark.parametrize(
    "gres", ["gpu", "gpu:a100", "gpu:a100-sxm4-80gb", "gpu:1g.10gb", "gpu:3090"]
)
def test_names_of_gpus_that_slurm_makes(plugin, layout, gres):
    check_gres(gres)
    submit_well(layout, why_job_ended)
    job = SimpleNamespace(resources={"sbatch": f"--gres={gres}:4"})
    assert shlex.split(plugin.set_gres_string(job)) == [f"--gres={gres}:4"]
    assert plugin.set_gres_string(SimpleNamespace(resources={})).strip() == ""


def test_slurms_commands_do_not_inherit_habits_of_the_user():
    users = {
        "SQUEUE_STATES": "PD",
        "SINFO_FORMAT": "%N",
        "SLURM_TIME_FORMAT": "relative",
    }
    others = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "a"}
    assert for_slurm({**users, **others}) == others
    # Jobs that are submitted within a job do not inherit its options.
    environment = {**users, **others, "SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}
    # Nor do they become arrays, or wait, because the user's own jobs do.
    for name in ("ARRAY_INX", "WAIT", "TEST_ONLY", "MEM_PER_GPU", "SIGNAL", "EXPORT"):
        environment[f"SBATCH_{name}"] = "1"
    submit_from_here(environment)
    assert environment == others


def test_the_plugin_keeps_the_name_of_slurms_configuration(plugin, layout, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/sites/slurm.conf")
    submit_well(layout, why_job_ended)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    plugin.delete_slurm_environment()
    assert os.environ["SLURM_CONF"] == "/sites/slurm.conf"
    assert "SLURM_JOB_ID" not in os.environ
