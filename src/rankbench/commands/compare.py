"""The command `rankbench compare`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rankbench.commands.base import BAD_INPUT, FINDING, OK, add_parser, print_json
from rankbench.record import write_atomically

ABOUT = """\
Compare two runs, cell by cell: is NEW better than OLD, worse, or equal?

OLD and NEW are result directories, or baselines that --save-baseline wrote. Or give
one result directory and --between, which compares its cells with two values of a key:
these were measured in the same rounds, so the machine was the same for both. Other
differences between the runs (machines, versions, images, code) are printed first.
docs/comparing.md explains the verdicts, and how many launches a verdict needs."""

EXAMPLES = """\
examples:
  rankbench compare results/before results/after
  rankbench compare results/before results/after --margin 0.1
  rankbench compare results/images --between image=gloo,mpi
  rankbench compare results/quickstart --save-baseline baseline.json
  rankbench compare baseline.json results/quickstart --json

exit status: 0 no cell is worse, 1 a cell is worse or has lost its number,
2 bad input, or no cell could be judged"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "compare",
        compare_runs,
        summary="compare two runs: better, worse or equal?",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the verdicts with the numbers behind them",
    )
    parser.add_argument("old", metavar="OLD", type=Path)
    parser.add_argument("new", metavar="NEW", type=Path, nargs="?")
    parser.add_argument(
        "--between",
        metavar="KEY=A,B",
        help="compare cells of OLD that differ in this key alone: A is OLD, B is NEW",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        help="confidence of all verdicts together, and of each interval (%(default)s)",
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=0.03,
        help="treat relative changes up to this size as no change (%(default)s: 3 %%)",
    )
    parser.add_argument(
        "--save-baseline",
        metavar="FILE",
        type=Path,
        help="save the numbers of NEW (of OLD, if NEW is not given) in a JSON file",
    )


def compare_runs(arguments: argparse.Namespace) -> int:
    """Print the comparison; return 1 if a cell is worse, 2 if none could be judged."""
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
    if arguments.json:
        print_json(compared_to_json(found))
    else:
        print(compared_to_text(found))
    if found.is_worse:
        return FINDING
    if not found.tested:
        print("rankbench: no cell could be judged", file=sys.stderr)
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
