"""The command `rankbench history`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rankbench.commands.base import FINDING, OK, add_parser, print_json

DEFAULT_STORE = Path("history")

ABOUT = """\
Show what changed since when, by how much, and which versions differ, in the runs of a
store. `rankbench history add RESULTS` keeps a run there: a small JSON file, which can
lie in git. A cell is followed as long as its definition stays the same. Changes of
level are found by segmentation and a test that permutes whole runs; a level lasts at
least two runs, so one bad run is no change. docs/history.md explains the method, and
how to measure every night."""

EXAMPLES = """\
examples:
  rankbench history add results/nightly
  rankbench history
  rankbench history --cell ddp.gloo.1x2.convnet.digits
  rankbench history --page history.html
  rankbench history --json

exit status: 0 nothing became worse, 1 the newest run shows that a cell became worse
(once: the next run does not show it anew), 2 bad input"""

ADD_ABOUT = """\
Keep the launches of runs, and their environment, in a store. A run is a result
directory or a bundle; a bundle is verified first, as by `rankbench verify`. Adding a
run again changes nothing."""

ADD_EXAMPLES = """\
examples:
  rankbench history add results/nightly
  rankbench history add results.tar.zst docs/example --store shared/history

exit status: 0 all runs are in the store, 2 bad input: nothing was added"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "history",
        show_history,
        summary="follow results over time: what changed since when?",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the changes, and the numbers of every run",
    )
    parser.add_argument("--cell", metavar="ID", help="only this cell, with its runs")
    parser.add_argument(
        "--page", metavar="FILE.html", type=Path, help="write a page with a plot"
    )
    _add_store(parser, DEFAULT_STORE)
    actions = parser.add_subparsers(metavar="add")
    adding = add_parser(
        actions,
        "add",
        add_runs,
        summary="keep runs in the store",
        about=ADD_ABOUT,
        examples=ADD_EXAMPLES,
        json_holds="the file of each run, and whether it is new",
    )
    _add_store(adding, argparse.SUPPRESS)
    adding.add_argument("runs", metavar="DIR_OR_BUNDLE", nargs="+", type=Path)


def _add_store(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument(
        "--store",
        metavar="DIR",
        type=Path,
        default=default,
        help=f"folder with the runs ({DEFAULT_STORE})",
    )


def add_runs(arguments: argparse.Namespace) -> int:
    """Keep runs in the store; read all of them before the first is written."""
    from rankbench.results.history.store import ADDED, KNOWN, RESTORED, add_run

    if arguments.cell or arguments.page:
        raise ValueError("--cell and --page show a history: give them without add")
    words = {
        ADDED: "added",
        KNOWN: "is in the store already: nothing changed",
        RESTORED: "added again: its file was damaged",
    }
    runs = [(path, _read_run(path)) for path in arguments.runs]
    found = []
    for path, run in runs:
        file, what = add_run(arguments.store, run)
        found.append({"results": str(path), "run": str(file), "what": what})
        if not arguments.json:
            print(f"{path}: {words[what]}: {file}")
    if arguments.json:
        print_json(found)
    return OK


def _read_run(path: Path) -> bytes:
    """What the store keeps of a result directory or a bundle.

    Raises:
        ValueError: it is neither, or the bundle is not what rankbench published.
    """
    from rankbench.results.bundle import verify_bundle
    from rankbench.results.bundle.manifest import MANIFEST
    from rankbench.results.compare.sides import encode_run, read_side

    is_bundle = path.is_file() or (path / MANIFEST).exists()
    if is_bundle and (findings := verify_bundle(path).findings):
        said = "\n".join(f"  {finding}" for finding in findings)
        raise ValueError(f"{path} is not what was published; not added:\n{said}")
    return encode_run(read_side(path))


def show_history(arguments: argparse.Namespace) -> int:
    """Print the history; return 1 if the newest run shows that a cell became worse."""
    from rankbench.results.history.changes import follow
    from rankbench.results.history.store import read_store
    from rankbench.results.history.text import choose, to_json, to_text, write_page

    store = read_store(arguments.store)
    for damage in store.damaged:
        print(f"rankbench: {damage}", file=sys.stderr)
    history = follow(store.runs)
    if arguments.page:
        write_page(arguments.page, store, history, arguments.cell)
    if arguments.json:
        print_json(to_json(store, history, arguments.cell))
    else:
        print(to_text(store, history, arguments.cell))
    if arguments.page and not arguments.json:
        print(f"\n{arguments.page}")
    return FINDING if choose(history, arguments.cell).begins_worse else OK
