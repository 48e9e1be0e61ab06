"""A machine from which a user measures on hosts by ssh: a copy of the project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretend_cluster import Cluster
from pretend_host import INTERFACE, Host
from pretend_sshd import command_on, give, home_of, home_there

from conftest import Project, copy_project
from evidence import read_records, read_table, trains

PROFILE = "ssh_profile"
FACTS = f"""
scheduler: ssh
software: native
device: cpu
interface: {INTERFACE}
"""


@dataclass
class Desk:
    """A copy of the project on a host of the cluster, or in a folder that all see.

    project: the copy, as this machine sees it; root: as the hosts see it; variables: in
    addition to those of a fresh login.
    """

    cluster: Cluster
    host: Host
    project: Project
    root: Path
    shared: bool
    variables: dict[str, str] = field(default_factory=dict)

    def write_site(
        self,
        hosts: Sequence[Mapping[str, Any]] | str | None = None,
        *,
        facts: str = "",
        shared: bool | None = None,
    ) -> None:
        """Write the site file; by default of the first two hosts."""
        if hosts is None:
            hosts = [{"name": name, "devices": 1} for name in ("node1", "node2")]
        folder = self.project.root / PROFILE
        folder.mkdir(exist_ok=True)
        settings = self.project.root / "local_profile/config.yaml"
        shutil.copy(settings, folder / "config.yaml")
        shared = self.shared if shared is None else shared
        text = f"{FACTS}hosts: {json.dumps(hosts)}\nshared: {json.dumps(shared)}\n"
        (folder / "site.yaml").write_text(text + facts)
        give(folder, self.cluster.user)

    def rankbench(self, *arguments: str, status: int = 0) -> str:
        """Run a command of rankbench to its end; what it said."""
        process = self.start(*arguments)
        said, _ = process.communicate(timeout=600)
        assert process.returncode == status, said
        return said

    def measure(self, text: str, name: str, *, status: int = 0) -> str:
        """Measure an experiment with this text; what was said."""
        self.project.experiment(text, f"{name}.yaml")
        return self.rankbench(
            "run", *self.experiment(name), "--no-plots", status=status
        )

    def experiment(self, name: str) -> list[str]:
        return [f"{name}.yaml", "--site", PROFILE]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of rankbench, in a session of its own as a terminal would."""
        return subprocess.Popen(
            self.command(sys.executable, "-m", "rankbench.cli", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def command(self, *argv: str | Path) -> list[str]:
        """What runs a command in the project, as the user on this host."""
        variables = {
            "PYTHONPATH": f"{self.root}/src",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **self.variables,
        }
        return command_on(self.cluster, self.host, argv, variables, cwd=self.root)

    def table(self, name: str) -> dict[str, dict[str, str]]:
        """Rows of an experiment's table by cell."""
        return read_table(self.project.root, name)

    def records(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Records of the first attempt by cell, in the order of their launches."""
        return read_records(self.project.root, name)

    def trains(self, name: str, cell: str, launch: int = 1) -> bool:
        """Whether both ranks of a launch of a cell have entered its steps."""
        return trains(self.project.root / f"results/{name}/records/{cell}/1/{launch}")

    def left_on(self, host: str) -> list[Path]:
        """Folders of launches that are left on a host."""
        home = home_of(self.cluster, self.cluster.hosts[host])
        return list(home.glob(".cache/rankbench/launches/*"))


def make_desk(
    cluster: Cluster, host: str, digits: Path, *, at: Path | None = None
) -> Desk:
    """Copy the project to a host.

    at: a folder that all hosts see; None means the home on this host alone.
    """
    machine = cluster.hosts[host]
    real = at or home_of(cluster, machine) / "project"
    root = at or home_there(cluster) / "project"
    (real / "data").mkdir(parents=True)
    project = copy_project(real)
    shutil.copy(digits, real / "data/digits.npz")
    give(real, cluster.user)
    desk = Desk(cluster, machine, project, root, shared=at is not None)
    desk.write_site()
    return desk
