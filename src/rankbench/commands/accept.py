"""The command `rankbench accept`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rankbench.commands._options import FINDING, OK, UNDECIDED, command, print_result

if TYPE_CHECKING:
    from rankbench.results.compare.comparison import Comparison
    from rankbench.results.compare.sides import Side


@command(
    options="BASELINE RESULTS --at-least --confidence",
    examples=(
        "accept baseline.json results/quickstart",
        "accept delivered.tar.zst results/acceptance --at-least 0.97",
        "accept published.csv results/acceptance --json",
    ),
    exits="0 PASS, 1 FAIL, 2 bad input, 3 UNDECIDED",
    json_holds="the verdicts with the numbers behind them",
)
def accept_results(arguments: argparse.Namespace) -> int:
    """Does this machine keep what BASELINE promises? Each row passes, fails, or
    cannot be decided by these launches; then the output says how many launches
    would decide. One row that fails makes the machine fail. A file of published
    numbers has the columns cell and throughput. docs/comparing.md explains the
    verdicts.
    """
    from rankbench.results.compare.sides import read_reference, read_side
    from rankbench.results.compare.text import accepted_to_json, accepted_to_text

    baseline = read_reference(arguments.baseline)
    results = read_side(arguments.results)
    found, status = judge_results(baseline, results, arguments)
    print_result(arguments, accepted_to_json(found), accepted_to_text(found))
    return status


def judge_results(
    old: Side, new: Side, arguments: argparse.Namespace
) -> tuple[Comparison, int]:
    """Judge whether `new` keeps what `old` promises; also return the exit status."""
    from rankbench.results.compare.comparison import FAIL, PASS, accept

    found = accept(
        old,
        new,
        at_least=arguments.at_least,
        confidence=arguments.confidence,
    )
    return found, {PASS: OK, FAIL: FINDING}.get(found.verdict, UNDECIDED)
