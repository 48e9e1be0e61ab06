"""The command `rankbench publish`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankbench.record import Layout

ABOUT = """\
Write what can be published of an experiment: R/results.tar.zst, a bundle with all
that stands behind the table, and R/site, the same as a page that opens from disk and
from any web host, without network."""

EXAMPLES = """\
examples:
  rankbench publish
  rankbench publish --experiment studies/lenet-mnist-workers.yaml --anonymise
  rankbench publish --results results/quickstart --json"""


def add_command(
    commands: Any, *, find_results: Callable[[argparse.Namespace], Layout]
) -> argparse.ArgumentParser:
    """Add it to the parser of `rankbench`; returns its own.

    Args:
        find_results: from the arguments, among them `results`, to the result directory.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        "publish",
        help="a bundle, and a site that needs no server",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results", type=Path, help="a result directory with plan.json"
    )
    parser.add_argument(
        "--anonymise",
        action="store_true",
        help="placeholders for names of hosts, users, accounts, jobs, and for paths",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=lambda arguments: publish(find_results, arguments))
    return parser


def publish(
    find_results: Callable[[argparse.Namespace], Layout], arguments: argparse.Namespace
) -> int:
    """Write bundle and site; needs nothing but a result directory."""
    from rankbench.results.site import publish as publishing

    layout = find_results(arguments)
    site = publishing.publish(layout, anonymise=arguments.anonymise)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(site), indent=1, default=str))
    else:
        mib = 1024**2
        print(f"{site.bundle}: {site.bundle_bytes / mib:.1f} MiB")
        print(
            f"{site.page}: {site.cells} cells; {site.bytes / mib:.1f} MiB without "
            "bundle and logs"
        )
    return 0
