"""Lanes: parts of a pretend cluster that do not disturb each other.

Each has two hosts and a copy of the project, so several faults can be planted at once.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pretend_cluster import Cluster, is_running
from pretend_host import Host, check, wait_until
from pretend_up import boot, up
from site_files import SITE_FILE, look_more_often

from conftest import Project, copy_project, find_images
from evidence import read_records, read_table, trains

SCRATCH = "/tmp/scratch"  # noqa: S108 (a host of the cluster has a /tmp of its own)
# Programs by what they do; patterns of pgrep on a host.
# Not what starts a rank: its arguments have the same words.
RANK = "^[^ ]+ (-[^ ]+ )*-m rankbench.rank [-/]"
SUPERVISOR = "-m rankbench.launch results/"
TORCHRUN = "torch.distributed.run"
SRUN = "^srun .*rankbench"
LOGIN_SHELL = "login-shell"

DISK = "96m"
# Slurm may need so long to give up a silent host; forgotten ranks train for longer.
LEFT_AFTER = 100.0  # seconds
IMAGES = ("gloo-cpu", "mpi-cpu")


@dataclass
class Lane:
    """Two hosts of a cluster with a partition of their own, and a copy of the project.

    root: a folder that login side and hosts see.
    """

    cluster: Cluster
    number: int
    root: Path
    project: Project
    usual: dict[str, set[str]] = field(default_factory=dict)
    terminals: list[int] = field(default_factory=list)

    @property
    def near(self) -> Host:
        return self.cluster.hosts[f"node{2 * self.number - 1}"]

    @property
    def far(self) -> Host:
        return self.cluster.hosts[f"node{2 * self.number}"]

    @property
    def hosts(self) -> tuple[Host, Host]:
        return self.near, self.far

    @property
    def partition(self) -> str:
        return f"lane{self.number}"

    @property
    def images(self) -> Path:
        return self.root.parent / "images"

    @property
    def pace_file(self) -> Path:
        return self.root / "pace"

    def set_pace(self, seconds: float) -> None:
        """How long each step of the strategies takes that are slow on purpose."""
        new = self.pace_file.with_name("pace.new")
        new.write_text(str(seconds))
        new.replace(self.pace_file)

    def write_site(self, facts: str = "") -> None:
        """The site file of this lane, with further lines."""
        text = SITE_FILE.replace("partition: pretend", f"partition: {self.partition}")
        if "software:" in facts:
            text = text.replace("software: native\n", "")
        folder = self.project.root / "slurm_profile"
        (folder / "site.yaml").write_text(f"{text}scratch: {SCRATCH}\n{facts}")

    def run(self, name: str, *, said: str = "said") -> subprocess.Popen[str]:
        """Start Snakemake for an experiment as the user, in a session of its own.

        said: the file for what it says.
        """
        return self._start(self._snakemake(name), said, start_new_session=True)

    def run_in_a_shell(self, name: str) -> subprocess.Popen[str]:
        """The same, as the child of a shell with a terminal of its own."""
        terminal, inside = pty.openpty()
        # The shell must not become Snakemake, and its end hangs up the terminal.
        shell = ("sh", "-c", '"$@"; exit "$?"', LOGIN_SHELL, *self._snakemake(name))
        try:
            session = ["setsid", "--ctty", "--wait", *shell]
            return self._start(session, "said", stdin=inside)
        finally:
            os.close(inside)
            self.terminals.append(terminal)

    def _snakemake(self, name: str) -> list[str]:
        variables = {
            "PYTHONPATH": str(self.project.root / "src"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SNAKEMAKE_PROFILE": "slurm_profile",
            "TMPDIR": str(self.root / "tmp"),
        }
        config = ("--config", f"experiment={name}.yaml", "plots=false")
        argv = (sys.executable, "-m", "snakemake", *config)
        return self.cluster.command(argv, variables)

    def _start(
        self, command: list[str], said: str, **options: Any
    ) -> subprocess.Popen[str]:
        # A file, because a pipe ends only with the last process that has it.
        with open(self.root / said, "w") as file:
            return subprocess.Popen(
                command,
                cwd=self.project.root,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                **{"stdin": subprocess.DEVNULL, **options},
            )

    def wait_for(
        self, run: subprocess.Popen[str], seconds: float = 240, *, said: str = "said"
    ) -> str:
        """Wait for the end of a run; what it said."""
        run.wait(timeout=seconds)
        while self.terminals:
            os.close(self.terminals.pop())
        return (self.root / said).read_text(errors="replace")

    def records(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Records by cell, in the order of their launches."""
        return read_records(self.project.root, name)

    def launches(self, name: str) -> list[Path]:
        """Folders of launches that have begun."""
        # The folder of a claim has another name until it is complete.
        pattern = f"results/{name}/records/*/1/[1-9]*/claim.json"
        return [claim.parent for claim in self.project.root.glob(pattern)]

    def table(self, name: str) -> dict[str, dict[str, str]]:
        return read_table(self.project.root, name)

    def trains(self, launch: Path, ranks: int = 2) -> bool:
        """Whether all ranks of a launch have entered its steps."""
        return trains(launch, ranks)

    def kill(self, host: Host, pattern: str, name: str = "KILL") -> None:
        """Send a signal to a user's processes on a host, by their command."""
        whose = ("--euid", self.cluster.user)
        host.do("pkill", f"--signal={name}", *whose, "--full", "--", pattern)

    def find(self, host: Host, pattern: str) -> list[int]:
        """The same processes, as the host counts them."""
        sought = ("pgrep", "--euid", self.cluster.user, "--full", "--", pattern)
        done = subprocess.run(
            host.command(sought), capture_output=True, text=True, check=False
        )
        return [int(word) for word in done.stdout.split()]

    def kill_at_login(self, run: subprocess.Popen[str], pattern: str) -> bool:
        """Kill a process of a run beside the hosts; whether there was one."""
        try:
            whole = psutil.Process(run.pid)
            for process in (whole, *whole.children(recursive=True)):
                is_it = pattern in " ".join(process.cmdline())
                if is_it and "setsid" not in process.name():
                    process.kill()
                    return True
        except psutil.NoSuchProcess:
            pass
        return False

    def jobs(self) -> list[str]:
        """Jobs of the lane: id, state, hosts and comment."""
        asked = ("squeue", "--noheader", "--format=%i %T %N %k", "--partition")
        return self.cluster.run(*asked, self.partition).splitlines()

    def processes(self) -> list[str]:
        """What runs for the user on the hosts, and for this project beside them."""
        found = []
        for host in self.hosts:
            argv = ("pgrep", "--list-full", "--euid", self.cluster.user)
            done = subprocess.run(
                host.command(argv), capture_output=True, text=True, check=False
            )
            found += [f"{host.name}: {line}" for line in done.stdout.splitlines()]
        own = [process for process in psutil.process_iter() if self._is_ours(process)]
        return found + [f"login: {process.pid}" for process in own]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            gone = process.status() == psutil.STATUS_ZOMBIE
            return not gone and process.cwd() == str(self.project.root)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def locks(self) -> list[str]:
        """Locks of measurements that somebody still holds on the hosts."""
        return [
            f"{host.name}: {line.split()[-1]}"
            for host in self.hosts
            for line in host.do("cat", "/proc/net/unix").splitlines()
            if re.search(r" @rankbench-\d+$", line)
        ]

    def folders(self) -> list[str]:
        """Temporary files and folders that were not there at first."""
        for path in (self.root / "tmp").glob("snakemake????????"):
            # Of one that was killed before it had read the workflow.
            if not any(path.iterdir()):
                path.rmdir()
        return [
            f"{place}/{name}"
            for place, names in self._temporary().items()
            for name in sorted(names - self.usual.get(place, set()))
        ]

    def _temporary(self) -> dict[str, set[str]]:
        found = {"login": {path.name for path in (self.root / "tmp").iterdir()}}
        for host in self.hosts:
            for place in ("/tmp", SCRATCH, "/dev/shm"):  # noqa: S108
                found[f"{host.name}:{place}"] = set(host.do("ls", "-A", place).split())
        return found

    def left(self) -> list[str]:
        """Processes, jobs and locks that are left after some time."""
        end = time.monotonic() + LEFT_AFTER
        while found := self.processes() + self.jobs() + self.locks():
            if time.monotonic() > end:
                return found
            time.sleep(0.5)
        return []

    def clear(self) -> None:
        """Make the lane as it was at first, whatever has happened."""
        self.cluster.run("scancel", f"--partition={self.partition}")
        for host in self.hosts:
            host.mend()
            whose = ("--euid", self.cluster.user)
            for name in ("CONT", "KILL"):
                argv = host.command(["pkill", f"--signal={name}", *whose])
                subprocess.run(argv, check=False)
        for process in psutil.process_iter():
            if self._is_ours(process):
                process.send_signal(signal.SIGKILL)
        self.wake()
        wait_until(self._is_idle, f"hosts of {self.partition} idle")
        for folder in (self.project.root / "results", self.root / "tmp"):
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for host in self.hosts:
            host.do("sh", "-c", f"rm -rf {SCRATCH}/* {SCRATCH}/.[!.]*")
        if not self.usual:
            self.usual = self._temporary()

    def wake(self) -> None:
        """Let both hosts work again, as an administrator would."""
        for host in self.hosts:
            if not is_running(host):
                self.cluster.start(host.name)

    def restart_slurmd(self, host: Host) -> None:
        """Slurm would find the host again, but later."""
        if is_running(host):
            self.cluster.stop(host.name)
        self.cluster.start(host.name)

    def revive(self, host: Host) -> None:
        """Let a host that has crashed start again."""
        shared = shared_of(self.root.parent)
        booted = boot(host, self.cluster.state, shared)
        self.cluster.hosts[host.name] = booted
        booted.do("mkdir", "-p", "--mode=1777", SCRATCH)
        self.cluster.start(host.name)

    def _is_idle(self) -> bool:
        asked = ("sinfo", "--noheader", "--Node", "--format=%T", "--partition")
        states = self.cluster.run(*asked, self.partition).split()
        return states == ["idle", "idle"]


def make_lanes(root: Path, count: int, user: str, data: Path) -> list[Lane]:
    """A cluster of two hosts for each lane, in an empty folder.

    data: folder with the prepared digits.
    """
    for number in range(1, count + 1):
        results = root / f"lane{number}/project/results"
        results.mkdir(parents=True)
        # A disk that can be filled; hosts see only what is mounted before they start.
        size = ("-o", f"size={DISK},mode=1777")
        check(["mount", "-t", "tmpfs", *size, "tmpfs", results])
    images = root / "images"
    images.mkdir()
    for name in IMAGES:
        for suffix in ("sif", "json"):
            shutil.copy(find_images(*IMAGES) / f"{name}.{suffix}", images)
    for path in (images, *images.iterdir()):
        shutil.chown(path, user)
    shared = shared_of(root)
    cluster = up(root / "cluster", hosts=2 * count, user=user, shared=shared)
    return [
        make_lane(cluster, number, root / f"lane{number}", data)
        for number in range(1, count + 1)
    ]


def shared_of(root: Path) -> list[Path]:
    """What hosts see: the folder, each disk that is mounted in it, and this Python."""
    return [root, *sorted(root.glob("lane*/project/results")), Path(sys.prefix)]


def make_lane(cluster: Cluster, number: int, root: Path, data: Path) -> Lane:
    """A partition of two hosts, and a copy of the project."""
    for name in ("tmp", "project/data"):
        (root / name).mkdir()
    project = copy_project(root / "project")
    shutil.copy(data / "digits.npz", project.root / "data")
    look_more_often(project.root / "slurm_profile/config.yaml")
    lane = Lane(cluster, number, root, project)
    names = ",".join(host.name for host in lane.hosts)
    made = (f"PartitionName={lane.partition}", f"Nodes={names}", "State=UP")
    cluster.administer("scontrol", "create", *made)
    for host in lane.hosts:
        host.do("mkdir", "-p", "--mode=1777", SCRATCH)
    lane.set_pace(0)
    for path in (root, *root.rglob("*")):
        shutil.chown(path, cluster.user)
    lane.clear()
    return lane
