"""The command `rankbench publish`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from rankbench.commands._base import open_results
from rankbench.commands._options import OK, command, print_result
from rankbench.say import say

if TYPE_CHECKING:
    from rankbench.results.bundle.signatures import BundleSignature


@command(
    options="WHAT --override --site --anonymise --sign --add-to",
    examples=(
        "publish studies/lenet-mnist-workers.yaml --anonymise",
        "publish results/quickstart --json",
        "publish --sign ~/.ssh/id_ed25519",
        "publish --sign ~/.ssh/id_ed25519 --add-to results.tar.zst",
    ),
    json_holds="the files, their sizes in bytes, the number of cells",
)
def publish(arguments: argparse.Namespace) -> int:
    """Write into the result folder R: R/results.tar.zst, a bundle with plan,
    records and tables, and R/site, a web page with the same contents, which loads
    nothing from the network. First say which hosts and people it names, and what may be
    a secret. docs/publishing.md explains both, and signatures by an SSH key.
    """
    from rankbench.results.bundle import publish as publishing
    from rankbench.results.bundle.signatures import sign

    if arguments.add_to is not None:
        return _add_signature(arguments)
    if arguments.sign is not None:
        # Tables and plots may take minutes, and the key is needed at their end.
        sign(arguments.sign)
    if (arguments.experiment or "").endswith(".zst"):
        raise ValueError(
            f"{arguments.experiment} is a bundle already: --sign KEY --add-to "
            f"{arguments.experiment} adds a signature to it"
        )
    with open_results(arguments) as layout:
        site = publishing.publish(
            layout,
            anonymise=arguments.anonymise,
            key=arguments.sign,
            tell=lambda line: say(f"the bundle: {line}", aside=True),
        )
    mib = 1024**2
    lines = [f"{site.bundle}: {site.bundle_bytes / mib:.1f} MiB"]
    if site.signature is not None:
        lines.append(_describe(site.bundle, site.signature))
    size = f"{site.bytes / mib:.1f} MiB without bundle and logs"
    lines.append(f"{site.page}: {site.cells} cells; {size}")
    print_result(arguments, dataclasses.asdict(site), "\n".join(lines))
    return OK


def _add_signature(arguments: argparse.Namespace) -> int:
    """Sign a bundle that somebody has published."""
    from rankbench.results.bundle import sign_bundle

    if arguments.sign is None:
        raise ValueError("--add-to needs --sign KEY, which makes the signature")
    others = ("anonymise", "override", "site")
    given = [f"--{name}" for name in others if getattr(arguments, name)]
    if given or arguments.experiment:
        given += filter(None, [arguments.experiment])
        raise ValueError(
            f"--add-to and {', '.join(given)}: a bundle that is there already gets a "
            "signature, and no other change; give only one of the two"
        )
    signature = sign_bundle(arguments.add_to, arguments.sign)
    signed = dataclasses.asdict(signature)
    facts = {"bundle": arguments.add_to, "signature": signed}
    print_result(arguments, facts, _describe(arguments.add_to, signature))
    return OK


def _describe(bundle: Path, signed: BundleSignature) -> str:
    return f"{bundle}: signed with {signed.key}"
