"""The command `rankbench answer`."""

from __future__ import annotations

import argparse

from rankbench.commands._base import open_results
from rankbench.commands._options import OK, UNDECIDED, command, print_json
from rankbench.commands._terminal import print_brief, print_details


@command(
    options="WHAT --override --site --margin --efficiency --details --next",
    examples=(
        "answer results/quickstart --margin 0.05",
        "answer --efficiency 0.9 --json",
        "answer scaling.yaml --next",
    ),
    exits="0, 2 bad input, 3 the fastest row cannot be told apart from others",
    json_holds="the answer, as in answer.json",
)
def answer(arguments: argparse.Namespace) -> int:
    """Say what the records answer: which row is the fastest and which the cheapest,
    how far it scales, why not further, what that means for training, what weakens
    the answer, and what to launch next to settle what cannot be told yet. Nothing
    is measured. docs/answer.md explains each of them.
    """
    from rankbench.results.advice.answer import find_answer
    from rankbench.results.numbers.result_set import read

    for name in ("margin", "efficiency"):
        value = getattr(arguments, name)
        if not 0 < value < 1:
            raise ValueError(f"--{name}: expected a share between 0 and 1, not {value}")
    with open_results(arguments) as layout:
        found = read(layout)
        facts = find_answer(
            found, margin=arguments.margin, efficiency=arguments.efficiency
        )
    if arguments.next:
        for each in facts["workloads"]:
            planned = each.get("next", ())
            each["next"] = [
                step for step in planned if step["settles"] == arguments.next
            ]
    only_next = arguments.next is not None
    if arguments.json:
        planned = [step for each in facts["workloads"] for step in each.get("next", ())]
        print_json(planned if only_next else facts)
    else:
        cells = [summary.id for summary in found.rows]
        only = {"workload", "next"} if only_next else None
        if arguments.details or only:
            print_details(facts, cells, only=only)
        else:
            print_brief(facts)
    rivals = [
        rival
        for workload in facts["workloads"]
        for rival in workload.get("fastest", {}).get("rivals", ())
        if rival["verdict"] != "equal"
    ]
    return UNDECIDED if rivals else OK
