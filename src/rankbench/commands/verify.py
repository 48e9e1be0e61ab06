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
Check a bundle that `rankbench publish` wrote: compare its files with its manifest, and
its tables and plot data with numbers derived again from its plan and records. Each
difference is printed with its place. If another version of rankbench wrote the bundle,
sections with a changed method are listed, and only columns that still mean the same are
compared. No content of a bundle is executed."""

EXAMPLES = """\
examples:
  rankbench verify results/quickstart/results.tar.zst
  rankbench verify docs/example --json
  rankbench verify docs/example --strict

exit status: 0 verified, 1 a difference was found, 2 not a bundle"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "verify",
        verify,
        summary="check the files of a bundle, and derive its tables again",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="whether the bundle is verified, each finding, and each section",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="fail unless all numbers of all sections were derived again",
    )
    parser.add_argument("bundle", type=Path, help="results.tar.zst or its folder")


def verify(arguments: argparse.Namespace) -> int:
    """Check a bundle; return 1 if a difference was found."""
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
    """Return a line for each part that could not be compared."""
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
