"""The command `rankbench answer`."""

from __future__ import annotations

import argparse
from typing import Any

from rankbench.commands._answer import print_answer
from rankbench.commands.base import (
    OK,
    UNDECIDED,
    add_parser,
    add_results,
    find_results,
    print_json,
)

ABOUT = """\
Say what the records answer: which row is the fastest and which the cheapest, how far it
scales, why not further, what that means for training, what weakens the answer, and what
to launch next to settle what cannot be told yet. docs/answer.md explains each of them.
Nothing is measured."""

EXAMPLES = """\
examples:
  rankbench answer
  rankbench answer --results results/quickstart --margin 0.05
  rankbench answer --efficiency 0.9 --json
  rankbench answer --next

exit status: 0, 2 bad input, 3 the fastest row cannot be told apart from others"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "answer",
        answer,
        summary="say what to use, what cannot be told, and what to measure next",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the answer, as in answer.json",
    )
    add_results(parser)
    parser.add_argument(
        "--margin",
        type=float,
        default=0.03,
        help="rows that differ by less are equally good, as a share (%(default)s)",
    )
    parser.add_argument(
        "--efficiency",
        type=float,
        default=0.7,
        help="a topology is sensible if its efficiency is higher (%(default)s)",
    )
    parser.add_argument(
        "--next",
        action="store_true",
        help="print only which rows to launch how often, and what that costs",
    )


def answer(arguments: argparse.Namespace) -> int:
    """Print the answer; nothing is written."""
    from rankbench.results.advice.answer import Settings, find_answer
    from rankbench.results.numbers.found import read

    for name in ("margin", "efficiency"):
        value = getattr(arguments, name)
        if not 0 < value < 1:
            raise ValueError(f"--{name}: expected a share between 0 and 1, not {value}")
    found = read(find_results(arguments))
    settings = Settings(
        margin=arguments.margin,
        efficiency=arguments.efficiency,
        price=found.results.price,
    )
    facts = find_answer(found, settings)
    if arguments.json:
        planned = [one for each in facts["workloads"] for one in each.get("next", ())]
        print_json(planned if arguments.next else facts)
    else:
        cells = [summary.row.id for summary in found.summaries]
        only = {"workload", "next"} if arguments.next else None
        print_answer(facts, cells, only=only)
    rivals = [
        rival
        for one in facts["workloads"]
        for rival in one.get("fastest", {}).get("rivals", ())
        if rival["verdict"] != "equal"
    ]
    return UNDECIDED if rivals else OK
