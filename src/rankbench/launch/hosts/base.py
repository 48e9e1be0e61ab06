"""The interface to hosts, and the lock that a measurement holds on each of them."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib import import_module
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from rankbench.environ import job_id
from rankbench.launch.hosts.ssh_probe import CONTAINER_PROGRAMS
from rankbench.launch_spec import LaunchSpec
from rankbench.record import first_line
from rankbench.schedulers import SCHEDULERS, Scheduler, scheduler_of

ASK_SECONDS = 0.5
OUTPUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a job needs on its hosts.

    Attributes:
        source: the folder that contains the package rankbench.
        code: a hash of it.
        data: prepared files that ranks read.
        data_dir: the folder that these are in.
        images: file of an image -> its sha256.
        own: folders with frozen copies of the user's own files, each called by the
            digest of its contents.
        native: whether ranks run in the hosts' own Python.
    """

    source: Path
    code: str
    data: Sequence[Path] = ()
    data_dir: Path
    images: Mapping[str, str] = field(default_factory=dict)
    own: Sequence[Path] = ()
    native: bool


class Waiting(NamedTuple):
    """How a job waits for its hosts.

    Attributes:
        say: gets lines of progress.
        heed: raises if waiting must end.
    """

    say: Callable[[str], None]
    heed: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How a command runs on the hosts.

    Attributes:
        logs: a folder for its output, if that needs files.
        tasks_per_host: how often it runs on each host.
        mpi: whether its tasks are the ranks of an MPI program.
        shares_cores: whether there are fewer cores than tasks.
    """

    logs: Path
    tasks_per_host: int = 1
    mpi: bool = False
    shares_cores: bool = False


# By the names of Snakemake and its plugin.
Resources = dict[str, int | str]


class Asked(NamedTuple):
    """What a job asks a scheduler for.

    Attributes:
        gpus: of each host.
        seconds: how long it may take.
        cores: of each host; None for all.
        queue: what the cell asks for in place of the site: see `Cell.queue`.
    """

    nodes: int
    tasks_per_node: int
    gpus: int
    seconds: float
    cores: int | None = None
    queue: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CellJob:
    """A job in the queue.

    Attributes:
        id: its number.
        cell: id of the cell that it measures.
        state: in the scheduler's word, such as ``PENDING`` or ``RUNNING``.
        hosts: as it shortens them; empty while it is queued.
        why: why it is still queued, in its word.
    """

    id: str
    cell: str
    state: str
    hosts: str
    why: str

    def describe(self) -> str:
        """In words, such as `job 12 queued (Resources)`."""
        if self.hosts:
            return f"job {self.id} {self.state.lower()} on {self.hosts}"
        what = "queued" if self.state == "PENDING" else self.state.lower()
        return f"job {self.id} {what} ({self.why})"


TIME_LIMIT = "time limit of the Slurm job reached"


class JobEnd(NamedTuple):
    """The end of a job that its own commands did not cause.

    Attributes:
        what: happened, such as ``its Slurm job was preempted``.
        cause: whose fault it is: see `rankbench.record.CAUSES`.
        words: of the scheduler, with the host.
    """

    what: str
    cause: str
    words: str = ""


class Hosts(ABC):
    """Hosts of a job or of a launch: this machine, others by ssh, those of a Slurm job.

    A scheduler is one such class, and an entry in `rankbench.schedulers`. The defaults
    are for hosts on which the supervisor itself ends all processes.

    Attributes:
        names: the hosts, that of rank 0 first; empty if they are not known before the
            launch.
        start_within: seconds that the hosts have to start after the launch begins.
        share_files: whether other hosts read the supervisor's heartbeat.
        end_within: seconds that the command of `step` gets to end everything itself,
            before the supervisor ends its processes.
        faults: of hosts that cannot be used, each with its remedy; only if `open` was
            not to wait.
    """

    names: tuple[str, ...]
    start_within = 0.0
    share_files = True
    end_within = 0.0
    faults: Sequence[str] = ()

    @classmethod
    def find(cls, nodes: int) -> Self:
        """Return all hosts that this process has, without waiting.

        Only `open` here calls it.

        Args:
            nodes: how many are needed.

        Raises:
            ValueError: there are fewer; the message has a remedy.
        """
        return cls()

    @classmethod
    @contextmanager
    def open(
        cls, site: Mapping[str, Any], nodes: int, needs: Needs, waiting: Waiting | None
    ) -> Iterator[Self]:
        """A context in which a job has its hosts, and nothing else measures there.

        Args:
            site: of the plan.
            nodes: the most hosts that a launch uses.
            needs: what must be on the hosts.
            waiting: how to wait for them. None: the hosts are only inspected, whatever
                measures there, and without those that cannot be used.

        Raises:
            ValueError: the job lacks hosts, or one of them cannot be used.
        """
        with machine_to_itself(waiting) if waiting else nullcontext():
            yield cls.find(nodes)

    def choose(self, count: int, turn: int) -> Hosts:
        """Return the hosts of a launch.

        Args:
            count: how many it needs.
            turn: number of the round from 0.

        Raises:
            ValueError: one of them was lost.
        """
        return self

    def place(self, spec: LaunchSpec) -> LaunchSpec:
        """Return a launch with the paths that the hosts know its files by."""
        return spec

    @abstractmethod
    def step(self, argv: Sequence[str], how: Step) -> list[str]:
        """Return the command that runs a command on every host."""

    def port(self, serial: int) -> int:
        """Return the port at which the ranks of a launch meet; 0 for any free one.

        Args:
            serial: differs between launches that follow each other.
        """
        return 0

    def variables(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment variables that the command of `step` needs."""
        return {}

    def end_steps(self) -> None:
        """End what commands of `step` left on the hosts; wait until it has ended."""
        return

    @classmethod
    def has_ended(cls, job: str) -> bool:
        """Return whether a job has ended; False if the scheduler does not answer."""
        return False

    @classmethod
    def resources(cls, site: Mapping[str, Any], asked: Asked) -> Resources:
        """Return the resources that Snakemake asks for; without a queue, no memory."""
        return {"mem_mb": 0}

    @classmethod
    def list_hosts(cls, site: Mapping[str, Any]) -> Mapping[str, str | None]:
        """Return the hosts to which a job can be pinned -> why one is not up, if so.

        Raises:
            ValueError: the scheduler does not answer.
        """
        return {}

    @classmethod
    def limits(cls) -> dict[str | None, float]:
        """Return the longest time limit of each partition's jobs, in minutes.

        Returns:
            Infinite if there is none. The default partition stands also under None.
            Empty if the scheduler has none or does not answer.
        """
        return {}

    @classmethod
    def read_queue(
        cls, experiment: str, folder: Path, jobs: Mapping[str, Sequence[str]]
    ) -> list[CellJob]:
        """This user's jobs for cells of an experiment that wait or run.

        Args:
            experiment: its name.
            folder: the project that Snakemake runs in.
            jobs: name of a job -> ids of the cells that it measures.

        Returns:
            For each cell its job; the job of several cells once for each.

        Raises:
            ValueError: the scheduler does not answer.
        """
        return []

    def why_ended(self) -> JobEnd | None:
        """Return why the hosts are taken away; None if they are not."""
        return None

    def find_lost(self) -> str | None:
        """Return a host that no longer answers; None if all do, or if it is unknown."""
        return None

    def find_job(self, log: str) -> str | None:
        """Return the id of the job that a launch ran in; None without one.

        Args:
            log: the output of the launcher.
        """
        return job_id()


class ThisMachine(Hosts):
    """This machine, on which a command simply runs."""

    names = ("localhost",)
    share_files = False

    def step(self, argv: Sequence[str], how: Step) -> list[str]:
        return list(argv)


def hosts_of(site: Mapping[str, Any]) -> type[Hosts]:
    """Return the class of a site's hosts; its `open` gives them to a job."""
    return _load(scheduler_of(site))


def has_ended(job: str) -> bool:
    """Return whether the scheduler that knows a job says that it has ended."""
    queues = (each for each in SCHEDULERS.values() if each.has_queue)
    return any(_load(scheduler).has_ended(job) for scheduler in queues)


def _load(scheduler: Scheduler) -> type[Hosts]:
    module, _, name = scheduler.hosts.partition(":")
    found: type[Hosts] = getattr(import_module(f"{__package__}.{module}"), name)
    return found


def run_to_end(
    command: Sequence[str], *, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program without input, and keep what it prints, as text.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it took longer than `timeout` seconds.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
        **options,
    )


def output_of(*command: str) -> str | None:
    """What a program prints, stripped; None if it is missing, fails or hangs."""
    try:
        done = run_to_end(command, timeout=OUTPUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.strip()


def why_not(command: Sequence[str], timeout: float, **options: Any) -> str:
    """Run a program; empty if it succeeds, else what it has said last."""
    try:
        done = run_to_end(command, timeout=timeout, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    said = f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    last = [line for line in said.splitlines() if line.strip()][-1]
    return first_line("".join(filter(str.isprintable, last)))


def container_program() -> str | None:
    """The name of this machine's container program; None if there is none."""
    return next(filter(shutil.which, CONTAINER_PROGRAMS), None)


def take_lock(path: Path | None = None, *, wait: bool = False) -> FileIO | None:
    """A file that holds a lock; None while another process holds it.

    No other user can open the file, and so take the lock. The kernel releases it with
    the last process that has it, however that ends.

    Args:
        path: of the file; None is that of this user's measurements on this machine.
        wait: whether to wait until no other process holds it.

    Raises:
        OSError: the file cannot be opened, or its file system has no locks.
    """
    if path is None:
        faults: list[OSError] = []
        for file in _machine_files():
            try:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                return take_lock(file)
            except OSError as error:
                faults.append(error)
        raise faults[0]
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    held = open(os.open(path, flags, 0o600), "wb", buffering=0)  # noqa: SIM115
    try:
        os.fchmod(held.fileno(), 0o600)  # It may have been made by a mere touch.
        fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        held.close()
        return None
    except OSError:
        held.close()
        raise
    return held


def _machine_files() -> Iterator[Path]:
    """The lock of this machine: the first of these files whose folder has locks.

    A folder below TMPDIR or /tmp would differ with each TMPDIR and each private /tmp of
    a Slurm job, and /run/user goes when its user logs out. Hosts may share a home.
    """
    cache, name = ".cache/rankbench", f"{socket.gethostname()}.lock"
    with suppress(KeyError):  # In a container, users may have no names.
        yield Path(pwd.getpwuid(os.getuid()).pw_dir, cache, name)
    yield Path(f"/run/user/{os.getuid()}", name)
    yield Path(os.path.expanduser("~"), cache, name)


@contextmanager
def machine_to_itself(waiting: Waiting) -> Iterator[None]:
    """Wait for this user's other measurements on this machine, then hold the lock."""
    told = False
    while (held := take_lock()) is None:
        if not told:
            file = next(filter(Path.is_file, _machine_files()), Path(os.devnull))
            who = file.read_text(errors="replace").strip()
            said = "  waiting: another measurement runs on this machine"
            waiting.say(f"{said}: {who}" if who else said)
            told = True
        waiting.heed()
        time.sleep(ASK_SECONDS)
    with held:
        held.truncate(0)
        held.write(f"process {os.getpid()} in {os.getcwd()}\n".encode())
        yield
