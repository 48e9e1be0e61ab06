"""The command `rankbench verify`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from rankbench.commands.base import FINDING, OK, add_parser, print_json

ABOUT = """\
Check a bundle that `rankbench publish` wrote: its files against its manifest, and its
tables and the data of its plots against what its plan and records give. Each difference
is told with its place. Nothing that a bundle holds is executed."""

EXAMPLES = """\
examples:
  rankbench verify results/quickstart/results.tar.zst
  rankbench verify docs/example --json

exit status: 0 all is well, 1 something is not, 2 it is no bundle"""


def add(commands: Any) -> None:
    """Add it to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "verify",
        verify,
        summary="is a bundle whole, and do its tables follow from its records?",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="whether it is verified, and each finding",
    )
    parser.add_argument("bundle", type=Path, help="results.tar.zst, or such a folder")


def verify(arguments: argparse.Namespace) -> int:
    """Check a bundle; 1 if anything in it is not as it should be."""
    from rankbench.results.bundle import verify_bundle

    findings = verify_bundle(arguments.bundle)
    if arguments.json:
        found = [dataclasses.asdict(finding) for finding in findings]
        print_json({"verified": not findings, "findings": found})
    elif findings:
        print(*findings, sep="\n")
    else:
        print(f"{arguments.bundle}: verified")
    return FINDING if findings else OK
