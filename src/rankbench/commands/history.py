"""The command `rankbench history`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankbench.commands._options import FINDING, OK, command, print_result
from rankbench.say import say


@command(
    options="ADD --cell --page --store",
    examples=(
        "history add results/nightly",
        "history add results.tar.zst docs/example --store shared/history",
        "history --cell ddp.gloo.1x2.convnet.digits",
        "history --page history.html",
        "history --json",
    ),
    exits="0 nothing became worse, or all runs are in the store, 1 the newest run "
    "shows that a cell became worse (the next does not show it anew), 2 bad input",
    json_holds="the changes, and the numbers of every run; after add, its file",
)
def show_history(arguments: argparse.Namespace) -> int:
    """Show what changed since when, by how much, and which versions differ, in the
    runs of a store. `history add RUN ...` keeps the launches of result folders or
    bundles there; bundles are verified first. docs/history.md explains the method,
    and how to measure every night.
    """
    from rankbench.results.history.changes import follow
    from rankbench.results.history.store import read_store
    from rankbench.results.history.text import choose, to_json, to_text, write_page

    if arguments.add:
        return _add_runs(arguments)
    store = read_store(arguments.store)
    for damage in store.damaged:
        say(f"rankbench: {damage}", aside=True)
    history = choose(follow(store.runs), arguments.cell)
    if arguments.page:
        write_page(arguments.page, store, history)
    text = to_text(store, history, points=arguments.cell is not None)
    text += f"\n\n{arguments.page}" if arguments.page else ""
    print_result(arguments, to_json(store, history), text)
    return FINDING if history.begins_worse else OK


def _add_runs(arguments: argparse.Namespace) -> int:
    """Keep runs in the store; read all of them before the first is written."""
    from rankbench.results.history.store import ADDED, KNOWN, RESTORED, add_run

    action, *paths = arguments.add
    if action != "add" or not paths:
        raise ValueError(f"{action}: expected `add` and result folders or bundles")
    if arguments.cell or arguments.page:
        raise ValueError("--cell and --page show a history: give them without add")
    words = {
        ADDED: "added",
        KNOWN: "is in the store already: nothing changed",
        RESTORED: "added again: its file was damaged",
    }
    runs = [(path, _read_run(Path(path))) for path in paths]
    found, lines = [], []
    for path, run in runs:
        file, what = add_run(arguments.store, run)
        found.append({"results": path, "run": str(file), "what": what})
        lines.append(f"{path}: {words[what]}: {file}")
    print_result(arguments, found, "\n".join(lines))
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
