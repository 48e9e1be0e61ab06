"""The command `rankbench predict`."""

from __future__ import annotations

import argparse

from rankbench.cell import Topology
from rankbench.commands._base import open_results
from rankbench.commands._options import FINDING, OK, command, print_json
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.plan import plan_predicted
from rankbench.matrix.site import Site
from rankbench.plan import read_plan


@command(
    options="WHAT --override --site --topology",
    examples=(
        "predict scaling.yaml --topology 4x8 16x8",
        "predict results/quickstart --topology 1x8 --json",
    ),
    exits="0; 1 if nothing can be predicted; 2 on bad input",
    json_holds="the predictions, their intervals and what they rest on",
)
def predict_topologies(arguments: argparse.Namespace) -> int:
    """What would topologies give that were not measured? Step time, throughput,
    efficiency, memory and device-hours, each with a 95 % interval, and with the
    rows that they rest on, or the reason why there is no prediction. Nothing is
    measured or written. docs/predicting.md says how well predictions hold.
    """
    from rankbench.commands._terminal import print_grid, print_notes
    from rankbench.results.elements.names import shorten
    from rankbench.results.numbers.result_set import read
    from rankbench.results.prediction.predict import predict
    from rankbench.results.sections.prediction import describe, in_sentences, show

    with open_results(arguments) as layout:
        found = read(layout)
        targets = list(found.targets)
        if arguments.topology:
            for topology in arguments.topology:
                Topology.parse(topology)
            plan = read_plan(layout.plan)
            # Each for each series of the plan, unless it is measured already.
            targets = plan_predicted(
                {name: planned.cell for name, planned in plan.cells.items()},
                arguments.topology,
                Site.from_dict(plan.site),
                load_catalog().with_cuda(plan.site["cuda_flavour"]).with_own(plan.own),
            )
    if not targets:
        raise ValueError(
            "nothing to predict: name topologies that were not measured "
            "(--topology 4x8, or predict: [4x8] in the experiment)"
        )
    made = list(predict(found.rows, targets))
    if arguments.json:
        print_json({"predictions": describe(made, found.price)})
    else:
        cells = [summary.id for summary in found.rows]
        names, _ = shorten([*cells, *(prediction.target.id for prediction in made)])
        for grid in show(made, found.price):
            print_grid(grid, names, whole=True)
        print_notes(in_sentences(made), names)
    return OK if any(prediction.throughput for prediction in made) else FINDING
