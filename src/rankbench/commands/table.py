"""The command `rankbench table`."""

from __future__ import annotations

import argparse
import gc
import json
from typing import Any

from rankbench.commands.base import (
    OK,
    add_parser,
    add_results,
    find_results,
    print_json,
)

ABOUT = """\
Write tables and plots from the plan and the records of a result directory, and print
the table. Nothing is measured. With --results, the experiment file is not needed."""

EXAMPLES = """\
examples:
  rankbench table
  rankbench table --experiment studies/lenet-mnist-workers.yaml
  rankbench table --results results/quickstart --json

exit status: 0, or 2 on bad input"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "table",
        write_table,
        summary="write tables and plots from plan and records",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the rows of table.csv",
    )
    add_results(parser)
    parser.add_argument(
        "--no-plots", action="store_true", help="write only tables, in half of the time"
    )


def write_table(arguments: argparse.Namespace) -> int:
    """Write tables and plots; only plan.json and the records are needed."""
    import pandas as pd

    from rankbench.results.numbers.found import read
    from rankbench.results.render.files import write_results

    layout = find_results(arguments)
    found = read(layout)
    # `found` is needed to the end. With ten thousand records, scanning it again and
    # again would cost the garbage collector a sixth of the time.
    gc.freeze()
    try:
        write_results(found, plots=not arguments.no_plots)
    finally:
        gc.unfreeze()
    if arguments.json:
        rows = pd.read_csv(layout.table("csv")).to_json(orient="records")
        print_json(json.loads(rows))
    else:
        print(layout.table("md").read_text())
    return OK
