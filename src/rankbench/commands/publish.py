"""The command `rankbench publish`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from rankbench.commands.base import (
    OK,
    add_parser,
    add_results,
    find_results,
    print_json,
)

ABOUT = """\
Write files for publication into the result directory R: R/results.tar.zst, a bundle
with plan, records and tables, and R/site, a web page with the same contents. The page
opens from disk or from any web host, and loads nothing from the network."""

EXAMPLES = """\
examples:
  rankbench publish
  rankbench publish --experiment studies/lenet-mnist-workers.yaml --anonymise
  rankbench publish --results results/quickstart --json

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


def publish(arguments: argparse.Namespace) -> int:
    """Write bundle and site; only the result directory is needed."""
    from rankbench.results.bundle import publish as publishing

    layout = find_results(arguments)
    site = publishing.publish(layout, anonymise=arguments.anonymise)
    if arguments.json:
        print_json(dataclasses.asdict(site))
    else:
        mib = 1024**2
        print(f"{site.bundle}: {site.bundle_bytes / mib:.1f} MiB")
        print(
            f"{site.page}: {site.cells} cells; {site.bytes / mib:.1f} MiB without "
            "bundle and logs"
        )
    return OK
