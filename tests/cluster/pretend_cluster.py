"""A pretend cluster that is up: commands on its login side, its hosts' slurmd."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pretend_host import Host, PretendError, check, wait_until

# Every process of a cluster has this variable, whose value is the cluster's folder.
MEMBER = "PRETEND_CLUSTER_MEMBER"
DESCRIPTION = "pretend-cluster.json"


@dataclass(frozen=True)
class Cluster:
    """state: the folder with all its files; user: whose commands `run` runs."""

    state: Path
    user: str
    hosts: dict[str, Host]

    @classmethod
    def load(cls, state: Path) -> Cluster:
        """The cluster of this folder. PretendError: none is up there."""
        try:
            known = json.loads((state / DESCRIPTION).read_text())
        except FileNotFoundError:
            known = {}
        if not known:
            raise PretendError(f"{state}: no pretend cluster is up there")
        hosts = [
            Host(**{**host, "folder": Path(host["folder"])}) for host in known["hosts"]
        ]
        return cls(state, known["user"], {host.name: host for host in hosts})

    def save(self) -> None:
        hosts = [
            {**vars(host), "folder": str(host.folder)} for host in self.hosts.values()
        ]
        text = json.dumps({"user": self.user, "hosts": hosts}, indent=1)
        (self.state / DESCRIPTION).write_text(text)

    def command(
        self,
        argv: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
    ) -> list[str]:
        """What runs argv as the ordinary user, with the variables of a fresh login.

        The login side is the machine itself, with its files and its /tmp; the working
        directory stays. environment: further variables.
        """
        become = ("setpriv", f"--reuid={self.user}", f"--regid={self.user}")
        given = {**slurm_environment(self.state), **(environment or {})}
        variables = [f"{name}={value}" for name, value in given.items()]
        clean = ("--init-groups", "--reset-env", "env", *variables)
        return [*become, *clean, *map(str, argv)]

    def run(
        self,
        *argv: str | Path,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> str:
        """Run argv so, to the end; its standard output. PretendError: it failed."""
        return check(self.command(argv, environment), cwd=cwd)

    def administer(self, *argv: str) -> str:
        """Run argv as who may change the cluster's own settings."""
        return check(argv, daemon_environment(self.state))

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            raise PretendError(f"no host {name!r}; there are {', '.join(self.hosts)}")
        return self.hosts[name]

    def start(self, name: str) -> None:
        """Start a host's slurmd."""
        host = self.host(name)
        if is_running(host):
            raise PretendError(f"{name}: its slurmd runs already")
        check(host.command(["slurmd"]), daemon_environment(self.state))

    def stop(self, name: str) -> None:
        """End a host's slurmd. Its jobs run on, and Slurm learns of it by silence."""
        host = self.host(name)
        if not is_running(host):
            raise PretendError(f"{name}: its slurmd does not run")
        host.do("pkill", "--exact", "slurmd")
        wait_until(lambda: not is_running(host), f"slurmd of {name} ended")


def is_running(host: Host) -> bool:
    sought = host.command(["pgrep", "--exact", "slurmd"])
    done = subprocess.run(sought, stdout=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def slurm_environment(state: Path) -> dict[str, str]:
    """What Slurm's commands need, and what marks them as this cluster's."""
    return {"SLURM_CONF": f"{state}/etc/slurm/slurm.conf", MEMBER: str(state)}


def daemon_environment(state: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], **slurm_environment(state)}
