"""Random kills over ssh: nothing is left, and no launch is lost or measured twice."""

from __future__ import annotations

import pty
import subprocess
import sys
from pathlib import Path

import pytest
from desks import Desk
from lanes import LOGIN_SHELL, RANK, SUPERVISOR, TORCHRUN, Lane
from pretend_sshd import processes
from random_kills import KILLS, Kills

pytestmark = [pytest.mark.cluster, pytest.mark.long]


class SshLane(Lane):
    """The first two hosts, which share no files, and a desk that measures on them."""

    def __init__(self, desk: Desk, root: Path) -> None:
        super().__init__(desk.cluster, 1, root, desk.project)
        self.desk = desk

    def write_site(self, facts: str = "") -> None:
        self.desk.write_site(facts=facts)

    def run_in_a_shell(self, name: str) -> subprocess.Popen[str]:
        terminal, inside = pty.openpty()
        config = ("--profile", "ssh_profile", "--config", f"experiment={name}.yaml")
        argv = (sys.executable, "-m", "snakemake", *config, "plots=false")
        shell = ("sh", "-c", '"$@"; exit "$?"', LOGIN_SHELL, *argv)
        session = self.desk.command("setsid", "--ctty", "--wait", *shell)
        self.terminals.append(terminal)
        return self._start(session, "said", stdin=inside)

    def kill_at_login(self, run: subprocess.Popen[str], pattern: str) -> bool:
        found = self.find(self.desk.host, pattern)
        if found:
            self.desk.host.do("sh", "-c", f"kill -KILL {found[0]} || true")
        return bool(found)

    def wake(self) -> None:
        pass

    def jobs(self) -> list[str]:
        return []

    def processes(self) -> list[str]:
        return processes(self.cluster).splitlines()

    def folders(self) -> list[str]:
        """What is left of launches on hosts, and of connections at the desk."""
        sockets = self.desk.host.do("sh", "-c", "ls -d /tmp/rankbench-ssh.* || true")
        left = [
            str(path) for host in self.hosts for path in self.desk.left_on(host.name)
        ]
        return left + sockets.split()


class SshKills(Kills):
    """Kills on hosts by ssh, and of what reaches them from the desk."""

    launchers = "torchrun, manual"
    on_hosts = {
        "a rank": RANK,
        "a launcher": TORCHRUN,
        "the program of a step": "hosts.ssh_host run",
        "the program that holds a host": "hosts.ssh_host hold",
        "a session of sshd": "^sshd: ",
    }
    at_login = {
        "Snakemake": "-m snakemake ",
        "a supervisor": SUPERVISOR,
        "the command of a step": "hosts.ssh_step",
        "an ssh": "^ssh -T",
        "the login shell": LOGIN_SHELL,
    }


@pytest.mark.parametrize("seed", [3, 4])
def test_random_kills_lose_nothing(apart_desk, tmp_path, seed):
    kills = SshKills(SshLane(apart_desk, tmp_path), f"kills-{seed}", seed)
    left = kills.go()
    print(kills.killed, kills.runs, kills.lost, kills.failed)
    assert left == []
    assert len(kills.killed) == KILLS
