"""The command `rankbench accept`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rankbench.commands.base import FINDING, OK, UNDECIDED, add_parser, print_json

ABOUT = """\
Does this machine keep what BASELINE promises? Each row passes, fails, or cannot be
decided by these launches; then the output says how many launches would decide. One row
that fails makes the machine fail.

BASELINE is a result directory, a bundle, a baseline that `compare --save-baseline`
wrote, or a table of published numbers: a CSV file with the columns cell and throughput.
RESULTS is a result directory or a bundle. docs/accepting.md explains the verdicts."""

EXAMPLES = """\
examples:
  rankbench accept baseline.json results/quickstart
  rankbench accept delivered.tar.zst results/acceptance --at-least 0.97
  rankbench accept published.csv results/acceptance --json

exit status: 0 PASS, 1 FAIL, 2 bad input, 3 UNDECIDED"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "accept",
        accept_results,
        summary="does this machine keep what a baseline promises?",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the verdicts with the numbers behind them",
    )
    parser.add_argument("baseline", metavar="BASELINE", type=Path)
    parser.add_argument("results", metavar="RESULTS", type=Path)
    parser.add_argument(
        "--at-least",
        type=float,
        default=0.95,
        metavar="RATIO",
        help="throughput over that of the baseline that every row must reach "
        "(%(default)s)",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        help="that no verdict is wrong, over all rows (%(default)s)",
    )


def accept_results(arguments: argparse.Namespace) -> int:
    """Print the verdicts; return 0, 1 or 3 for the machine."""
    from rankbench.results.compare.comparison import FAIL, PASS, accept
    from rankbench.results.compare.sides import read_reference, read_side
    from rankbench.results.compare.text import accepted_to_json, accepted_to_text

    found = accept(
        read_reference(arguments.baseline),
        read_side(arguments.results),
        at_least=arguments.at_least,
        confidence=arguments.confidence,
    )
    if arguments.json:
        print_json(accepted_to_json(found))
    else:
        print(accepted_to_text(found))
    return {PASS: OK, FAIL: FINDING}.get(found.verdict, UNDECIDED)
