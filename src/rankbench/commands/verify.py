"""The command `rankbench verify`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankbench.commands.base import FINDING, OK, add_parser, print_json

if TYPE_CHECKING:
    from rankbench.results.bundle.verify import Verification

ABOUT = """\
Check a bundle that `rankbench publish` wrote: compare its files with its manifest, and
its tables and plot data with numbers derived again from its plan and records. Each
difference is printed with its place. If a rankbench with another method wrote the
bundle, its files and records are checked, and a line names the version that can derive
its numbers again. Signatures are checked, and --signers or --signer says whose they
are. No content of a bundle is executed, and no network is used."""

EXAMPLES = """\
examples:
  rankbench verify results/quickstart/results.tar.zst
  rankbench verify docs/example --json
  rankbench verify docs/example --strict
  rankbench verify results.tar.zst --signer jdoe.keys
  rankbench verify results.tar.zst --signers allowed_signers --json

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
        json_holds="whether the bundle is verified, its findings, notes, signatures",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="fail unless all numbers were derived again",
    )
    parser.add_argument(
        "--signers",
        metavar="FILE",
        type=Path,
        help="fail unless each signature, and at least one, is by somebody in FILE, "
        "which has OpenSSH's format allowed_signers",
    )
    parser.add_argument(
        "--signer",
        metavar="USER.keys",
        type=Path,
        action="append",
        default=[],
        help="fail unless USER has signed, whose public keys the file lists; may be "
        "repeated, and other signatures are refused",
    )
    parser.add_argument("bundle", type=Path, help="results.tar.zst or its folder")


def verify(arguments: argparse.Namespace) -> int:
    """Check a bundle; return 1 if a difference was found."""
    from rankbench.results.bundle import verify_bundle
    from rankbench.results.bundle.signatures import read_signers

    signers = read_signers(arguments.signers, arguments.signer)
    found = verify_bundle(arguments.bundle, signers)
    verified = not found.findings and (found.rederived or not arguments.strict)
    if arguments.json:
        print_json({"verified": verified, **dataclasses.asdict(found)})
    else:
        for line in (*found.findings, *found.notes, *_name_signers(found)):
            print(line)
        if not found.findings:
            word = "verified" if verified else "not verified (--strict)"
            how = "were" if found.rederived else "were not"
            print(f"{arguments.bundle}: {word}: its numbers {how} derived again")
    return OK if verified else FINDING


def _name_signers(found: Verification) -> list[str]:
    """Return a line for each valid signature, or a line if there are no signatures."""
    lines = []
    for one in found.signatures:
        key = f"with {one.key_type} key {one.fingerprint}"
        if one.principals:
            whose = ", ".join(one.principals)
            lines.append(f"{one.file}: manifest.json is signed by {whose} {key}")
        elif not one.fault:
            whose = "--signers or --signer would say whose that is"
            lines.append(f"{one.file}: manifest.json is signed {key}; {whose}")
    if not found.signatures and not found.findings:
        lines.append("the bundle is not signed")
    return lines
