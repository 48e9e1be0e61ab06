"""The resources of a job, and the command that the Slurm plugin makes of them."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from factories import backends_of, make_site, read_pairs, read_plan_of
from rankbench.launch.hosts.slurm_resources import (
    OVERHEAD,
    Resources,
    check_resources,
    job_resources,
    job_seconds,
    plan_array,
)
from rankbench.matrix.site import Site
from rankbench.snakemake_fixes import add_options

pytestmark = pytest.mark.unit

CPU_SITE = make_site(scheduler="slurm", nodes=2, cores=8, partition="cpu")
GPU_SITE = make_site(
    scheduler="slurm",
    nodes=2,
    cores=32,
    device="cuda",
    cuda_devices=4,
    backends=backends_of(mpi=None),
    partition="gpu",
    account="physics",
    qos="short",
    gres="gpu:a100",
    memory=240000,
)


def resources_of(
    folder: Path,
    site: Site,
    topology: str,
    more: str = "",
    strategy: str = "ddp",
    seconds: float = 600,
) -> Resources:
    """The resources for the only cell of an experiment."""
    text = f"name: x\nstrategy: {strategy}\ntopology: {topology}\n{more}"
    (planned,) = read_plan_of(folder, text, site).feasible
    return job_resources([(planned.cell, planned.shape)], site, seconds=seconds)


class Asked(dict[str, Any]):
    """Resources as the plugin reads them, in either way."""

    __getattr__ = dict.__getitem__


def sbatch_line(resources: Resources) -> str:
    """The sbatch command of the plugin's own code, without the paths of a run."""
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm", reason="make venv")
    submit = plugin.submit_string
    # This repeats what the plugin's executor does, whose own methods call Slurm.
    asked = {"account": "slurm_account", "partition": "slurm_partition"}
    flags = {"account": "-A", "partition": "-p"}
    params: dict[str, Any] = {
        "run_uuid": "RUN",
        "slurm_logfile": "LOG",
        "comment_str": "CELL",
        "workdir": None,
        **{
            key: f"{flags[key]} {resources[name]}" if name in resources else ""
            for key, name in asked.items()
        },
    }
    job = SimpleNamespace(resources=Asked(resources), threads=1)
    line = submit.get_submit_command(job, params) + add_options(job)
    begin = "sbatch --parsable --job-name RUN --output LOG --export=ALL --comment CELL "
    assert line.startswith(begin)
    return " ".join(line.removeprefix(begin).split())


@pytest.mark.parametrize(("cell", "asks"), read_pairs("sbatch.txt"))
def test_sbatch_line(tmp_path, cell, asks):
    site, topology = cell.split()
    facts = {"cores": CPU_SITE, "gpus": GPU_SITE}[site]
    assert sbatch_line(resources_of(tmp_path, facts, topology)) == asks


def test_the_check_looks_where_cells_run(tmp_path):
    text = "name: x\nstrategy: ddp\npartition: big"
    cells = read_plan_of(tmp_path, text, CPU_SITE).feasible
    site = {**CPU_SITE}
    assert check_resources(site, cells)["slurm_partition"] == "big"
    assert check_resources(site, [])["slurm_partition"] == "cpu"


@pytest.mark.parametrize(
    ("site", "cell", "asked"),
    [
        # With more ranks than cores or GPUs, ranks share those of a host.
        (CPU_SITE, "ddp 2x10", {"tasks": 16, "cpus_per_task": 1}),
        # One process has all GPUs of its cell.
        (
            GPU_SITE,
            "dp 1x4",
            {
                "tasks": 1,
                "cpus_per_task": 32,
                "sbatch": "--ntasks-per-node=1 --exclusive --gres=gpu:a100:4",
            },
        ),
        (
            GPU_SITE,
            "ddp 1x8",
            {
                "tasks": 8,
                "cpus_per_task": 4,
                "sbatch": "--ntasks-per-node=8 --exclusive --gres=gpu:a100:4",
            },
        ),
    ],
)
def test_cells_ask_for_what_there_is(tmp_path, site, cell, asked):
    strategy, topology = cell.split()
    found = resources_of(tmp_path, site, topology, "oversubscribe: true", strategy)
    assert asked.items() <= found.items()


@pytest.mark.parametrize(
    ("topology", "exclusive", "cores"),
    [("1x1", False, 8), ("1x2", False, 8), ("1x1", True, 32)],
)
def test_some_gpus_of_a_shared_host_get_their_share_of_its_cores(
    tmp_path, topology, exclusive, cores
):
    """Sites limit the cores of a GPU. A host of 32 cores has four GPUs."""
    site = {**GPU_SITE, "exclusive": exclusive}
    asked = resources_of(tmp_path, site, topology)
    assert asked["cpus_per_task"] == cores
    assert ("--exclusive" in sbatch_line(asked)) == exclusive


def array_of(tmp_path: Path, site: Site, topology: str):
    """The job array of the only cell of an experiment."""
    text = f"name: x\nstrategy: ddp\ntopology: {topology}\nstart_within: 60"
    plan = read_plan_of(tmp_path, text, site)
    return plan_array(plan, plan.feasible[0])


def test_each_host_of_a_job_array_is_a_job_of_its_own(tmp_path):
    request = array_of(tmp_path, {**GPU_SITE, "nodes": 3}, "3x2")
    assert (request.tasks, request.start_within) == (3, 60)
    assert " ".join(request.options) == (
        "--cpus-per-task=32 --time=14 --mem=240000 --partition=gpu --account=physics"
        " --qos=short --nodes=1 --ntasks=1 --job-name=rankbench --no-requeue"
        " --comment=rule_job_wildcards_x_ddp.gloo.3x2.convnet.digits"
        " --exclusive --gres=gpu:a100:2"
    )


@pytest.mark.parametrize(
    ("facts", "asks"),
    [
        (
            {"sbatch": {"constraint": "a100&ib", "switches": 1, "spread-job": True}},
            " --exclusive --gres=gpu:a100:2 '--constraint=a100&ib' --switches=1"
            " --spread-job",
        ),
        ({"gpus_per_node": True}, " --exclusive --gpus-per-node=a100:2"),
        ({"gpus_per_node": True, "gres": "gpu"}, " --exclusive --gpus-per-node=2"),
    ],
)
def test_options_of_the_site_are_in_every_job(tmp_path, facts, asks):
    site = {**GPU_SITE, **facts}
    assert sbatch_line(resources_of(tmp_path, site, "1x2")).endswith(
        f" --ntasks-per-node=2{asks}"
    )
    array = array_of(tmp_path, site, "1x2")
    # The program that submits an array uses no shell.
    assert list(array.options)[-len(asks.split()) :] == shlex.split(asks)


def test_a_cell_may_name_its_partition(tmp_path):
    asked = resources_of(tmp_path, GPU_SITE, "1x2", "partition: h200")
    assert " -p h200 " in sbatch_line(asked)
    text = "name: x\nstrategy: ddp\npartition: h200\n"
    plan = read_plan_of(tmp_path, text, GPU_SITE)
    array = plan_array(plan, plan.feasible[0])
    assert "--partition=h200" in array.options


def test_the_plugin_leaves_the_supervisor_in_the_batch_step(tmp_path):
    """The resource must exist even if it is empty (see job_resources)."""
    assert resources_of(tmp_path, CPU_SITE, "1x1")["mpi"] == ""
    assert resources_of(tmp_path, CPU_SITE, "2x1")["mpi"] == "srun"
    # Nothing is asked of a machine without Slurm.
    assert resources_of(tmp_path, make_site(), "1x2") == {"mem_mb": 0}


@pytest.mark.parametrize(
    ("launches", "mean", "seconds"),
    [
        (6, None, 6 * 600),
        # Six launches of 20 s with a margin of one half, and one launch that reaches
        # its limit.
        (6, 20.0, 180 + 600),
        # Known durations never make the limit longer than the time limits of all
        # launches.
        (6, 500.0, 6 * 600),
    ],
)
def test_time_comes_from_history_where_there_is_one(launches, mean, seconds):
    found = job_seconds([(launches, mean)], time_limit=600)
    assert found == seconds + OVERHEAD


def test_time_is_in_whole_minutes(tmp_path):
    asked = resources_of(tmp_path, CPU_SITE, "1x1", seconds=61)
    assert asked["runtime"] == 2
