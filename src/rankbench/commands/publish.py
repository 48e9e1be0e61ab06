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
Write what can be published of an experiment: R/results.tar.zst, a bundle with all
that stands behind the table, and R/site, the same as a page that opens from disk and
from any web host, without network."""

EXAMPLES = """\
examples:
  rankbench publish
  rankbench publish --experiment studies/lenet-mnist-workers.yaml --anonymise
  rankbench publish --results results/quickstart --json

exit status: 0, or 2 on bad input"""


def add(commands: Any) -> None:
    """Add it to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "publish",
        publish,
        summary="a bundle, and a site that needs no server",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the files, their bytes, the number of cells",
    )
    add_results(parser)
    parser.add_argument(
        "--anonymise",
        action="store_true",
        help="placeholders for names of hosts, users, accounts, jobs, and for paths",
    )


def publish(arguments: argparse.Namespace) -> int:
    """Write bundle and site; needs nothing but a result directory."""
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
