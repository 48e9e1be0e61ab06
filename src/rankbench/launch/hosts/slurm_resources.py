"""The resources of a cell's Slurm job, as a pure function of cell and site."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rankbench.cell import Cell, Shape
from rankbench.launch.hosts.base import Asked, Resources, hosts_of
from rankbench.launch.hosts.slurm import comment_of
from rankbench.launch.hosts.slurm_job_array import JobArray
from rankbench.plan import Plan, PlannedCell

# Seconds in addition to the launches: two starts of Snakemake, checking the image, the
# summary.
OVERHEAD = 180.0  # seconds
# The time limit allows for a launch that takes this many times the mean.
MARGIN = 1.5


def job_resources(
    cells: Sequence[tuple[Cell, Shape]], site: Mapping[str, Any], *, seconds: float
) -> Resources:
    """The resources of a job, by the names of Snakemake and its Slurm plugin.

    Args:
        cells: one or more feasible cells of one queue that it measures one after the
            other, and their processes.
        site: the site of the plan.
        seconds: how long it may take (`job_seconds`).

    Returns:
        Only `mem_mb: 0` without Slurm. Slurm decides about all other resources.
    """
    # Tasks that share cores do not request cores of their own.
    tasks = max(min(shape.ranks_per_node, site["cores"]) for _, shape in cells)
    nodes = max(shape.nodes for _, shape in cells)
    gpus = max(_gpus(cell, site) for cell, _ in cells)
    cores = max(_cores(cell, site) for cell, _ in cells)
    asked = Asked(nodes, tasks, gpus, seconds, cores, cells[0][0].queue)
    return hosts_of(site).resources(site, asked)


def check_resources(site: Mapping[str, Any], cells: Sequence[PlannedCell]) -> Resources:
    """The resources of the job that looks at all hosts of a site, as a cell would.

    Args:
        site: the site of the plan.
        cells: those that can run. It looks at the hosts of the queue of the first one.
    """
    queue = next((planned.cell.queue for planned in cells), {})
    asked = Asked(site["nodes"], 1, site["cuda_devices"], OVERHEAD, queue=queue)
    return hosts_of(site).resources(site, asked)


def ask_slurm_for(site: Mapping[str, Any], wanted: Asked) -> Resources:
    """What `SlurmJob.resources` returns."""
    tasks = wanted.nodes * wanted.tasks_per_node
    per_node = f"--ntasks-per-node={wanted.tasks_per_node}"
    options = [per_node, *_options(site, wanted)]
    asked: dict[str, int | str | None] = {
        "nodes": wanted.nodes,
        "tasks": tasks,
        "cpus_per_task": max(
            1, (wanted.cores or site["cores"]) // wanted.tasks_per_node
        ),
        # 0 requests no memory: Snakemake needs a number.
        "mem_mb": site["memory"] or 0,
        "runtime": math.ceil(wanted.seconds / 60),
        # With this resource, the plugin does not start the supervisor by srun, so that
        # the supervisor can start steps itself. With one task the plugin refuses a
        # value.
        "mpi": "srun" if tasks > 1 else "",
        "slurm_partition": wanted.queue.get("partition", site["partition"]),
        "slurm_account": site["account"],
        "qos": wanted.queue.get("qos", site["qos"]),
        # Not `slurm_extra` and `gres`: the plugin refuses options and types of GPUs
        # there that Slurm knows. `snakemake_fixes` passes this on.
        "sbatch": shlex.join(options),
    }
    return {name: value for name, value in asked.items() if value is not None}


def _options(site: Mapping[str, Any], wanted: Asked) -> list[str]:
    """The options of sbatch of a job.

    Args:
        site: the site of the plan.
        wanted: by it.
    """
    gpus = wanted.gpus
    options = ["--exclusive"] if site["exclusive"] else []
    if gpus and site["gpus_per_node"]:
        kind = site["gres"].partition(":")[2]
        options.append(f"--gpus-per-node={kind}{':' if kind else ''}{gpus}")
    elif gpus:
        options.append(f"--gres={site['gres']}:{gpus}")
    for name, value in site["sbatch"].items():
        options.append(f"--{name}" if value is True else f"--{name}={value}")
    # Of an option that is there twice, the later one counts.
    for name, own in wanted.queue.items():
        if name not in ("partition", "qos"):
            option = "nodelist" if name == "hosts" else name
            options.append(f"--{option}={own}")
    return options


# Name of a resource -> option of sbatch.
_FLAGS = {
    "cpus_per_task": "cpus-per-task",
    "runtime": "time",
    "mem_mb": "mem",
    "slurm_partition": "partition",
    "slurm_account": "account",
    "qos": "qos",
}


def plan_array(plan: Plan, planned: PlannedCell) -> JobArray:
    """The resources of a launch of a cell whose hosts are tasks of a job array."""
    cell, site, experiment = planned.cell, plan.site, plan.experiment
    # The first task may have to wait so long for the last one.
    start_within: float = experiment["start_within"]
    limit = start_within + experiment["time_limit"]
    seconds = job_seconds([(1, None)], time_limit=limit)
    gpus, cores = _gpus(cell, site), _cores(cell, site)
    wanted = Asked(1, 1, gpus, seconds, cores, cell.queue)
    asked = ask_slurm_for(site, wanted)
    options = [f"--{flag}={asked[k]}" for k, flag in _FLAGS.items() if asked.get(k)]
    options += ["--nodes=1", "--ntasks=1", "--job-name=rankbench", "--no-requeue"]
    options += [f"--comment={comment_of(plan.name, planned.id)}"]
    options += _options(site, wanted)
    return JobArray(planned.shape.nodes, tuple(options), start_within)


def job_seconds(
    launches: Iterable[tuple[int, float | None]], *, time_limit: float
) -> float:
    """The time limit of a job, in seconds.

    Args:
        launches: for each cell, how many are to come at most, and the seconds of its
            launches in earlier records; None if there are none.
        time_limit: seconds of a launch, which the supervisor holds.
    """
    launches = list(launches)
    longest = sum(count for count, _ in launches) * time_limit
    expected = sum(count * launch_seconds(mean, time_limit) for count, mean in launches)
    # One launch may still reach its time limit. The supervisor must end it and say why,
    # before Slurm does.
    return min(longest, expected + time_limit) + OVERHEAD


def launch_seconds(mean: float | None, time_limit: float) -> float:
    """Seconds that a launch may take, which took so many before."""
    return time_limit if mean is None else min(time_limit, mean * MARGIN)


def _cores(cell: Cell, site: Mapping[str, Any]) -> int:
    """Cores of each host: for some of its GPUs, their share of the cores.

    Sites limit the cores of a GPU, so that others can use the remaining GPUs.
    """
    cores: int = site["cores"]
    if cell.device != "cuda" or site["exclusive"] or not site["cuda_devices"]:
        return cores
    present: int = site["cuda_devices"]
    wanted = min(cell.size.devices_per_node, present)
    return max(1, cores * wanted // present)


def _gpus(cell: Cell, site: Mapping[str, Any]) -> int:
    """GPUs of each host, as Slurm counts them; shared ones count once."""
    if cell.device != "cuda":
        return 0
    return min(cell.size.devices_per_node, int(site["cuda_devices"]))
