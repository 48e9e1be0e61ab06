"""Starts a script of a user on its ranks, as a launcher does."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ranks import start_commands
from torch.multiprocessing import ProcessExitedException

from factories import make_cell, make_shape, make_spec, prepare_launch
from rankbench.launch.process.classify import Ending, classify
from rankbench.launch.process.command import build_environment
from rankbench.launch.process.reports import merge_reports, read_reports
from rankbench.rank.world.places import find_free_port

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests/scripts"
RANKS, WARMUP, STEPS, GLOBAL_BATCH = 2, 4, 12, 50


@dataclass
class Launch:
    """A launch that has ended, in its directory."""

    directory: Path
    ranks: int = RANKS

    @property
    def reports(self) -> dict[int, dict[str, Any]]:
        return read_reports(self.directory / "work", self.ranks)

    @property
    def record(self) -> dict[str, Any]:
        """Parts of the record; fails with the reason of a launch that failed."""
        assert self.reason is None, self.reason + "".join(
            map(self.log, range(self.ranks))
        )
        return merge_reports(list(self.reports.values()), replica_ranks=1)

    @property
    def reason(self) -> str | None:
        ending = Ending(
            spec=make_spec(shape=make_shape(self.ranks)),
            returncode=0,
            stopped=None,
            time_limit=60,
            reports=self.reports,
            rank_logs={rank: self.log(rank) for rank in range(self.ranks)},
        )
        return classify(ending).reason

    @property
    def folder(self) -> Path:
        """The folder that the script ran in."""
        return self.directory / "work/script"

    def log(self, rank: int) -> str:
        """What a rank printed; a rank that was ended early has no log."""
        path = self.directory / f"rank{rank}.log"
        return path.read_text() if path.exists() else ""

    def steps(self, rank: int) -> dict[str, np.ndarray]:
        return dict(np.load(self.directory / f"work/rank{rank}.npz"))


def write_spec(
    directory: Path,
    script: Path,
    *arguments: str,
    backend: str = "gloo",
    ranks: int = RANKS,
    own: dict[str, str] | None = None,
    template: str = "",
    **cell: Any,
) -> Path:
    """The file that tells ranks of a launch of a script.

    Args:
        own: what the plan says of the script, if it is not the name of its file alone.
        template: of the arguments, with placeholders.
    """
    values = {"topology": f"1x{ranks}", "backend": backend, "epochs": None}
    values |= {"steps": STEPS, "own_strategy": own or {"file": script.name}}
    words = shlex.join(arguments).replace("{", "{{").replace("}", "}}")
    about = {"args": template or words, "samples_per_step": str(GLOBAL_BATCH)}
    values |= {"warmup": WARMUP, "script": about, **cell}
    shape = make_shape(ranks, global_batch=GLOBAL_BATCH)
    return prepare_launch(
        directory, cell=make_cell(**values), shape=shape, own={"strategy": script}
    ).file


def run_script(
    directory: Path, script: Path, *arguments: str, ranks: int = RANKS, **cell: Any
) -> Launch:
    """Run a script on ranks that are forked from a process that has torch."""
    spec = write_spec(directory, script, *arguments, ranks=ranks, **cell)
    variables = build_environment(make_spec(shape=make_shape(ranks)))
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
    try:
        start_commands(ROOT / "src", variables, [str(spec)], ranks)
    except ProcessExitedException:
        pass  # the reports say why
    return Launch(directory, ranks)


def run_by(launcher: list[str], directory: Path, script: Path, *words: str) -> Launch:
    """Run a script by the command of a launcher, to which the spec is added."""
    spec = write_spec(directory, script, *words)
    argv = [sys.executable, "-m", *launcher, str(spec)]
    environment = build_environment(make_spec(shape=make_shape(RANKS)))
    subprocess.run(argv, env=environment, timeout=400, check=False)
    return Launch(directory)
