"""One pretend host: a process that holds namespaces, and a cable to the bridge.

A host has its own network, host name, processes, /tmp and /dev/shm. All of it ends with
its first process, the holder: nothing has a name in the machine that could be left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 400.0  # seconds
INTERFACE = "eth0"
# Large frames, as in clusters: a transfer takes its bytes divided by the rate, plus 1
# %.
MTU = "9000"
NAMESPACES = ("--net", "--uts", "--mount", "--pid", "--ipc")
TMP = Path("/tmp")  # noqa: S108
# The folder of version 1 of control groups. With version 2 alone, hosts have no memory
# limit.
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
# The same of groups that limit cores.
CORE_GROUPS = Path("/sys/fs/cgroup/cpuset")


class PretendError(Exception):
    """What is wrong with the machine, the command or the cluster, and what to do."""


def check(
    command: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run to the end; its standard output. PretendError: it failed, with both."""
    done = subprocess.run(
        command,
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = f"{done.stdout}{done.stderr}".strip() or f"exit {done.returncode}"
        raise PretendError(f"{' '.join(map(str, command))}: {said}")
    return done.stdout


def wait_until(condition: Callable[[], object], what: str | Callable[[], str]) -> None:
    """Wait for what comes, however busy the machine. PretendError: it does not.

    what: words for it, or what says them once it is late.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            words = what if isinstance(what, str) else what()
            raise PretendError(f"not within {PATIENCE:g} s: {words}")
        time.sleep(0.05)


@dataclass(frozen=True)
class Host:
    """A host that runs.

    link: the bridge's end of its cable; cores: as taskset lists them; holder: the
    process id of its first process, as the machine counts; folder: for its spool and
    its /tmp.
    """

    name: str
    address: str
    link: str
    cores: str
    holder: int
    folder: Path

    def command(self, argv: Sequence[str | Path]) -> list[str]:
        """What runs argv on this host, on its cores, as root, in the folder /."""
        enter = ["nsenter", f"--target={self.holder}", *NAMESPACES]
        return [*enter, "taskset", "--cpu-list", self.cores, *map(str, argv)]

    def do(self, *argv: str | Path) -> str:
        return check(self.command(argv))

    def connect(self, bridge: str) -> None:
        """Lay the cable from the host's interface to the bridge."""
        near = ("name", self.link, "mtu", MTU, "master", bridge, "up")
        # The same after a restart, since the others remember it.
        mac = "02:00:" + ":".join(
            f"{int(part):02x}" for part in self.address.split(".")
        )
        far = ("name", INTERFACE, "address", mac, "mtu", MTU, "netns", str(self.holder))
        check(["ip", "link", "add", *near, "type", "veth", "peer", *far])
        self.do("ip", "link", "set", "lo", "up")
        self.do("ip", "address", "add", f"{self.address}/24", "dev", INTERFACE)
        self.do("ip", "link", "set", INTERFACE, "up")

    def furnish(self, etc: Path, shared: Sequence[Path]) -> None:
        """Give the host its name, and its own files where hosts differ.

        etc: folder with what replaces the same in /etc; shared: folders that are
        the machine's also where they lie below /tmp.
        """
        for part in ("spool", "tmp", "cgroup"):
            shutil.rmtree(self.folder / part, ignore_errors=True)  # of an earlier life
            (self.folder / part).mkdir(parents=True)
        private = self.folder / "tmp"
        private.chmod(0o1777)

        self.do("hostname", self.name)
        self.do("mount", "-t", "proc", "proc", "/proc")
        self.do("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")  # noqa: S108
        for path in etc.iterdir():
            self.do("mount", "--bind", path, f"/etc/{path.name}")
        for folder in shared:
            if folder.is_relative_to(TMP):
                inside = private / folder.relative_to(TMP)
                inside.mkdir(parents=True, exist_ok=True)
                self.do("mount", "--bind", folder, inside)
        self.furnish_sys()
        self.do("mount", "--rbind", private, TMP)

    def furnish_sys(self) -> None:
        """A /sys with this host's interfaces, and a memory group to limit jobs in."""
        aside = self.folder / "cgroup"
        self.do("mount", "--rbind", "/sys/fs/cgroup", aside)
        self.do("mount", "-t", "sysfs", "sysfs", "/sys")
        self.do("mount", "--rbind", aside, "/sys/fs/cgroup")
        self.do("umount", "--recursive", aside)
        if has_memory_groups():
            group = MEMORY_GROUPS / self.link
            group.mkdir(exist_ok=True)
            self.do("mount", "--bind", group, MEMORY_GROUPS)

    def bind_cores(self) -> None:
        """A group in which Slurm may give each job cores of its own."""
        group = CORE_GROUPS / self.link
        group.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            (group / name).write_text((CORE_GROUPS / name).read_text())
        self.do("mount", "--bind", group, CORE_GROUPS)

    def slow(self, rate: str) -> None:
        """Limit the link, either way, to `rate` as tc writes it: 100mbit."""
        limit = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
        check(["tc", "qdisc", "replace", "dev", self.link, *limit])
        self.do("tc", "qdisc", "replace", "dev", INTERFACE, *limit)

    def cut(self) -> None:
        check(["ip", "link", "set", self.link, "down"])

    def crash(self) -> None:
        """End everything on the host at once, its network included."""
        os.kill(self.holder, signal.SIGKILL)
        link = Path("/sys/class/net") / self.link
        wait_until(lambda: not link.exists(), f"{self.name} has crashed")

    def mend(self) -> None:
        """The link as it was at first: up, and as fast as the machine."""
        check(["ip", "link", "set", self.link, "up"])
        if "tbf" in check(["tc", "qdisc", "show", "dev", self.link]):
            check(["tc", "qdisc", "delete", "dev", self.link, "root"])
            self.do("tc", "qdisc", "delete", "dev", INTERFACE, "root")


def has_memory_groups() -> bool:
    return (MEMORY_GROUPS / "cgroup.procs").exists()


def start_holder(environment: Mapping[str, str]) -> int:
    """Start a process in namespaces of its own; its id, as the machine counts."""
    # The holder is to its host what init is to a machine: orphans become its children.
    # Because it ignores SIGCHLD, the kernel removes children that have ended.
    holder = ("env", "--ignore-signal=CHLD", "sleep", "infinity")
    parent = subprocess.Popen(
        ["unshare", *NAMESPACES, "--fork", *holder],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    while parent.poll() is None:
        found = children.read_text().split()
        if found:
            return int(found[0])
        time.sleep(0.005)
    _, said = parent.communicate()
    raise PretendError(f"a host's namespaces: {said.strip()}")
