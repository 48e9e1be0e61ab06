"""The command `rankbench compare`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rankbench.commands._options import (
    FINDING,
    OK,
    UNDECIDED,
    command,
    print_json,
    print_result,
)
from rankbench.record import Layout, write_atomically
from rankbench.results.elements.text import shorten
from rankbench.say import say

if TYPE_CHECKING:
    from rankbench.results.compare.comparison import Comparison


@command(
    options="SIDE --between --at-least --by --models --page --save-baseline --margin "
    "--confidence --tolerance",
    examples=(
        "compare results/images --between image=gloo,mpi",
        "compare results/before results/after lab.tar.zst --page runs.html",
        "compare results/quickstart --save-baseline baseline.json",
        "compare published.csv results/quickstart --at-least 0.9 --json",
        "compare nightly/*.json --by date --at-least 0.9",
        "compare results/each --by host --at-least 0.97",
        "compare records/CELL/1/1 --models --tolerance 1e-6",
    ),
    exits="0 none is worse, 1 a cell is worse, has lost its number or misses the share "
    "(by date: in the newest run), or models differ, 2 bad input, 3 undecided",
    json_holds="the verdicts with the numbers behind them",
)
def compare_sides(arguments: argparse.Namespace) -> int:
    """Compare runs, cell by cell, with the first one. Only launches that took turns
    say which is better: give one result folder and --between, which compares its
    cells with two values of a key. --at-least judges a machine against a baseline.
    --by date compares each run with the one before. --models compares trained
    models, tensor by tensor. docs/comparing.md explains the verdicts.
    """
    from rankbench.results.compare.comparison import compare, write_page
    from rankbench.results.compare.sides import encode_baseline, read_side, read_sides

    if arguments.models:
        return _compare_models(arguments)
    if arguments.by == "host":
        return _compare_hosts(arguments)
    paths = arguments.side
    if arguments.between:
        if len(paths) > 1 or arguments.save_baseline:
            raise ValueError("--between: give one SIDE, and no --save-baseline")
        sides = read_sides(paths[0], *_read_between(arguments.between))
    elif len(paths) == 1 and not arguments.save_baseline:
        raise ValueError(
            f"{paths[0]} is one side: add another, --between or --save-baseline FILE"
        )
    else:
        sides = [read_side(path) for path in paths]
    lines = []
    if file := arguments.save_baseline:
        write_atomically(file, encode_baseline(sides[-1]))
        kept = [cell for cell in sides[-1].cells.values() if cell.throughput]
        lines.append(f"{file}: {len(kept)} cells with a number of {sides[-1].name}")
    if len(sides) == 1:
        print_result(arguments, {"saved": str(file)}, lines[0])
        return OK
    found = compare(
        sides,
        at_least=arguments.at_least,
        by_date=arguments.by == "date",
        confidence=arguments.confidence,
        margin=arguments.margin,
    )
    if arguments.page:
        write_page(arguments.page, found)
        lines.append(str(arguments.page))
    return print_comparison(arguments, found, lines)


def _compare_hosts(arguments: argparse.Namespace) -> int:
    """Print the hosts of a run, the fastest first; 1 if one falls below the share."""
    from rankbench.commands._terminal import print_grid
    from rankbench.results.elements.section import Content, spell_ends
    from rankbench.results.numbers.hosts import AT_LEAST, compare_hosts
    from rankbench.results.numbers.result_set import read
    from rankbench.results.read.archive import open_results
    from rankbench.results.sections.hosts import SECTION, make_rows

    share = arguments.at_least or AT_LEAST
    with open_results(arguments.side[0]) as root:
        groups = compare_hosts(read(Layout(root)).measured, share)
    if not groups or len(arguments.side) > 1:
        raise ValueError(
            "--by host: give one SIDE with a cell that ran on several hosts (hosts: "
            "each in the experiment)"
        )
    rows = make_rows(groups)
    slow = [str(row["host"]) for row in rows if row["slow"]]
    if arguments.json:
        print_json([{**row, **spell_ends("ratio", row["ratio"])} for row in rows])
    else:
        for grid in SECTION.grids(Content(rows=rows)):
            print_grid(grid, {}, whole=True)
        say(f"surely below {share:g} of the others: {', '.join(slow) or 'none'}")
    return FINDING if slow else OK


def print_comparison(
    arguments: argparse.Namespace,
    found: Comparison,
    lines: Sequence[str] = (),
) -> int:
    """Print a comparison, and the lines below it; return the exit status."""
    from rankbench.commands._terminal import print_grid, print_notes
    from rankbench.results.compare import comparison

    if arguments.json:
        print_json(comparison.to_json(found))
    else:
        names, shared = shorten([cell.id for cell in found.cells])
        notes, grid, summary = comparison.describe(found)
        print_notes(notes, names)
        say("")
        print_grid(grid, names, shared, whole=True)
        say(*summary, *lines)
    statuses = {comparison.PASS: OK, comparison.FAIL: FINDING}
    return statuses.get(found.verdict, UNDECIDED)


def _read_between(text: str) -> tuple[str, list[str]]:
    """Read ``image=gloo,mpi``.

    Raises:
        ValueError: it is not a key with two values.
    """
    key, equals, values = text.partition("=")
    pair = values.split(",")
    if not key or not equals or len(pair) != 2 or not all(pair) or pair[0] == pair[1]:
        raise ValueError(f"--between {text}: expected KEY=A,B, such as image=gloo,mpi")
    return key, pair


def _compare_models(arguments: argparse.Namespace) -> int:
    """Compare the first trained model with each of the others."""
    from rankbench.rank.training import saving

    paths = [path for given in arguments.side for path in saving.find_models(given)]
    if len(paths) < 2:
        raise ValueError(
            f"{paths[0]} is one model: give another one, or the folder of a launch "
            "that was measured with `save_model: per_rank`"
        )
    first = saving.load_model(paths[0])
    facts, lines = [], []
    for path in paths[1:]:
        other = saving.load_model(path)
        found = saving.compare_models(first, other, tolerance=arguments.tolerance)
        pair = {"first": str(paths[0]), "second": str(path), "tensors": len(first)}
        facts.append({**pair, "differences": [asdict(one) for one in found]})
        count = f"{len(found)} differ" if found else "all are equal"
        lines += [f"{paths[0]}\n{path}", *map(_to_text, found)]
        lines.append(f"  {len(first)} tensors, {count}")
    # JSON has no infinities: they become text.
    strict = json.loads(json.dumps(facts), parse_constant=str)
    print_result(arguments, strict, "\n".join(lines))
    return FINDING if any(pair["differences"] for pair in facts) else OK


def _to_text(tensor: Any) -> str:
    if tensor.largest is None:
        missing = tensor.what in ("first", "second")
        where = f"missing in the {tensor.what}" if missing else f"other {tensor.what}"
        return f"  {tensor.name}: {where}"
    return (
        f"  {tensor.name}: up to {tensor.largest:.3g}, relative {tensor.relative:.3g}"
    )
