"""The command of a job: ``python -m rankbench.launch RESULTS JOB``."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from rankbench.environ import restore_job
from rankbench.launch.job.measure import run_job
from rankbench.launch.processes import Interrupted
from rankbench.record import Layout
from rankbench.say import say


def main() -> int:
    """0 for every typed status; 130 if interrupted, 2 if a cell was not measured."""
    parser = argparse.ArgumentParser(
        prog="python -m rankbench.launch",
        description="Run the launches that the cells of a job still lack.",
    )
    parser.add_argument("results", type=Path, help="directory with plan.json")
    parser.add_argument("job", help="of agenda.json, or the id of a cell")
    parser.add_argument("--project", type=Path, default=Path())
    arguments = parser.parse_args()
    restore_job()
    layout, job = Layout(arguments.results), arguments.job

    def tell(name: str, text: str) -> None:
        """Progress for people: on the terminal, in the logs of the job and a cell."""
        say(text, aside=True)
        for log in {layout.log(job): None, layout.log(name): None}:
            # A full disk has been said above, and must not end the job with a trace.
            with suppress(OSError):
                log.parent.mkdir(parents=True, exist_ok=True)
                # A job may have a thousand cells, each with a log: too many open files.
                with open(log, "a") as file:
                    print(text, file=file)

    try:
        done = run_job(layout, job, project=arguments.project, say=tell)
    except (Interrupted, ValueError, OSError) as error:
        # The cell that was being launched, if any was.
        name = getattr(error, "__notes__", [job])[0]
        if isinstance(error, Interrupted):
            tell(name, f"{name}  stopped: {error}; run again to continue")
            return 130
        tell(name, f"{name}  not measured: {error}")
        return 2
    return 0 if done else 2


if __name__ == "__main__":
    sys.exit(main())
