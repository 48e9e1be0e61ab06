"""The command of every launcher over every topology, as text that can be read.

`python tests/unit/test_command.py > tests/unit/commands.txt` writes it anew.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# The folder of the tests is not on the path if this file is run by hand.
sys.path.insert(0, str(Path(__file__).parents[1]))

from factories import make_cell, make_spec
from rankbench.launch.hosts.base import Hosts, ThisMachine
from rankbench.launch.hosts.slurm import SlurmJob
from rankbench.launch.hosts.slurm_job_array import JobArray
from rankbench.launch.process.command import LaunchCommand, build_command
from rankbench.launch_spec import SOURCE, LaunchSpec
from rankbench.matrix.candidate import shape_of
from rankbench.matrix.catalog import load_catalog

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).with_name("commands.txt")
TOPOLOGIES = ("1x1", "1x2", "2x1", "2x2")
IMAGE = {"name": "gloo-cpu", "file": "/images/gloo.sif", "recipe": "", "sha256": ""}
INHERITED = {"PATH": "/bin", "SLURM_JOB_ID": "4711", "SLURM_CPUS_PER_TASK": "7"}

# Launchers whose command differs if MPI connects the ranks.
BACKENDS = {
    "srun": ("gloo", "mpi"),
    "horovodrun": ("gloo", "mpi"),
    "mpirun": ("mpi",),
    "hydra": ("ccl",),
}


@dataclass(frozen=True)
class Launch:
    """A launch, and the hosts on which it runs."""

    spec: LaunchSpec
    hosts: Hosts


def make_launch(
    launcher: str,
    topology: str,
    backend: str = "gloo",
    init_method: str = "env",
    hosts: Hosts | None = None,
    **changes: Any,
) -> Launch:
    strategy = "horovod" if launcher in ("horovodrun", "hydra") else "ddp"
    cell = make_cell(
        strategy=strategy,
        launcher=launcher,
        topology=topology,
        backend=backend,
        init_method=init_method,
    )
    shape = shape_of(cell, load_catalog().strategies[strategy])
    hosts = hosts or SlurmJob("4711", ("node1", "node2")[: shape.nodes])
    usual = {
        "python": "python3" if changes.get("image") else "/venv/python",
        "hosts": hosts.names,
        "port": hosts.port(3),
        "interface": "eth0",
    }
    return Launch(make_spec(cell=cell, shape=shape, **{**usual, **changes}), hosts)


def command_of(launch: Launch) -> LaunchCommand:
    return build_command(launch.spec, launch.hosts, inherited=INHERITED)


def render(title: str, launch: Launch) -> Iterator[str]:
    command = command_of(launch)
    yield f"# {title}"
    told = {
        k: v
        for k, v in command.env.items()
        if k.startswith(("MASTER", "OMPI", "I_MPI"))
    }
    told = {k: v for k, v in told.items() if "AS_ROOT" not in k}
    if told:
        yield " ".join(f"{name}={value}" for name, value in told.items()) + " \\"
    line = shlex.join(command.argv).replace(str(SOURCE), "/src")
    line = line.replace(sys.executable, "/venv/python")
    # One line each for srun, Apptainer and the launcher, which contain each other.
    for word in ("apptainer ", "/images/gloo.sif "):
        line = line.replace(f" {word}", f" \\\n    {word}")
    yield line.replace("--export=ALL /venv", "--export=ALL \\\n    /venv")
    yield ""


def render_all() -> str:
    """All commands: on this machine without Slurm, in a job, in a job in an image."""
    lines: list[str] = []
    for launcher, needs in load_catalog().launchers.items():
        for backend in BACKENDS.get(launcher, ("gloo",)):
            name = f"{launcher} {backend}"
            if needs["per"] == "array":
                lines += render_array(launcher)
                continue
            if needs["scheduler"] is None:
                for topology in TOPOLOGIES[:2]:
                    launch = make_launch(
                        launcher, topology, backend, hosts=ThisMachine()
                    )
                    lines += render(f"{name} {topology}, no Slurm", launch)
            for topology in TOPOLOGIES:
                launch = make_launch(launcher, topology, backend)
                lines += render(f"{name} {topology}", launch)
            for topology in TOPOLOGIES:
                launch = make_launch(launcher, topology, backend, image=IMAGE)
                lines += render(f"{name} {topology}, image", launch)
    return "\n".join(lines)


def render_array(launcher: str) -> Iterator[str]:
    """Its hosts are not known, and there is no job yet."""
    for topology in TOPOLOGIES[2:]:
        array = JobArray(2, ("--nodes=1", "--exclusive"), 600)
        for where, image in (("", None), (", image", IMAGE)):
            launch = make_launch(
                launcher,
                topology,
                init_method="file",
                hosts=array,
                image=image,
            )
            yield from render(f"{launcher} {topology}{where}", launch)


def test_commands_are_the_golden_ones():
    assert render_all() == GOLDEN.read_text().rstrip("\n") + "\n"


def test_srun_gets_its_job_and_nothing_that_would_be_an_option():
    command = command_of(make_launch("srun", "2x1"))
    slurm = {k: v for k, v in command.outer.items() if k.startswith("SLURM_")}
    assert slurm == {"SLURM_JOB_ID": "4711"}
    assert not [name for name in command.env if name.startswith("SLURM_")]


def test_an_image_sees_the_scratch_the_paths_and_the_variables_of_the_site():
    scratch = Path("/scratch/rankbench.1000.4711.abc")
    site = {
        "scratch": scratch,
        "binds": (Path("/opt/efa"),),
        "env": {"FI_PROVIDER": "efa"},
    }
    binds = {f"--bind={scratch}:{scratch}", "--bind=/opt/efa:/opt/efa:ro"}
    inside = command_of(make_launch("srun", "2x1", image=IMAGE, **site))
    assert binds <= {*inside.argv}
    assert inside.outer["FI_PROVIDER"] == "efa"
    native = command_of(make_launch("srun", "2x1", **site))
    assert not binds & {*native.argv}
    assert native.env["FI_PROVIDER"] == "efa"
    assert native.outer["TMPDIR"] == inside.outer["TMPDIR"] == str(scratch)


def test_more_tasks_than_cores_are_asked_for():
    usual = command_of(make_launch("srun", "2x2"))
    shared = command_of(make_launch("srun", "2x2", marks=["oversubscribed"]))
    assert set(shared.argv) - set(usual.argv) == {"--overcommit"}


def test_launches_of_a_job_and_jobs_on_a_host_meet_at_other_ports():
    ports = {SlurmJob(job, ("a",)).port(n) for job in ("1", "2") for n in range(50)}
    assert len(ports) == 100
    assert all(20000 <= port < 32000 for port in ports)


if __name__ == "__main__":
    print(render_all().rstrip("\n"))
