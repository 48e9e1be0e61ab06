"""The command `rankbench table`."""

from __future__ import annotations

import argparse
import gc
import json

from rankbench.commands._base import open_results
from rankbench.commands._options import OK, command, print_json
from rankbench.commands._terminal import print_document


@command(
    options="WHAT --override --site --no-plots",
    examples=(
        "table",
        "table studies/lenet-mnist-workers.yaml",
        "table results/quickstart --no-plots --json",
    ),
    json_holds="the rows of table.csv",
)
def write_table(arguments: argparse.Namespace) -> int:
    """Write tables and plots from the plan and the records of a result folder, and
    print the table. The table of a packed bundle is only printed. `rankbench compare`
    shows several results in one table. Nothing is measured.
    """
    import pandas as pd

    from rankbench.results.numbers.result_set import read
    from rankbench.results.render.files import write_results

    is_packed = (arguments.experiment or "").endswith(".zst")
    with open_results(arguments) as layout:
        found = read(layout)
        # `found` is needed to the end. With ten thousand records, scanning it again and
        # again would cost the garbage collector a sixth of the time.
        gc.freeze()
        try:
            plots = not (arguments.no_plots or is_packed)
            document = write_results(found, plots=plots)
        finally:
            gc.unfreeze()
        if arguments.json:
            rows = pd.read_csv(layout.table("csv")).to_json(orient="records")
            print_json(json.loads(rows))
        else:
            print_document(document, layout)
    return OK
