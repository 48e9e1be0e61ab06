"""The command `rankbench verify`."""

from __future__ import annotations

import argparse
import dataclasses

from rankbench.commands._options import FINDING, OK, UNDECIDED, command, print_result


@command(
    options="BUNDLE --strict --signers --signer",
    examples=(
        "verify results/quickstart/results.tar.zst",
        "verify docs/example --strict --json",
        "verify results.tar.zst --signer jdoe.keys",
        "verify results.tar.zst --signers allowed_signers",
    ),
    exits="0 verified, 1 a difference was found, 2 not a bundle, 3 not derived again",
    json_holds="verified (true, false, null), findings, what was not checked, signers",
)
def verify(arguments: argparse.Namespace) -> int:
    """Check a bundle that `rankbench publish` wrote: compare its files with its
    SHA256SUMS, and its tables with numbers derived again from its plan and records.
    The first line says the result, and further ones each difference with its place.
    Nothing in a bundle is executed, and no network is used. docs/publishing.md explains
    versions and signatures.
    """
    from rankbench.results.bundle.signatures import read_signers
    from rankbench.results.bundle.verify import verify_bundle

    signers = read_signers(arguments.signers, arguments.signer)
    found = verify_bundle(arguments.bundle, signers)
    verified = found.is_verified(strict=arguments.strict)
    why = f": {found.why}" if found.why else ""
    said = {
        True: f"verified: its numbers were derived again{why}",
        False: f"not verified; faults: {len(found.findings)}",
        None: f"not verified: not all was derived again{why}",
    }[verified]
    lines = [f"{arguments.bundle}: {said}", *map(str, found.findings)]
    lines += [str(one) for one in found.signatures if not one.fault]
    if not found.signatures and not found.findings:
        lines.append("the bundle is not signed")
    if found.unchecked:
        lines.append(f"not checked: {', '.join(found.unchecked)}")
    facts = {"verified": verified, **dataclasses.asdict(found)}
    print_result(arguments, facts, "\n".join(lines))
    return {True: OK, False: FINDING, None: UNDECIDED}[verified]
