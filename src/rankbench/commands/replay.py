"""The command `rankbench replay`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankbench.commands._base import argv_for, find_profile, plan_run
from rankbench.commands._execute import execute
from rankbench.commands._options import OK, command, print_result
from rankbench.commands.compare import print_comparison
from rankbench.invocation import shown
from rankbench.launch.hosts.base import hosts_of
from rankbench.matrix.site import read_site
from rankbench.project.preview import Preview
from rankbench.project.run import Run
from rankbench.record import Layout, read_json
from rankbench.say import say
from rankbench.schedulers import scheduler_of

if TYPE_CHECKING:
    from rankbench.results.bundle.replay import Replay


# Receives the experiment, and files that the bundle brings.
FOLDER = Path("replay")


@command(
    options="BUNDLE --run --run-their-code --site --at-least --confidence",
    examples=(
        "replay docs/example --run",
        "replay results.tar.zst --run --run-their-code --site slurm_profile",
        "replay results.tar.zst --run --at-least 0.9 --json",
    ),
    exits="0 PASS: all rows with a number are reproduced, 1 FAIL: one is not, 2 bad "
    "input or a faulty bundle, 3 UNDECIDED",
    json_holds="the comparison (without --run, what would run)",
)
def replay(arguments: argparse.Namespace) -> int:
    """Measure the cells of a bundle here, and compare: `rankbench compare
    --at-least` with the bundle as baseline. Without --run, verify the bundle, print
    what would run, and write nothing. If the bundle brings code of its own, such as
    a model or a script, --run also needs --run-their-code: read that code first.
    """
    from rankbench.results.bundle.replay import plan_replay, write_replay
    from rankbench.results.bundle.verify import verify_folder
    from rankbench.results.compare.comparison import compare
    from rankbench.results.compare.sides import read_side
    from rankbench.results.numbers.hosts import AT_LEAST
    from rankbench.results.read.archive import open_folder

    with open_folder(arguments.bundle) as root:
        found = verify_folder(root)
        if found.findings:
            raise ValueError(
                f"{arguments.bundle} is not replayed, because it has faults. "
                f"{found.findings[0]} (`rankbench verify` lists all)"
            )
        wanted = plan_replay(root, _find_lacking(arguments, root))
        if arguments.run and wanted.code and not arguments.run_their_code:
            raise ValueError(
                f"{arguments.bundle} brings code of its own: {', '.join(wanted.code)}. "
                "Read it, then add --run-their-code to run it here"
            )
        with tempfile.TemporaryDirectory(prefix="rankbench-replay-") as folder:
            # Planning reads files of the bundle, and runs none.
            run = _plan(arguments, write_replay(wanted, Path(folder)), wanted)
            if not arguments.run:
                return _show(arguments, wanted, run)
        experiment = write_replay(wanted, FOLDER / wanted.name)
        run = _plan(arguments, experiment, wanted, probe=True)
        lines = [*_describe(wanted, run), *Preview(run).lines()]
        theirs = replace(read_side(root), name=str(arguments.bundle))
    argv = argv_for(arguments)
    say(*lines, aside=True)
    status = execute(run, argv, arguments)
    if not run.layout.plan.exists():
        return status  # Nothing was begun; the output says why.
    ours = wanted.match(theirs, read_side(run.layout.root))
    compared = compare(
        [theirs, ours],
        at_least=arguments.at_least or AT_LEAST,
        confidence=arguments.confidence,
    )
    return print_comparison(arguments, compared)


def _find_lacking(arguments: argparse.Namespace, root: Path) -> set[str]:
    """Keys of the bundle's experiment that follow from its site, and fail here."""
    plan = read_json(Layout(root).plan)
    partitions = {entry["cell"].get("partition") for entry in plan["cells"]} - {None}
    site = read_site(find_profile(arguments) / "site.yaml")
    if not scheduler_of(site).has_queue:
        return {"partition", "allocation"}
    return set() if partitions <= hosts_of(site).limits().keys() else {"partition"}


def _plan(
    arguments: argparse.Namespace,
    experiment: Path,
    wanted: Replay,
    *,
    probe: bool = False,
) -> Run:
    """Plan the experiment of a bundle here; `probe` as for `plan_run`.

    Raises:
        ValueError: it would measure other cells than those of the bundle.
    """
    arguments.experiment, arguments.override = str(experiment), wanted.override
    arguments.only, arguments.no_plots = None, True
    run = plan_run(arguments, write=probe, probe=probe)
    wanted.refuse_others(run.feasible)
    return run


def _show(arguments: argparse.Namespace, wanted: Replay, run: Run) -> int:
    """Print what would run."""
    preview = Preview(run)
    arguments.experiment = str(FOLDER / wanted.name / "experiment.yaml")
    command = shown(argv_for(arguments))
    facts = {"code": list(wanted.code), "images": dict(wanted.images)}
    lines = [*_describe(wanted, run), *preview.lines()]
    lines += [f"$ {command}", "nothing was run: add --run"]
    facts = {"command": command, **facts, **preview.facts()}
    print_result(arguments, facts, "\n".join(lines))
    return OK


def _describe(wanted: Replay, run: Run) -> Iterator[str]:
    """What the bundle asks for, and what this site has of it."""
    yield f"replay of {len(wanted.cells)} cells that the bundle has launches of"
    inside = run.plan.site["software"] == "container"
    if wanted.moved:
        yield (
            "this site lacks their Slurm partitions: each cell is measured once, and "
            "compared with its row of every partition"
        )
    for name in wanted.code:
        yield f"their code: {name}, in {'a' if inside else 'no'} container"
    for name, digest in wanted.images.items():
        here = (run.plan.images.get(name) or {}).get("sha256")
        if not inside:
            said = "this site runs no images"
        elif digest is not None and here == digest:
            said = "the same image is here"
        else:
            said = f"another build is used here ({str(here)[:12]})"
        yield f"image {name} ({str(digest)[:12]}): {said}"
