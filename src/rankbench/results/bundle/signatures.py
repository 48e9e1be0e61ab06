"""SHA256SUMS: the SHA-256 of each file of a bundle; and signatures of this list.

`sha256sum --check SHA256SUMS` reads it as well. `ssh-keygen -Y` makes and checks the
signatures, offline; what it says is shown in its own words.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankbench.own_files import hash_file
from rankbench.record import write_atomically
from rankbench.results.read.archive import list_files
from rankbench.say import make_printable

SUMS = "SHA256SUMS"
SIGNATURES = "signatures"
_SIGNATURE = re.compile(rf"{SIGNATURES}/[0-9a-f]{{16}}\.sig")
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a bundle.

    Attributes:
        file: below the bundle, or the bundle itself.
        what: the fault.
        where: line and column in the file; empty if it is about the whole file.
    """

    file: str
    what: str
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.file}, {self.where}" if self.where else self.file
        return make_printable(f"{place}: {self.what}")


def is_signature(name: str) -> bool:
    """Whether a file of a bundle has the name of a signature."""
    return _SIGNATURE.fullmatch(name) is not None


def write_sums(root: Path) -> None:
    """List the files of a folder."""
    names, odd = list_files(root)
    assert not odd
    (root / SUMS).write_bytes(_encode(_hash_files(root, names)))


def check_sums(root: Path) -> tuple[list[str], list[Finding]]:
    """The files of a bundle, and which are missing, changed, or not listed.

    Raises:
        ValueError: there is no list: it is no bundle.
    """
    path = root / SUMS
    if not path.is_file() or path.is_symlink():
        raise ValueError(
            f"{root} is no bundle: it has no {SUMS} (`rankbench publish` writes one)"
        )
    names, odd = list_files(root)
    findings = [Finding(name, what) for name, what in odd.items()]
    if findings:
        # A link may lead anywhere, so nothing is read.
        return [], findings
    lines = path.read_bytes().decode(errors="replace").split("\n")
    matches = [_LINE.fullmatch(line) for line in lines[:-1]]
    listed = {match[2]: match[1] for match in matches if match}
    there = _hash_files(root, names)
    for name in sorted(listed.keys() | there.keys()):
        if is_signature(name):
            # The list must stay as it is if a signature is added.
            findings.append(Finding(name, f"is a signature, but {SUMS} lists it"))
        elif name not in there:
            findings.append(Finding(name, f"is missing: {SUMS} lists it"))
        elif name not in listed:
            findings.append(Finding(name, f"is not listed in {SUMS}"))
        elif there[name] != listed[name]:
            said = f"has another SHA-256 than {SUMS} says: it was changed"
            findings.append(Finding(name, said))
    if not findings and path.read_bytes() != _encode(there):
        findings.append(Finding(SUMS, "is not written as rankbench writes it"))
    return names, findings


def _hash_files(root: Path, names: Iterable[str]) -> dict[str, str]:
    listed = (name for name in names if name != SUMS and not is_signature(name))
    return {name: hash_file(root / name) for name in listed}


def _encode(hashes: Mapping[str, str]) -> bytes:
    lines = [f"{hashes[name]}  {name}\n" for name in sorted(hashes)]
    return "".join(lines).encode()


# --- signatures -----------------------------------------------------------------------

# It keeps a signature of something else, such as a commit, from counting here.
NAMESPACE = "rankbench"

# A signature by an RSA key of 16384 bits has 6 KiB. Each check is a process.
_LONGEST = 16 * 1024  # bytes
_MOST = 100

# Seconds. A key in hardware waits for a touch.
_PATIENCE = 60
_ADVICE = (
    "give a private key without a passphrase, or load the key into ssh-agent by "
    "ssh-add and give its public key"
)
_KEY = re.compile(rf'Good "{NAMESPACE}" signature with (\S+) key SHA256:(\S+)')
_BEGIN, _END = (f"-----{word} SSH SIGNATURE-----" for word in ("BEGIN", "END"))
_USER = re.compile(r"[\w.@+-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class BundleSignature:
    """A signature file of a bundle.

    Attributes:
        file: below the bundle.
        key: type and fingerprint, as `ssh-keygen` prints them; None if it is no valid
            signature.
        principals: whose key it is, if the signature is valid; None if nobody asked.
        fault: why it does not count; None if it does.
    """

    file: str
    key: str | None = None
    principals: tuple[str, ...] | None = None
    fault: str | None = None

    def __str__(self) -> str:
        whose = ", ".join(self.principals or ())
        who = f" by {whose}" if whose else ""
        hint = "" if whose else "; --signers or --signer would say whose that is"
        text = f"{self.file}: {SUMS} is signed{who} with {self.key}{hint}"
        return make_printable(text)


@dataclass(frozen=True, slots=True)
class Signers:
    """Keys, and whose they are.

    Attributes:
        allowed: all of it as the contents of one allowed_signers file.
        wanted: principals that must have signed, each with its key file.
        source: names of the files, for messages.
    """

    allowed: str
    wanted: Sequence[tuple[str, Path]]
    source: str


def add_signature(root: Path, key: Path) -> BundleSignature:
    """Sign a bundle with a key; nothing else in it changes.

    A signature that this key has made already stays as it is.

    Raises:
        ValueError: as `sign`.
    """
    data, signed = sign(key, (root / SUMS).read_bytes())
    path = root / signed.file
    if not path.exists():
        write_atomically(path, data)
    return signed


def sign(path: Path, data: bytes = b"a trial") -> tuple[bytes, BundleSignature]:
    """Sign bytes, by default some that only show whether the key signs.

    Args:
        path: a private key, or a public key whose private half is beside it or in
            ssh-agent.
        data: what is signed.

    Raises:
        ValueError: the key cannot be read or used without a question, or there is no
            ssh-keygen; the message says what to do.
    """
    if not path.is_file():
        said = "is no file" if path.exists() else "does not exist"
        raise ValueError(f"{path} {said}: {_ADVICE}")
    done = _run(["-Y", "sign", "-f", str(path), "-n", NAMESPACE], data)
    signed = _identify(done.stdout, data)
    if fault := _quote(done) if done.returncode else signed.fault:
        raise ValueError(f"{path} does not sign: {fault}; {_ADVICE}")
    return done.stdout, signed


def check_signatures(
    root: Path, names: Sequence[str], signers: Signers | None
) -> tuple[list[BundleSignature], list[Finding]]:
    """Say for each signature of a bundle whether it holds, and whose it is.

    Args:
        root: the bundle, as a folder without links.
        names: its files.
        signers: who may have signed, and who must have; None: nobody is named.

    Raises:
        ValueError: there are signatures, but no ssh-keygen.
    """
    files = [name for name in names if is_signature(name)]
    if len(files) > _MOST:
        said = f"there are {len(files)}; no more than {_MOST} are checked"
        return [], [Finding(SIGNATURES, said)]
    sums = (root / SUMS).read_bytes()
    found = [_check(root, name, sums, signers) for name in files]
    findings = [Finding(signed.file, signed.fault) for signed in found if signed.fault]
    if signers is not None:
        principals = {name for signed in found for name in signed.principals or ()}
        findings += [
            Finding(SIGNATURES, f"there is none by {user}, whose keys are in {path}")
            for user, path in signers.wanted
            if user not in principals
        ]
        if not files and not signers.wanted:
            said = f"there are none: nobody in {signers.source} has signed this bundle"
            findings.append(Finding(SIGNATURES, said))
    return found, findings


def _check(
    root: Path, name: str, sums: bytes, signers: Signers | None
) -> BundleSignature:
    """Check a signature file, of which everything may be wrong."""
    with (root / name).open("rb") as file:
        data = file.read(_LONGEST + 1)
    signed = _identify(data, sums)
    if signed.fault:
        said = f"is no valid signature of {SUMS}: {signed.fault}"
        return BundleSignature(name, fault=said)
    if name != signed.file:
        said = f"has another name than its key gives it: {signed.file}"
        return replace(signed, file=name, fault=said)
    if signers is None:
        return signed
    with tempfile.TemporaryDirectory(prefix="rankbench-verify-") as folder:
        path, allowed = Path(folder) / "signature", Path(folder) / "signers"
        path.write_bytes(data)
        allowed.write_text(signers.allowed, encoding="utf-8")
        words = ["-s", str(path), "-f", str(allowed)]
        found = _run(["-Y", "find-principals", *words])
        owners = found.stdout.decode(errors="replace").splitlines()
        # A pattern with ! excludes somebody, and names nobody. Of several lines with
        # one key, ssh-keygen finds the first.
        owners = [owner for owner in owners if not owner.startswith("!")]
        owners += [user for user, _ in signers.wanted]
        words += ["-Y", "verify", "-n", NAMESPACE, "-I"]
        checks = {owner: _run([*words, owner], sums) for owner in owners}
    principals = tuple(owner for owner in checks if not checks[owner].returncode)
    if principals:
        return replace(signed, principals=principals)
    # The file is gone, so its name helps nobody.
    done = checks[owners[0]] if owners else found
    why = re.sub(rf"{re.escape(str(allowed))}:\d+: ", "", _quote(done))
    said = f"is by the {signed.key}, which does not count in {signers.source}: {why}"
    return replace(signed, principals=(), fault=said)


def _identify(signature: bytes, data: bytes) -> BundleSignature:
    """The key of a signature of these bytes, or its fault, whoever may own the key."""
    if not _is_canonical(signature):
        return BundleSignature("", fault="it is not written as ssh-keygen writes it")
    with tempfile.NamedTemporaryFile(prefix="rankbench-verify-") as file:
        file.write(signature)
        file.flush()
        words = ["-Y", "check-novalidate", "-n", NAMESPACE, "-s", file.name]
        done = _run(words, data)
    good = _KEY.search(done.stdout.decode(errors="replace"))
    if done.returncode or good is None:
        return BundleSignature("", fault=_quote(done))
    kind, text = good.groups()
    if kind.endswith("-CERT"):
        return BundleSignature("", fault="it is by a certificate, not by a plain key")
    name = base64.b64decode(f"{text}=").hex()[:16]
    return BundleSignature(f"{SIGNATURES}/{name}.sig", f"{kind} key SHA256:{text}")


def _is_canonical(signature: bytes) -> bool:
    """Whether it is short, and no bit of the file is without a meaning."""
    lines = signature.decode("ascii", errors="replace").split("\n")
    try:
        body = base64.b64encode(base64.b64decode("".join(lines[1:-2]))).decode()
    except ValueError:
        return False
    is_short = len(signature) <= _LONGEST
    return is_short and lines == [_BEGIN, *textwrap.wrap(body, 70), _END, ""]


def read_signers(allowed: Path | None, users: Sequence[Path]) -> Signers | None:
    """Read the files that `rankbench verify` was given; None if there are none.

    Args:
        allowed: a file of the format allowed_signers, see `man ssh-keygen`, which
            ignores damaged lines.
        users: files with a public key per line, named `USER.keys`.

    Raises:
        ValueError: a file has no keys; the message names it.
        OSError: a file cannot be read.
    """
    lines: list[str] = []
    files = [*([allowed] if allowed else []), *users]
    for path in files:
        if not path.is_file():
            raise ValueError(f"{path} is no file: give public keys of signers")
        user = "" if path is allowed else f"{path.stem} "
        if user and not _USER.fullmatch(path.stem):
            raise ValueError(
                f"{path}: its name names the signer: expected one such as jdoe.keys"
            )
        text = path.read_bytes().decode(errors="replace")
        found = [line.strip() for line in text.split("\n")]
        found = [f"{user}{line}\n" for line in found if line and line[0] != "#"]
        if not found or (user and _run(["-l", "-f", str(path)]).returncode):
            raise ValueError(f"{path} has no public keys")
        lines += found
    wanted = [(path.stem, path) for path in users]
    source = ", ".join(map(str, files))
    return Signers("".join(lines), wanted, source) if files else None


def _run(words: Sequence[str], data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run ssh-keygen with these bytes as its input."""
    # A passphrase is asked of a program that fails at once, not of the terminal. Before
    # OpenSSH 8.4 that needs a session without a terminal.
    quiet = {"SSH_ASKPASS_REQUIRE": "force", "SSH_ASKPASS": "false", "LC_ALL": "C"}
    try:
        return subprocess.run(
            ["ssh-keygen", *words],
            input=data,
            capture_output=True,
            env=os.environ | quiet,
            start_new_session=True,
            timeout=_PATIENCE,
            check=False,
        )
    except FileNotFoundError as error:
        raise ValueError(
            "signatures need ssh-keygen: install the package openssh-client or -clients"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"ssh-keygen did not end within {_PATIENCE} s: does the key wait for a "
            "touch, or ssh-agent for an answer?"
        ) from error


def _quote(done: subprocess.CompletedProcess[bytes]) -> str:
    """What ssh-keygen said, as one line, without its frames of @."""
    lines = done.stderr.decode(errors="replace").replace("@", "").split("\n")
    said = ". ".join(line.strip(" .\r") for line in lines if line.strip(" .\r"))
    return f"ssh-keygen says: {make_printable(said)[:400]}"
