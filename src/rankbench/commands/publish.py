"""The command `rankbench publish`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from rankbench.commands._base import open_results, resolve
from rankbench.commands._options import OK, command, print_result
from rankbench.say import say

MIB = 1024**2


@command(
    options="WHAT --override --site --anonymise --sign",
    examples=(
        "publish studies/lenet-mnist-workers.yaml --anonymise",
        "publish results/quickstart --json",
        "publish --sign ~/.ssh/id_ed25519",
        "publish results.tar.zst --sign ~/.ssh/id_ed25519",
    ),
    json_holds="the files, their sizes in bytes, the number of cells; the signature",
)
def publish(arguments: argparse.Namespace) -> int:
    """Write into the result folder R: R/results.tar.zst, a bundle with plan,
    records and tables, and R/site, a web page with the same contents, which loads
    nothing from the network. First say which hosts and people it names, and what may be
    a secret. A bundle that is there already gets the signature of --sign, and no other
    change. docs/publishing.md explains both, and signatures by an SSH key.
    """
    from rankbench.results.bundle import write
    from rankbench.results.bundle.signatures import SUMS, sign

    key, anonymise = arguments.sign, arguments.anonymise
    what = Path(resolve(arguments.experiment) if arguments.experiment else "results")
    is_unpacked = (what / SUMS).is_file() and key is not None
    if what.suffix == ".zst" or is_unpacked:
        if key is None or anonymise:
            raise ValueError(
                f"{what} is a bundle already: it can only be signed, by --sign KEY"
            )
        signature = write.sign_bundle(what, key)
        facts = {"bundle": what, "signature": dataclasses.asdict(signature)}
        print_result(arguments, facts, f"{what}: signed with {signature.key}")
        return OK
    if key is not None:
        # Tables and plots may take minutes, and the key is needed at their end.
        sign(key)
    with open_results(arguments) as layout:
        site = write.publish(
            layout,
            anonymise=anonymise,
            key=key,
            tell=lambda line: say(f"the bundle: {line}", aside=True),
        )
    lines = [f"{site.bundle}: {site.bundle_bytes / MIB:.1f} MiB"]
    if site.signature is not None:
        lines.append(f"{site.bundle}: signed with {site.signature.key}")
    size = f"{site.bytes / MIB:.1f} MiB without bundle and logs"
    lines.append(f"{site.page}: {site.cells} cells; {size}")
    print_result(arguments, dataclasses.asdict(site), "\n".join(lines))
    return OK
