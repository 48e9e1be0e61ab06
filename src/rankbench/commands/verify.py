"""The command `rankbench verify`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankbench.commands.base import FINDING, OK, add_parser, print_json

if TYPE_CHECKING:
    from rankbench.results.bundle.finding import Checked, Verification

ABOUT = """\
Check a bundle that `rankbench publish` wrote: its files against its manifest, and its
tables and the data of its plots against what its plan and records give. Each difference
is printed with its place. Of a bundle by another version of rankbench, the sections
whose method has changed since are named, and compared only in what means the same.
Nothing that a bundle holds is executed."""

EXAMPLES = """\
examples:
  rankbench verify results/quickstart/results.tar.zst
  rankbench verify docs/example --json
  rankbench verify docs/example --strict

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
        json_holds="whether it is verified, each finding, and each section",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="fail unless all numbers of all its sections were derived again",
    )
    parser.add_argument("bundle", type=Path, help="results.tar.zst, or such a folder")


def verify(arguments: argparse.Namespace) -> int:
    """Check a bundle; 1 if anything in it is not as it should be."""
    from rankbench.results.bundle import verify_bundle

    found = verify_bundle(arguments.bundle)
    sections = len(found.sections)
    lacking = sections - found.rederived if arguments.strict else 0
    verified = not found.findings and not lacking
    if arguments.json:
        print_json(
            {
                "verified": verified,
                "findings": [dataclasses.asdict(one) for one in found.findings],
                "sections_rederived": found.rederived,
                "sections": [_describe(one) for one in found.sections],
                "unlisted": found.unlisted,
            }
        )
    else:
        for finding in found.findings:
            print(finding)
        for line in _explain(found):
            print(line)
        if not found.findings:
            word = "verified" if verified else "not verified (--strict)"
            counted = f"{found.rederived} of {sections} sections re-derived"
            print(f"{arguments.bundle}: {word}: {counted}")
    return OK if verified else FINDING


def _explain(found: Verification) -> list[str]:
    """A line for everything that could not be compared."""
    lines = [f"{one.name}: {note}" for one in found.sections for note in one.notes]
    if found.unlisted and not found.findings:
        lines.append(f"not in this bundle: {', '.join(found.unlisted)}")
    return lines


def _describe(section: Checked) -> dict[str, Any]:
    return {
        "name": section.name,
        "rederived": section.rederived,
        "findings": len(section.findings),
        "notes": list(section.notes),
    }
