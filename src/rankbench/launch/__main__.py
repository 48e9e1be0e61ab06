"""The command of a cell's job: ``python -m rankbench.launch RESULTS CELL``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rankbench.environ import restore_job
from rankbench.launch.cell.measure import Interrupted, run_cell
from rankbench.launch.cell.pace import Out
from rankbench.record import Layout


def main() -> int:
    """0 for every typed status; 130 if interrupted, 2 if it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m rankbench.launch")
    parser.add_argument("results", type=Path, help="result directory with plan.json")
    parser.add_argument("cell", help="id of a cell of the plan")
    parser.add_argument("--project", type=Path, default=Path())
    arguments = parser.parse_args()
    restore_job()
    layout = Layout(arguments.results)
    path = layout.log(arguments.cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as log:
        out = Out(sys.stderr, log)
        try:
            verdict = run_cell(
                layout, arguments.cell, project=arguments.project, out=out
            )
        except Interrupted as reason:
            out.say(f"{arguments.cell}  stopped: {reason}; run again to continue")
            return 130
        except (ValueError, OSError) as error:
            out.say(f"{arguments.cell}  not measured: {error}")
            return 2
        if verdict.status != "ok":
            out.say(f"{arguments.cell}  {verdict.status}: {verdict.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
