"""The login side of a pretend cluster (docs/pretend-cluster.md), with the project.

It needs root for the cluster; the measured commands run as an ordinary user.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/cluster")]

from desks import Desk, make_desk  # noqa: E402
from pretend_cluster import Cluster  # noqa: E402
from pretend_down import down  # noqa: E402
from pretend_up import up  # noqa: E402
from site_files import SITE_FILE, with_images  # noqa: E402

from conftest import copy_project  # noqa: E402

__all__ = ["USER", "Desk", "down", "give", "make_desk", "pretend_login", "up"]

USER = "rankbench"
SNAKEMAKE = (sys.executable, "-m", "snakemake", "--profile", "slurm_profile")


@dataclass(frozen=True)
class Login:
    """The login side of a cluster, in a copy of the project."""

    cluster: Cluster
    home: Path

    @property
    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": f"{self.home}/src"}

    def run(self, *argv: str | Path) -> str:
        """Run a command as the user, wait for its end, and return its output.

        Raises:
            PretendError: the command failed.
        """
        return self.cluster.run(*argv, environment=self.variables, cwd=self.home)


@contextmanager
def pretend_login(
    experiment: str,
    name: str,
    *,
    image: Path | None = None,
    hosts: int = 2,
    keep: Path | None = None,
) -> Iterator[Login]:
    """A cluster, and a project with the experiment `name`.yaml.

    Args:
        experiment: text of the experiment file.
        name: name of the experiment.
        image: image for the cells, NAME.sif with NAME.json in the same folder; None
            runs them in this environment.
        hosts: number of hosts. Beyond two they share cores.
        keep: folder for the project, which stays there with its results; None means a
            temporary one.
    """
    with tempfile.TemporaryDirectory(prefix="rankbench-login-") as folder:
        work = Path(folder)
        work.chmod(0o755)
        home = keep or work / "project"
        home.mkdir(exist_ok=True, parents=True)
        if not (home / "src").exists():
            copy_project(home)
        (home / f"{name}.yaml").write_text(experiment)
        facts = SITE_FILE.replace("nodes: 2", f"nodes: {hosts}")
        if image:
            # Copy it into a folder that hosts see and the user can write.
            images = home / "images"
            images.mkdir()
            for suffix in (".sif", ".json"):
                shutil.copy(image.with_suffix(suffix), images)
            facts = with_images(images)
        (home / "slurm_profile/site.yaml").write_text(facts)
        give(home)
        shared = [work, home, Path(sys.prefix)]
        cluster = up(work / "cluster", hosts=hosts, user=USER, shared=shared)
        try:
            yield Login(cluster, home)
        finally:
            down(cluster.state)


def give(folder: Path) -> None:
    """Make the user the owner of a folder and everything in it."""
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, USER)
