"""The command `rankbench check`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankbench import schema
from rankbench.commands._base import plan_run
from rankbench.commands._execute import run_target
from rankbench.commands._options import (
    FINDING,
    OK,
    command,
    print_json,
    print_result,
)
from rankbench.invocation import named_in, rankbench_command
from rankbench.matrix.obstacles import misfits
from rankbench.matrix.own import OwnFile, describe_file
from rankbench.own_files import Check, unlisted_files
from rankbench.project.jobs import why_too_long
from rankbench.project.preview import Preview
from rankbench.project.run import Run
from rankbench.say import say
from rankbench.schedulers import scheduler_of


@command(
    options="CHECKED --override --site --data --option",
    examples=(
        "check mine.yaml",
        "check --site slurm_profile",
        "check net.py --option width=64 --data ./corpus.py",
        "check net.py --json",
    ),
    exits="0 well, 1 a check failed or no cell can run, 2 bad input",
    json_holds="what was checked, and what was found",
)
def check(arguments: argparse.Namespace) -> int:
    """Check before you measure. An experiment: which of its cells can run here. A
    model, a data set or a training script of your own: the file of a model or of a
    data set is imported and run here, a script is only read (docs/your-own-model.md).
    With --site, inspect the hosts of a cluster in a short job, and print where they
    differ from site.yaml, and how to correct it.
    """
    given, site = arguments.experiment, arguments.site
    if given and given.endswith(".py"):
        return _check_file(describe_file(Path(given)), arguments)
    run = plan_run(arguments)
    has_hosts = scheduler_of(run.plan.site).has_hosts
    if site and not (has_hosts or given):
        raise ValueError(
            f"{site}/site.yaml has no scheduler: there are no hosts to check; give "
            "the profile of a cluster, such as --site slurm_profile"
        )
    if site and has_hosts:
        return _check_hosts(run, arguments)
    preview = Preview(run)
    lines = preview.lines()
    if run.feasible:
        named = named_in(run.plan.experiment)
        lines.append(f"next: {rankbench_command('run', **named)}")
    facts = {"experiment": run.plan.name, **preview.facts()}
    print_result(arguments, facts, "\n".join(lines))
    return OK if run.feasible else FINDING


def _check_hosts(run: Run, arguments: argparse.Namespace) -> int:
    # Snakemake would end with an exception of its own below the faults.
    found = run.layout.work / "hosts.txt"
    status = run_target(run, arguments, str(found))
    if status == OK:
        report = found.read_text()
        found.unlink()  # The next check looks anew.
        say(report.rstrip(), aside=True)
        status = FINDING if "\nFAULT " in f"\n{report}" else OK
    if why := why_too_long(run):
        say(f"FAULT {why}", aside=True)
        status = status or FINDING
    if arguments.json:
        print_json({"well": status == OK})
    return status


def _check_file(own: OwnFile, arguments: argparse.Namespace) -> int:
    """Check a model, a data set, a strategy or a script of the user's own."""
    checks = _run(own, arguments)
    well = all(c.well is not False for c in checks)
    needs = {key: value for c in checks for key, value in c.needs.items()}
    missing = {k: v for k, v in needs.items() if own.facts.get(k, v) != v}
    if arguments.json:
        found = [
            {"check": c.name, "well": c.well, "said": c.said, "needs": dict(c.needs)}
            for c in checks
        ]
        print_json({"file": str(own.path), "kind": own.key, "checks": found})
        return OK if well else FINDING
    word = _KINDS.get(own.key, own.key)
    say(f"{own.path.name}: a {word}; files: {', '.join(own.files)}")
    for c in checks:
        unsure = "unsupported" if own.key != "script" else "to do"
        result = {True: "ok", False: "FAILED", None: unsure}[c.well]
        say(f"  {c.name:<12} {result:<12} {c.said}")
    # What a failed check seems to need is a fault of the file, not a fact about it.
    if missing and well:
        say(f"declare in the file what was found: NEEDS = {missing}")
    if own.key == "script":
        how = rankbench_command("run", experiment=arguments.experiment)
        say(f"next: {how} ARGUMENTS")
    else:
        say(f"in an experiment: {own.key}: ./{own.path.name}")
    return OK if well else FINDING


# Key of an experiment -> what its file is, where that is another word.
_KINDS = {
    "data": "data set",
    "script": "training script (a model defines build, a data set SHAPE)",
}


def _run(own: OwnFile, arguments: argparse.Namespace) -> Sequence[Check]:
    if own.key in ("strategy", "script"):
        missing = own.facts["needs"].get("missing", [])
        absent = f"not installed here: {', '.join(missing)}" if missing else ""
        found = [Check("packages", not missing, absent)]
        if own.key == "script" and (unlisted := unlisted_files(own.path, own.files)):
            said = f"list under files what it reads of: {', '.join(unlisted)}"
            found.append(Check("files", None, said))
        return found
    from rankbench.rank import data, variants
    from rankbench.rank.purposes.check_own import check_data, check_model

    sys.path.insert(0, str(own.path.parent))
    variants.own[own.key, own.name] = own.path
    root = Path("data")
    if own.key == "data":
        return check_data(own.name, root)
    name = arguments.data
    if name.endswith(".py"):
        other = describe_file(Path(name))
        name = other.name
        variants.own["data", name] = other.path
    sizes = data.sizes_of(variants.load("data", name).SHAPE)
    for why in misfits(own.name, own.facts, name, sizes):
        raise ValueError(f"--data: {why}")
    options = _read_options(arguments.option)
    known = {"type": "object", "properties": own.facts["options"]}
    known["additionalProperties"] = own.facts["open"]
    schema.check(options, known, source="--option")
    return check_model(own.name, sizes, options)


def _read_options(given: Sequence[str]) -> dict[str, Any]:
    options = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise ValueError(f"--option {word}: expected NAME=VALUE, such as width=64")
        options[key] = schema.parse_yaml(value, f"--option {word}")
    return options
