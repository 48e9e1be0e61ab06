"""What surrounds a process: its scheduler, its launcher, its CPU cores.

Only this module reads environment variables of schedulers and launchers. Standard
library only.
"""

from __future__ import annotations

import json
import locale
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

# How each Python of ours begins: a file such as random.py in the folder that it is
# started in is no module, and text is UTF-8 whatever the locale.
PYTHON = {"PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}


def begin_safely() -> None:
    """Give `PYTHON` to all children; if the locale has another encoding, begin again.

    The mode of a Python that runs cannot be changed.
    """
    os.environ |= PYTHON
    if not sys.flags.utf8_mode and locale.getencoding().upper() != "UTF-8":
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a process among the ranks of its launch."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int

    @classmethod
    def of(cls, rank: int, size: int, local_size: int) -> Place:
        """The place of a rank if ranks fill hosts one after the other."""
        node, local_rank = divmod(rank, local_size)
        return cls(rank, size, local_rank, local_size, node)

    def export(self) -> dict[str, str]:
        """The variables that torch's `env://` and its launchers use."""
        place = (self.rank, self.size, self.local_rank, self.local_size, self.node)
        return dict(zip(_TORCHRUN, map(str, place), strict=True))


# Whether the launcher keeps the store at MASTER_ADDR and MASTER_PORT, not rank 0.
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


def has_agent_store(environ: Mapping[str, str] = os.environ) -> bool:
    return environ.get(AGENT_STORE) == "True"


# The variables in which a launcher gives the place of a process: rank, size, local
# rank, local size, and the number of the host.
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
_NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
# The first launcher whose variables are set wins. horovodrun and DeepSpeed come before
# MPI, because they may run under MPI themselves. MPI does not number hosts.
_LAUNCHERS = (
    (*(f"HOROVOD_{name}" for name in _NUMBERS), "HOROVOD_CROSS_RANK"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK"),  # DeepSpeed
    _TORCHRUN,
    (*(f"OMPI_COMM_WORLD_{name}" for name in _NUMBERS), ""),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""),  # Hydra
)


def read_place(environ: Mapping[str, str] = os.environ) -> Place:
    """The place that the launcher gave to this process.

    Raises:
        ValueError: the launcher did not set any of the known variables.
    """
    given = (n for n in _LAUNCHERS if n[0] in environ and n[3] in environ)
    names = next(given, None)
    # Slurm comes last, because the launchers above may run in a Slurm step. All hosts
    # of a step have the same number of tasks.
    if names is None and "SLURM_STEP_NUM_TASKS" in environ and "RANK" not in environ:
        size = int(environ["SLURM_STEP_NUM_TASKS"])
        return Place(
            rank=int(environ["SLURM_PROCID"]),
            size=size,
            local_rank=int(environ["SLURM_LOCALID"]),
            local_size=size // int(environ["SLURM_STEP_NUM_NODES"]),
            node=read_node(environ),
        )
    *numbers, node = names or _TORCHRUN
    try:
        rank, size, local_rank, local_size = (int(environ[name]) for name in numbers)
    except KeyError as error:
        raise ValueError(f"the launcher did not set {error}") from error
    # The ranks of MPI fill hosts one after the other.
    host = int(environ.get(node, 0)) if node else rank // local_size
    return Place(rank, size, local_rank, local_size, host)


def is_task(ranks: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether each of so many ranks is a task of one Slurm step."""
    return environ.get("SLURM_STEP_NUM_TASKS") == str(ranks)


# Variables of torchrun by which a script knows that it has been launched.
_OF_TORCHRUN = ("TORCHELASTIC_", "GROUP_", "ROLE_", "MASTER_")
# What `forget_place` has taken away; set once it was given back.
_PLACE_KEPT = "RANKBENCH_PLACE"


def is_placed(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a process that has forgotten its place was begun again with it."""
    return _PLACE_KEPT in environ


def forget_place(environ: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Take away what torchrun has set, so that a script runs as by ``python SCRIPT``.

    Returns:
        The variables with which to begin again.
    """
    taken = {
        name: environ.pop(name)
        for name in list(environ)
        if name in _TORCHRUN or name.startswith(_OF_TORCHRUN)
    }
    return {**environ, **taken, _PLACE_KEPT: "1"}


# In each of these variables, the number of this host in its launch; the first one wins.
_NODE = ("SLURM_ARRAY_TASK_ID", "SLURM_NODEID", "RANKBENCH_NODE")


def read_node(environ: Mapping[str, str] = os.environ) -> int:
    """The number of this host in its launch; 0 if nothing starts several hosts."""
    return int(next((environ[name] for name in _NODE if name in environ), 0))


# These belong to a machine, its user there and its connections.
_STAYS_HERE = ("HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "_")
_STAYS_HERE_PREFIXES = ("SSH_", "XDG_", "RANKBENCH_SLURM", "RANKBENCH_NODE")


def for_hosts(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of a command that also hold on other hosts."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _STAYS_HERE and not name.startswith(_STAYS_HERE_PREFIXES)
    }


def for_ssh(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that ssh needs to find its user's settings and keys."""
    names = ("HOME", "USER", "PATH", "SSH_AUTH_SOCK")
    return {name: environ[name] for name in names if name in environ}


# DeepSpeed's launcher numbers the GPUs of a host from 0, whatever GPUs it was given.
# horovodrun gives those of the first host to all hosts.
_DEVICES, _KEPT_DEVICES = "CUDA_VISIBLE_DEVICES", "RANKBENCH_VISIBLE_DEVICES"


def keep_devices(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return a variable that no launcher changes: the GPUs of this process."""
    return {_KEPT_DEVICES: environ[_DEVICES]} if _DEVICES in environ else {}


def restore_devices(environ: MutableMapping[str, str] = os.environ) -> None:
    """Undo what a launcher did to the choice of GPUs since `keep_devices`."""
    if _KEPT_DEVICES in environ:
        environ[_DEVICES] = environ[_KEPT_DEVICES]


def meeting_host(environ: Mapping[str, str] = os.environ) -> str | None:
    """The host at which ranks meet; None if no variable names it."""
    return environ.get("MASTER_ADDR")


class SlurmAllocation(NamedTuple):
    """The Slurm job of this process.

    Attributes:
        id: number of the job.
        hosts: hosts of the job in Slurm's short form: ``node[1-3]``.
        tasks: number of tasks for each host in Slurm's short form: ``2(x3)``.
    """

    id: str
    hosts: str
    tasks: str | None


def read_job(environ: Mapping[str, str] = os.environ) -> SlurmAllocation | None:
    """The Slurm job of this process; None outside of one."""
    if "SLURM_JOB_ID" not in environ or "SLURM_JOB_NODELIST" not in environ:
        return None
    hosts = environ["SLURM_JOB_NODELIST"]
    return SlurmAllocation(
        environ["SLURM_JOB_ID"], hosts, environ.get("SLURM_TASKS_PER_NODE")
    )


def job_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """The id of the Slurm job; None outside of one."""
    return environ.get("SLURM_JOB_ID")


def host_name(environ: Mapping[str, str] = os.environ) -> str:
    """The name of this host, by which Slurm knows it if this is one of its jobs."""
    return environ.get("SLURMD_NODENAME", socket.gethostname())


def step_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """The number of the Slurm step; None outside of one."""
    return environ.get("SLURM_STEP_ID")


def launch_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """The id of the Slurm step or job array, which is unique to a launch.

    It is the same on all hosts of the launch; None outside of a step and an array.
    """
    job = environ.get("SLURM_ARRAY_JOB_ID", job_id(environ))
    return ".".join(word for word in (job, step_id(environ)) if word) or None


def read_setup_fault(environ: Mapping[str, str] = os.environ) -> str | None:
    """What failed of the site's key `setup` in this job; None if nothing did."""
    return environ.get("RANKBENCH_SETUP") or None


def for_srun(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that srun needs to find its job, without those that set options."""
    names = ("SLURM_JOB_ID", "SLURM_CONF")
    return {name: environ[name] for name in names if name in environ}


# Options of sbatch that say where jobs run, and who pays. Others would change what a
# job of ours is: an array, a test, one that is killed or that has other resources.
_OF_PLACE = {
    f"SBATCH_{name}"
    for name in (
        *("ACCOUNT", "CLUSTERS", "CONSTRAINT", "EXCLUSIVE", "PARTITION", "QOS"),
        *("RESERVATION", "WCKEY"),
    )
}

# Variables that change what Slurm's commands select and print.
_OF_QUERIES = (
    *("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_"),
    *("SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN"),
)


def for_slurm(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of Slurm's commands, without the user's habits of using them."""
    return {k: v for k, v in environ.items() if not k.startswith(_OF_QUERIES)}


def submit_from_here(environ: MutableMapping[str, str] = os.environ) -> None:
    """Prepare the environment of a process that submits jobs and asks for them.

    If it runs in a job itself, new jobs must not inherit the options of that one. They
    do need the variable that names the cluster's configuration.
    """
    kept = for_slurm(environ)
    for name in list(environ):
        is_of_job = name.startswith(("SLURM_", "SBATCH_")) and name not in _OF_PLACE
        if name not in kept or (is_of_job and name != "SLURM_CONF"):
            del environ[name]


def without_job(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without Slurm's variables, to hide the job from a program."""
    prefixes = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_")
    kept = "SLURM_STEP_ID"  # the record needs it, and programs ignore it
    return {k: v for k, v in environ.items() if k == kept or not k.startswith(prefixes)}


# Variable in which `keep_job` saves Slurm's variables.
_KEPT = "RANKBENCH_SLURM"


def keep_job(environ: MutableMapping[str, str] = os.environ) -> None:
    """Save Slurm's variables in one variable of our own.

    Snakemake removes most of them in a job before it starts the command of a cell.
    """
    if "SLURM_JOB_NODELIST" in environ:
        said = {k: v for k, v in environ.items() if k.startswith("SLURM_")}
        environ[_KEPT] = json.dumps(said)


def restore_job(environ: MutableMapping[str, str] = os.environ) -> None:
    """Restore the variables that `keep_job` saved."""
    environ.update(json.loads(environ.pop(_KEPT, "{}")))


def check_name(host: str) -> None:
    """Check that this host can resolve a host name; torch would retry without a word.

    Raises:
        OSError: it cannot; names both hosts.
    """
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        raise OSError(
            f"the host {socket.gethostname()} cannot resolve {host}: {error.strerror} "
            "(ranks find each other by these names: /etc/hosts or a name server)"
        ) from None


_SYSTEM = Path("/sys/devices/system/cpu")


def physical_cores(
    cpus: set[int] | None = None, system: Path = _SYSTEM
) -> list[list[int]]:
    """The CPUs of this process grouped by physical core, in ascending order.

    Hardware threads of one core form one group, because ranks on them would share it.
    """
    allowed = os.sched_getaffinity(0) if cpus is None else cpus
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(allowed):
        topology = system / f"cpu{cpu}" / "topology"
        try:
            package = int((topology / "physical_package_id").read_text())
            core = package, int((topology / "core_id").read_text())
        except (OSError, ValueError):
            core = -1, cpu  # unknown on some virtual machines: each CPU is a core
        cores.setdefault(core, []).append(cpu)
    return list(cores.values())


def choose_cores(
    local_rank: int, cores_per_rank: int, cores: list[list[int]]
) -> list[list[int]]:
    """The cores of one rank; if there are not enough, ranks share them in turn."""
    first = local_rank * cores_per_rank
    return [cores[(first + i) % len(cores)] for i in range(cores_per_rank)]


def pin(cores: list[list[int]]) -> None:
    """Bind this process and its existing threads to these cores."""
    cpus = {cpu for core in cores for cpu in core}
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # It has ended meanwhile.
            os.sched_setaffinity(int(thread), cpus)


def read_stat(pid: int | str | None) -> list[str]:
    """Fields of a process from the third on, its state: field N of proc(5) is N - 3.

    Raises:
        FileNotFoundError, ProcessLookupError: the process is no more.
    """
    # The name before them may contain anything but ")".
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# Format in the metadata of the installed package: pandas>=2.2; extra == "results"
_REQUIREMENT = re.compile(r"([\w.-]+)[^\[]*\bextra == ['\"]([\w-]+)['\"]")


def require(*extras: str) -> None:
    """Check that the packages of these extras are installed.

    Raises:
        ValueError: a package is missing; the message has the command that installs it.
    """

    def is_missing(package: str, extra: str) -> bool:
        return extra in extras and version_of(package) is None

    if said := _explain(is_missing):
        raise ValueError(said)


def explain_module(name: str) -> str | None:
    """The extra that installs a module, in words; None if there is none."""
    sought = name.partition(".")[0].lower()
    return _explain(lambda package, _: package.replace("-", "_").lower() == sought)


def _explain(is_missing: Callable[[str, str], bool]) -> str | None:
    """The missing packages, and the command that installs them; None if none is.

    Args:
        is_missing: asked for package and extra of each optional requirement. There is
            none if rankbench is not installed but only copied.
    """
    try:
        listed = metadata.requires("rankbench") or ()
    except metadata.PackageNotFoundError:
        return None
    known = [match.groups() for match in map(_REQUIREMENT.match, listed) if match]
    missing = [names for names in known if is_missing(*names)]
    if not missing:
        return None
    packages, extras = (dict.fromkeys(words) for words in zip(*missing, strict=True))
    are = "is" if len(packages) == 1 else "are"
    return (
        f"this needs {', '.join(packages)}, which {are} not installed: "
        f"pip install 'rankbench[{','.join(extras)}]'"
    )


_DRIVER = Path("/proc/driver/nvidia/version")


def read_driver(path: Path = _DRIVER) -> str | None:
    """The version of this kernel's NVIDIA driver; None if it has none."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", path.read_text())
    except OSError:
        return None
    return found[1] if found else None
