"""The command `rankbench verify`."""

from __future__ import annotations

import argparse
import dataclasses

from rankbench.commands._options import FINDING, OK, command, print_result


@command(
    options="BUNDLE --strict --signers --signer",
    examples=(
        "verify results/quickstart/results.tar.zst",
        "verify docs/example --strict --json",
        "verify results.tar.zst --signer jdoe.keys",
        "verify results.tar.zst --signers allowed_signers",
    ),
    exits="0 verified, 1 a difference was found, 2 not a bundle",
    json_holds="whether the bundle is verified, its findings, sections, signatures",
)
def verify(arguments: argparse.Namespace) -> int:
    """Check a bundle that `rankbench publish` wrote: compare its files with its
    manifest, and its tables with numbers derived again from its plan and records.
    Each difference is printed with its place. Nothing in a bundle is executed, and
    no network is used. docs/publishing.md explains versions and signatures.
    """
    from rankbench.results.bundle import verify_bundle
    from rankbench.results.bundle.signatures import read_signers

    signers = read_signers(arguments.signers, arguments.signer)
    found = verify_bundle(arguments.bundle, signers)
    verified = not found.findings and (found.rederived or not arguments.strict)
    lines = [*map(str, found.findings), *found.notes]
    for signature in found.signatures:
        key = f"with {signature.key_type} key {signature.fingerprint}"
        if signature.principals:
            whose = ", ".join(signature.principals)
            lines.append(f"{signature.file}: manifest.json is signed by {whose} {key}")
        elif not signature.fault:
            whose = "--signers or --signer would say whose that is"
            lines.append(f"{signature.file}: manifest.json is signed {key}; {whose}")
    if not found.signatures and not found.findings:
        lines.append("the bundle is not signed")
    if not found.findings:
        word = "verified" if verified else "not verified (--strict)"
        how = "were" if found.rederived else "were not"
        lines.append(f"{arguments.bundle}: {word}: its numbers {how} derived again")
    facts = {"verified": verified, **dataclasses.asdict(found)}
    print_result(arguments, facts, "\n".join(lines))
    return OK if verified else FINDING
