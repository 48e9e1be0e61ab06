"""The command `rankbench table`."""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path

from rankbench.commands._base import open_results
from rankbench.commands._options import OK, command, print_json, print_result
from rankbench.commands._terminal import print_document


@command(
    options="WHAT MORE --override --site --no-plots --page",
    examples=(
        "table",
        "table studies/lenet-mnist-workers.yaml",
        "table results/quickstart --no-plots --json",
        "table results/monday results/friday results.tar.zst --page runs.html",
    ),
    json_holds="the rows of table.csv; of several results, the rows that are printed",
)
def write_table(arguments: argparse.Namespace) -> int:
    """Write tables and plots from the plan and the records of a result folder, and
    print the table. The table of a packed bundle is only printed. Of several results,
    print the answers and one table, which compares each with the first as `compare`
    does, unless it is of another machine; --page also plots them. Nothing is measured.
    """
    if arguments.more:
        return _print_runs([arguments.experiment, *arguments.more], arguments)
    if arguments.page:
        raise ValueError("--page: is of several results; those of one have report.html")
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


def _print_runs(names: list[str], arguments: argparse.Namespace) -> int:
    """Print one table of several result folders, bundles or baselines."""
    from rankbench.results.compare import runs
    from rankbench.results.render.files import write_page

    if arguments.override or arguments.site:
        raise ValueError("--override and --site: are of an experiment, not of results")
    if len({*names}) < len(names):
        raise ValueError("a result folder is named twice: its rows would be, too")
    read = [runs.read_run(Path(name)) for name in names]
    rows = runs.compare_runs(read)
    text = runs.runs_to_text(read, rows)
    if page := arguments.page:
        write_page(page, *runs.describe_page(page.stem, read, rows))
        text += f"\n\n{page}"
    print_result(arguments, runs.runs_to_json(rows), text)
    return OK
