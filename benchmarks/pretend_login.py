"""The login side of a pretend cluster (docs/pretend-cluster.md), with the project.

Wants root, as the cluster does; what is measured runs as an ordinary user.
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

from pretend_cluster import Cluster  # noqa: E402
from pretend_down import down  # noqa: E402
from pretend_up import up  # noqa: E402
from site_files import SITE_FILE, with_images  # noqa: E402

from conftest import copy_project  # noqa: E402

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
        """Run a command to its end, as the user. PretendError: it failed."""
        return self.cluster.run(*argv, environment=self.variables, cwd=self.home)


@contextmanager
def pretend_login(
    experiment: str, name: str, *, image: Path | None = None
) -> Iterator[Login]:
    """A cluster of two hosts, and a project with the experiment `name`.yaml.

    image: in which cells run, NAME.sif with its NAME.json beside it; without one they
    run in this environment.
    """
    with tempfile.TemporaryDirectory(prefix="rankbench-login-") as folder:
        work = Path(folder)
        work.chmod(0o755)
        home = work / "project"
        home.mkdir()
        copy_project(home).experiment(experiment, f"{name}.yaml")
        facts = SITE_FILE
        if image:
            # Of the user's own, who keeps notes beside it; and where hosts see it.
            images = home / "images"
            images.mkdir()
            for suffix in (".sif", ".json"):
                shutil.copy(image.with_suffix(suffix), images)
            facts = with_images(images)
        (home / "slurm_profile/site.yaml").write_text(facts)
        give(home)
        shared = [work, Path(sys.prefix)]
        cluster = up(work / "cluster", hosts=2, user=USER, shared=shared)
        try:
            yield Login(cluster, home)
        finally:
            down(cluster.state)


def give(folder: Path) -> None:
    """Let the user have a folder with all that is in it."""
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, USER)
