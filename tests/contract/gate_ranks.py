"""Runs the ranks of a cell as a launcher would, from code that may hold an error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ranks import start_commands
from torch.multiprocessing.spawn import ProcessExitedException

from factories import make_cell, prepare_launch
from rankbench.launch.process.classify import judge_gate
from rankbench.launch_spec import LaunchOptions
from rankbench.matrix.candidate import shape_of
from rankbench.matrix.catalog import load_catalog

SOURCE = Path(__file__).resolve().parents[2] / "src"


def copy_code(folder: Path) -> Path:
    """A copy of the package, to plant an error in."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    return shutil.copytree(SOURCE, folder / "src", ignore=ignore)


def run_gate(
    folder: Path,
    *,
    code: Path = SOURCE,
    seeds: Sequence[int] = (),
    hosts: int = 1,
    variables: Mapping[str, str] | None = None,
    **cell: Any,
) -> tuple[str, str | None, Mapping[str, Any]]:
    """Status, reason and numbers of the gate of a cell; arguments as of `run_ranks`."""
    reports = run_ranks(
        folder, "gate", code=code, seeds=seeds, hosts=hosts, variables=variables, **cell
    )
    outcome, numbers = judge_gate(reports)
    return outcome.status, outcome.reason, numbers


def run_ranks(
    folder: Path,
    purpose: str,
    *,
    code: Path = SOURCE,
    seeds: Sequence[int] = (),
    hosts: int = 1,
    variables: Mapping[str, str] | None = None,
    launch: LaunchOptions | None = None,
    **cell: Any,
) -> list[dict[str, Any]]:
    """The reports of the ranks of a launch.

    Args:
        purpose: of the launch: gate, measure.
        seeds: of the gate.
        hosts: over how many the ranks pretend to be spread.
        variables: of the ranks; {rank} stands for the number of a rank.
        launch: what ranks do beside training.
        cell: fields in which it differs from a usual one.
    """
    catalog = load_catalog(code / "rankbench")
    facts = catalog.strategies[cell.get("strategy", "ddp")]
    options = {name: rule["default"] for name, rule in facts["options"].items()}
    options |= cell.pop("options", {})
    usual = {"model": "lenet", "data": "synthetic", "batch_size": 16}
    whole = make_cell(options=options, **{**usual, **cell})
    shape = shape_of(whole, facts)
    spec = prepare_launch(
        folder,
        cell=whole,
        shape=shape,
        purpose=purpose,
        seeds=list(seeds),
        options=launch or LaunchOptions(),
    )
    work = spec.work
    arguments = [f"--init-method=file://{work}/store", str(spec.file)]
    inside = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    inside |= variables or {}
    try:
        start_commands(code, inside, arguments, shape.ranks, hosts=hosts)
    except ProcessExitedException as error:
        logs = [path.read_text() for path in sorted(folder.glob("rank*.log"))]
        raise AssertionError("\n".join(logs)) from error
    return [
        json.loads((work / f"rank{r}.json").read_text()) for r in range(shape.ranks)
    ]
