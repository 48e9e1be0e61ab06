"""The command `rankbench compare`."""

from __future__ import annotations

import argparse

from rankbench.commands._options import BAD_INPUT, FINDING, OK, command, print_result
from rankbench.record import write_atomically
from rankbench.say import say


@command(
    options="OLD NEW --between --confidence --margin --save-baseline",
    examples=(
        "compare results/before results/after --margin 0.1",
        "compare results/images --between image=gloo,mpi",
        "compare results/quickstart --save-baseline baseline.json",
        "compare baseline.json results/quickstart --json",
    ),
    exits="0 no cell is worse, 1 a cell is worse or has lost its number, "
    "2 bad input, or no cell could be judged",
    json_holds="the verdicts with the numbers behind them",
)
def compare_runs(arguments: argparse.Namespace) -> int:
    """Compare two runs, cell by cell: is NEW better than OLD, worse, or equal? Or
    give one result folder and --between, which compares its cells with two values
    of a key: these were measured in the same rounds. Other differences between the
    runs (machines, versions, images, code) are printed first. docs/comparing.md
    explains the verdicts, and how many launches a verdict needs.
    """
    from rankbench.results.compare.comparison import compare
    from rankbench.results.compare.sides import encode_run, read_side, read_sides
    from rankbench.results.compare.text import compared_to_json, compared_to_text

    if arguments.between:
        if arguments.new is not None:
            raise ValueError("NEW and --between: give one of them, not both")
        sides = [*read_sides(arguments.old, *_read_between(arguments.between))]
    elif arguments.new is None and arguments.save_baseline is None:
        raise ValueError(
            "compare with what? Give OLD and NEW, OLD and --between KEY=A,B, or "
            "--save-baseline FILE"
        )
    else:
        sides = [read_side(path) for path in (arguments.old, arguments.new) if path]
    if arguments.save_baseline:
        write_atomically(arguments.save_baseline, encode_run(sides[-1]))
    if len(sides) == 1:
        return OK
    found = compare(*sides, confidence=arguments.confidence, margin=arguments.margin)
    print_result(arguments, compared_to_json(found), compared_to_text(found))
    if found.is_worse:
        return FINDING
    if not any(cell.ratio and cell.ratio.interval for cell in found.cells):
        say("rankbench: no cell could be judged", aside=True)
        return BAD_INPUT
    return OK


def _read_between(text: str) -> tuple[str, tuple[str, str]]:
    """Read ``image=gloo,mpi``.

    Raises:
        ValueError: it is not a key with two values.
    """
    key, equals, values = text.partition("=")
    pair = values.split(",")
    if not key or not equals or len(pair) != 2 or not all(pair) or pair[0] == pair[1]:
        raise ValueError(f"--between {text}: expected KEY=A,B, such as image=gloo,mpi")
    return key, (pair[0], pair[1])
