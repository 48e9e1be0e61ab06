"""Cells measured within an allocation of the pretend cluster, without Snakemake."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretend_cluster import Cluster
from pretend_host import wait_until
from site_files import SITE_FILE, with_images

from conftest import Project
from evidence import read_records, read_table, trains

ALLOCATION = ("--nodes=2", "--nodelist=node1,node2", "--exclusive", "--time=30")

_BEGIN = """
import sys
from pathlib import Path
from rankbench.project.run import open_run
from rankbench.project.start import begin
run = open_run({"experiment": sys.argv[1]}, profile=Path("site"), write=False)
begin(run)
print(*(cell.id for cell in run.feasible), sep="\\n")
"""


@dataclass
class Site:
    """A copy of the project that the hosts of a cluster see."""

    cluster: Cluster
    project: Project
    python: str
    _facts: str = SITE_FILE
    where: tuple[str, ...] = ALLOCATION

    def use_images(self, folder: Path) -> None:
        """From now on cells run in the images of a folder that the hosts see."""
        self._facts = with_images(folder)

    def plan(self, text: str, name: str, *, facts: str = "") -> list[str]:
        """Plan an experiment and ask for its cells; the ids of the feasible ones.

        facts: further lines of the site file.
        """
        self.project.experiment(text, f"{name}.yaml")
        (self.project.root / "site").mkdir(exist_ok=True)
        (self.project.root / "site/site.yaml").write_text(self._facts + facts)
        return self._run(self.python, "-c", _BEGIN, f"{name}.yaml").split()

    def measure(
        self, name: str, cells: list[str], *options: str, before: str = ""
    ) -> str:
        """Measure cells in one allocation of two hosts; what was said meanwhile.

        options: of salloc; before: what its shell runs first. PretendError: the last
        cell could not be measured.
        """
        commands = [shlex.join(self.supervisor(name, cell)) for cell in cells]
        script = f"{before}\n" + "\n".join(commands)
        return self._run(*self.salloc(*options), "sh", "-c", script)

    def submit(self, name: str, cell: str) -> str:
        """The same for one cell by a batch script, which runs on the first host."""
        script = shlex.join(self.supervisor(name, cell))
        where = (*self.where, "--output=/dev/null", "--wait", "--wrap")
        return self._run("sbatch", *where, script)

    def start(self, name: str, cell: str, *options: str) -> subprocess.Popen[str]:
        """The same for one cell, in the background."""
        return self.start_command(self.supervisor(name, cell), *options)

    def start_command(self, argv: list[str], *options: str) -> subprocess.Popen[str]:
        """Any command within an allocation of two hosts, in the background."""
        argv = [*self.salloc(*options), *argv]
        return subprocess.Popen(
            self.cluster.command(argv, self._variables),
            cwd=self.project.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def salloc(self, *options: str) -> list[str]:
        return ["salloc", "--quiet", *self.where, *options]

    def supervisor(self, name: str, cell: str) -> list[str]:
        return [self.python, "-m", "rankbench.launch", f"results/{name}", cell]

    def records(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Records of the first attempt by cell, in the order of their launches."""
        return read_records(self.project.root, name)

    def table(self, name: str) -> dict[str, dict[str, str]]:
        """Rows of an experiment's table by cell."""
        return read_table(self.project.root, name)

    def rows(self, name: str) -> dict[str, dict[str, Any]]:
        """Rows of the table by cell, as `rankbench table` makes it."""
        argv = ("table", f"results/{name}", "--no-plots", "--json")
        said = self._run(self.python, "-m", "rankbench.cli", *argv)
        return {row["cell"]: row for row in json.loads(said)}

    def trains(self, name: str, cell: str) -> bool:
        """Whether both ranks of the first launch of a cell have entered its steps."""
        launch = self.project.root / f"results/{name}/records/{cell}/1/1"
        return trains(launch)

    def processes(self) -> str:
        """What the hosts still run for the user, beside what belongs to the cluster."""
        sought = ("pgrep", "--list-full", "--euid", self.cluster.user)
        said = ""
        for host in self.cluster.hosts.values():
            command = host.command(sought)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            said += done.stdout
        return said

    def wait_until_gone(self) -> None:
        """None of these processes is left."""
        wait_until(lambda: not self.processes(), lambda: f"gone: {self.processes()}")

    @property
    def _variables(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.project.root / "src")}

    def _run(self, *argv: str) -> str:
        return self.cluster.run(
            *argv, environment=self._variables, cwd=self.project.root
        )
