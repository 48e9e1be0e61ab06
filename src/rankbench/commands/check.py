"""The command `rankbench check`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rankbench.commands._options import FINDING, OK, command, print_json
from rankbench.matrix.own import OwnFile, describe_file
from rankbench.own_files import Check, unlisted_files
from rankbench.say import say


@command(
    options="FILE --data --option",
    examples=(
        "check net.py --option width=64 --data ./corpus.py",
        "check net.py --json",
    ),
    exits="0 well, 1 a check failed, 2 bad input",
    json_holds="the kind of the file, and each check with its result",
)
def check(arguments: argparse.Namespace) -> int:
    """Check a model, a data set or a training script of your own before you measure
    with it. The file of a model or of a data set is imported and run here; a script
    is only read. docs/your-own-model.md explains it.

    Raises:
        ValueError: it cannot be read, or is of no known kind.
    """
    own = describe_file(arguments.file)
    checks = _run(own, arguments)
    needs = {key: value for c in checks for key, value in c.needs.items()}
    missing = {k: v for k, v in needs.items() if own.facts.get(k, v) != v}
    if arguments.json:
        found = [
            {"check": c.name, "well": c.well, "said": c.said, "needs": dict(c.needs)}
            for c in checks
        ]
        print_json({"file": str(own.path), "kind": own.key, "checks": found})
    else:
        word, more = _KINDS[own.key]
        say(f"{own.path.name}: a {word}; files: {', '.join(own.files)}")
        for c in checks:
            unsure = "unsupported" if own.key != "script" else "to do"
            result = {True: "ok", False: "FAILED", None: unsure}[c.well]
            say(f"  {c.name:<12} {result:<12} {c.said}")
        if missing:
            say(f"declare in the file what was found: NEEDS = {missing}")
        say(f"in an experiment: {own.key}: ./{own.path.name}{more}")
    return FINDING if any(c.well is False for c in checks) else OK


# Key of an experiment -> what its file is, and what else to know about the key.
_KINDS = {
    "model": ("model", "; the gate then checks each strategy"),
    "data": ("data set", ""),
    "strategy": ("strategy", "; the gate then checks it"),
    "script": ("training script", ", with args, samples_per_step, steps"),
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
    return check_model(own.name, sizes, _read_options(arguments.option))


def _read_options(given: Sequence[str]) -> dict[str, Any]:
    options = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise ValueError(f"--option {word}: expected NAME=VALUE, such as width=64")
        options[key] = yaml.safe_load(value)
    return options
