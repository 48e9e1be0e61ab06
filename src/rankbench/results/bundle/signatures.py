"""The signatures of a bundle, which are signatures of its manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankbench.record import write_atomically
from rankbench.results.bundle import keygen
from rankbench.results.bundle.finding import Finding, Signed, Verification
from rankbench.results.bundle.keys import Signature, is_signature, read_signature
from rankbench.results.bundle.manifest import MANIFEST
from rankbench.results.bundle.signers import Signers

# A signature by an RSA key of 16384 bits has 6 KiB. Each check is a process.
_LONGEST = 16 * 1024  # bytes
_MOST = 100


def add_signature(root: Path, key: Path) -> Signed:
    """Sign the manifest of a bundle with a key; nothing else in it changes.

    A signature that this key has made already stays as it is.

    Raises:
        ValueError: as `keygen.sign`.
    """
    signature = keygen.sign(key, (root / MANIFEST).read_bytes())
    path = root / signature.file
    if not path.exists():
        write_atomically(path, signature.encode())
    return Signed(signature.file, signature.key_type, signature.fingerprint)


def check_signatures(
    root: Path, names: Sequence[str], signers: Signers | None, into: Verification
) -> None:
    """Say for each signature of a bundle whether it holds, and whose it is.

    Args:
        root: the bundle, as a folder without links.
        names: its files.
        signers: who may have signed, and who must have; None: nobody is named.
        into: receives signatures and findings.

    Raises:
        ValueError: there are signatures, but no ssh-keygen.
    """
    files = [name for name in names if is_signature(name)]
    if len(files) > _MOST:
        said = f"there are {len(files)}; no more than {_MOST} are checked"
        into.findings.append(Finding("signatures", said))
        return
    manifest = (root / MANIFEST).read_bytes()
    for name in files:
        one = _check(root / name, name, manifest, signers)
        into.signatures.append(one)
        if one.fault:
            into.findings.append(Finding(name, one.fault))
    for user, path in signers.wanted if signers else ():
        if user not in {p for one in into.signatures for p in one.principals or ()}:
            said = f"there is none by {user}, whose keys are in {path}"
            into.findings.append(Finding("signatures", said))
    if signers and not files and not signers.wanted:
        said = f"there are none: nobody in {signers.source} has signed this bundle"
        into.findings.append(Finding("signatures", said))


def _check(path: Path, name: str, manifest: bytes, signers: Signers | None) -> Signed:
    """Check a signature file, of which everything may be wrong."""
    with path.open("rb") as file:
        data = file.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        said = f"is longer than {_LONGEST // 1024} KiB, unlike any signature"
        return Signed(name, fault=said)
    try:
        signature = read_signature(data)
        if data != signature.encode():
            raise ValueError("it is not written as rankbench writes it")
    except ValueError as error:
        return Signed(name, fault=f"is no valid signature: {error}")
    facts = signature.key_type, signature.fingerprint
    if name != signature.file:
        said = f"has another name than its key gives it: {signature.file}"
        return Signed(name, *facts, fault=said)
    if why := keygen.find_fault(signature, manifest):
        return Signed(name, *facts, fault=f"does not fit {MANIFEST}: {why}")
    if signers is None:
        return Signed(name, *facts)
    principals, fault = _find_principals(signature, manifest, signers)
    return Signed(name, *facts, principals, fault)


def _find_principals(
    signature: Signature, manifest: bytes, signers: Signers
) -> tuple[tuple[str, ...], str | None]:
    """Whose valid signature it is; if it is nobody's, the reason."""
    owners = signers.find(signature.key)
    faults = {
        owner: keygen.find_fault(
            signature, manifest, allowed=signers.allowed, principal=owner
        )
        for owner in owners
    }
    principals = tuple(owner for owner in owners if not faults[owner])
    if principals:
        return principals, None
    key = f"{signature.key_type} key {signature.fingerprint}"
    why = "; ".join(f"{owner}: {fault}" for owner, fault in faults.items())
    said = f"does not count: {why}" if why else f"is not in {signers.source}"
    return (), f"is by the {key}, which {said}"
