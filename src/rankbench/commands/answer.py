"""The command `rankbench answer`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rankbench.cell import Topology
from rankbench.commands._base import open_results
from rankbench.commands._options import FINDING, OK, UNDECIDED, command, print_json
from rankbench.commands._terminal import print_grid, print_notes
from rankbench.record import Layout
from rankbench.say import say

if TYPE_CHECKING:
    from rankbench.results.numbers.result_set import ResultSet


@command(
    options="WHAT --override --site --margin --efficiency --details --next --at",
    examples=(
        "answer results/quickstart --margin 0.05",
        "answer --efficiency 0.9 --json",
        "answer scaling.yaml --at 4x8 16x8",
    ),
    exits="0, 1 nothing can be predicted, 2 bad input, 3 no row is surely the best",
    json_holds="the answer, as in answer.json; with --at, the predictions",
)
def answer(arguments: argparse.Namespace) -> int:
    """Say in ten lines which row is the best, what it costs, which usual rival is
    untested, where its time goes, what weakens the answer, and what to launch next.
    With --at, say what topologies would give that were not measured, each with a
    95 % interval. Nothing is measured. docs/answer.md explains each line.
    """
    from rankbench.results.advice.answer import find_answer, tell_next
    from rankbench.results.advice.choice import to_json
    from rankbench.results.elements.text import shorten
    from rankbench.results.numbers.result_set import read
    from rankbench.results.sections.answer import as_json, divide

    for topology in arguments.at or ():
        Topology.parse(topology)
    with open_results(arguments) as layout:
        found = read(layout)
        if arguments.at:
            return _predict(arguments, found, layout)
    made = find_answer(found, margin=arguments.margin, efficiency=arguments.efficiency)
    plans = [
        (plan, facts)
        for facts in made.workloads
        for plan in facts.next
        if arguments.next in ("", plan.settles)
    ]
    names, _ = shorten([summary.id for summary in found.rows])
    if arguments.json:
        planned = [plan for plan, _ in plans]
        print_json(as_json(made) if arguments.next is None else to_json(planned))
    elif arguments.next is not None:
        notes = [tell_next(plan, facts, made) for plan, facts in plans]
        if notes:
            print_notes(notes, names)
        else:
            say("nothing is open: no launch would settle anything")
    elif arguments.details:
        brief, more = divide(made)
        # Of several workloads, the further findings hold all.
        print_notes(more if len(made.workloads) > 1 else [*brief, *more], names)
    else:
        say(*as_json(made)["lines"])
    is_open = not made.workloads or any(facts.is_open for facts in made.workloads)
    return UNDECIDED if is_open else OK


def _predict(arguments: argparse.Namespace, found: ResultSet, layout: Layout) -> int:
    """Print what topologies would give, and what that rests on."""
    from rankbench.matrix.catalog import load_catalog
    from rankbench.matrix.plan import plan_predicted
    from rankbench.plan import read_plan
    from rankbench.results.advice.answer import describe as describe_cell
    from rankbench.results.advice.choice import to_json
    from rankbench.results.elements.text import shorten
    from rankbench.results.prediction.predict import predict
    from rankbench.results.sections.prediction import SECTION, describe

    plan = read_plan(layout.plan)
    targets = [one for one in found.targets if one.cell.topology in arguments.at]
    try:
        # Each for each series of the plan, unless it is measured already.
        targets = targets or plan_predicted(
            {name: planned.cell for name, planned in plan.cells.items()},
            arguments.at,
            plan.site,
            load_catalog().for_cuda(plan.site["cuda_flavour"]).with_own(plan.own),
        )
    except KeyError as error:  # It may come from anywhere.
        raise ValueError(
            f"{layout.plan} is damaged, or of another rankbench: it lacks {error}"
        ) from error
    if not targets:
        raise ValueError("--at: all of these topologies are measured, or are of single")
    made = list(predict(found.rows, targets, found.price))
    said = describe(made)
    if arguments.json:
        print_json({"predictions": to_json(said.rows)})
    else:
        names = {row.id: describe_cell(row.cell) for row in found.rows}
        names |= {one.target.id: describe_cell(one.target.cell) for one in made}
        if len({*names.values()}) < len(names):  # They differ in more than words say.
            names, _ = shorten([*names])
        for grid in SECTION.grids(describe([one for one in made if not one.refused])):
            print_grid(grid, names, whole=True)
        print_notes(said.notes, names)
        refused: dict[str, list[str]] = {}
        for one in made:
            if one.refused:
                refused.setdefault(one.refused, []).append(names[one.target.id])
        for why, alike in refused.items():
            say(f"not predicted: {', '.join(alike)}: {why}")
    return OK if any(one.throughput for one in made) else FINDING
