"""The command `rankbench publish`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankbench.commands.base import (
    OK,
    add_parser,
    add_results,
    find_results,
    print_json,
)

if TYPE_CHECKING:
    from rankbench.results.bundle.signatures import Signed

ABOUT = """\
Write files for publication into the result directory R: R/results.tar.zst, a bundle
with plan, records and tables, and R/site, a web page with the same contents. The page
opens from disk or from any web host, and loads nothing from the network. With --sign,
the bundle says whose it is, by the SSH key of a person."""

EXAMPLES = """\
examples:
  rankbench publish
  rankbench publish --experiment studies/lenet-mnist-workers.yaml --anonymise
  rankbench publish --results results/quickstart --json
  rankbench publish --sign ~/.ssh/id_ed25519
  rankbench publish --sign ~/.ssh/id_ed25519 --add-to results.tar.zst

exit status: 0, or 2 on bad input"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "publish",
        publish,
        summary="write a bundle, and a web page that needs no server",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the files, their sizes in bytes, the number of cells",
    )
    add_results(parser)
    parser.add_argument(
        "--anonymise",
        action="store_true",
        help="replace names of hosts, users, accounts, jobs and paths by placeholders",
    )
    parser.add_argument(
        "--sign",
        metavar="KEY",
        type=Path,
        help="sign the bundle with a private SSH key, or with a public one whose "
        "private half is in ssh-agent",
    )
    parser.add_argument(
        "--add-to",
        metavar="BUNDLE",
        type=Path,
        help="add the signature of --sign to this bundle, and publish nothing else",
    )


def publish(arguments: argparse.Namespace) -> int:
    """Write bundle and site; only the result directory is needed."""
    from rankbench.results.bundle import publish as publishing
    from rankbench.results.bundle.signatures import sign

    if arguments.add_to is not None:
        return _add_signature(arguments)
    if arguments.sign is not None:
        # Tables and plots may take minutes, and the key is needed at their end.
        sign(arguments.sign)
    layout = find_results(arguments)
    site = publishing.publish(layout, anonymise=arguments.anonymise, key=arguments.sign)
    if arguments.json:
        print_json(dataclasses.asdict(site))
    else:
        mib = 1024**2
        print(f"{site.bundle}: {site.bundle_bytes / mib:.1f} MiB")
        if site.signature is not None:
            print(_describe(site.bundle, site.signature))
        print(
            f"{site.page}: {site.cells} cells; {site.bytes / mib:.1f} MiB without "
            "bundle and logs"
        )
    return OK


def _add_signature(arguments: argparse.Namespace) -> int:
    """Sign a bundle that somebody has published."""
    from rankbench.results.bundle import sign_bundle

    if arguments.sign is None:
        raise ValueError("--add-to needs --sign KEY, which makes the signature")
    others = ("anonymise", "experiment", "override", "profile", "results")
    if given := [f"--{name}" for name in others if getattr(arguments, name)]:
        raise ValueError(
            f"--add-to and {', '.join(given)}: a bundle that is there already gets a "
            "signature, and no other change; give only one of the two"
        )
    signature = sign_bundle(arguments.add_to, arguments.sign)
    if arguments.json:
        signed = dataclasses.asdict(signature)
        print_json({"bundle": arguments.add_to, "signature": signed})
    else:
        print(_describe(arguments.add_to, signature))
    return OK


def _describe(bundle: Path, signed: Signed) -> str:
    return f"{bundle}: signed with {signed.key_type} key {signed.fingerprint}"
