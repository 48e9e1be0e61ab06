"""Sign, and check signatures, with ssh-keygen. It is offline and never asks anybody."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rankbench.results.bundle.keys import (
    NAMESPACE,
    TYPE,
    Signature,
    check_key,
    read_key,
    read_signature,
)

# Seconds. A key in hardware waits for a touch.
_PATIENCE = 60
_LONGEST_KEY = 64 * 1024
_ADVICE = (
    "give a private key without a passphrase, or load the key into ssh-agent by "
    "ssh-add and give its public key"
)


def try_key(path: Path) -> None:
    """Sign something that is thrown away, so that a bad key is found at once.

    Raises:
        ValueError: as `sign`.
    """
    sign(path, b"a trial")


def sign(path: Path, data: bytes) -> Signature:
    """Sign bytes.

    Args:
        path: a private key, or a public key whose private half is beside it or in
            ssh-agent.
        data: what is signed.

    Raises:
        ValueError: the key cannot be read or used without a question, or there is no
            ssh-keygen; the message says what to do.
    """
    _check_file(path)
    done = _run(["sign", "-f", str(path)], data)
    if done.returncode == 0:
        return read_signature(done.stdout)
    raise ValueError(f"{path} does not sign: {_quote(done)}; {_ADVICE}")


def find_fault(
    signature: Signature, data: bytes, *, allowed: str = "", principal: str = ""
) -> str | None:
    """What is wrong with a signature of these bytes; None if it is valid.

    Args:
        allowed: the contents of an allowed_signers file. If it is given, the key must
            be that of the principal, and be valid now and for this purpose.
        principal: as it stands in `allowed`.

    Raises:
        ValueError: there is no ssh-keygen.
    """
    with tempfile.TemporaryDirectory(prefix="rankbench-verify-") as folder:
        file, signers = Path(folder) / "signature", Path(folder) / "signers"
        file.write_bytes(signature.encode())
        if not allowed:
            words = ["check-novalidate", "-s", str(file)]
        else:
            signers.write_text(allowed, encoding="utf-8")
            words = ["verify", "-s", str(file), "-f", str(signers), "-I", principal]
        done = _run(words, data)
        # The file is gone soon, so its name helps nobody.
        said = re.sub(rf"{re.escape(str(signers))}:\d+: ", "", _quote(done))
    return None if done.returncode == 0 else said


def _check_file(path: Path) -> None:
    """Raise ValueError if a file is no key, because ssh-keygen's words mislead."""
    if not path.exists():
        raise ValueError(f"{path} does not exist: {_ADVICE}")
    if not path.is_file():
        raise ValueError(f"{path} is no file: {_ADVICE}")
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST_KEY)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    text = data.decode("ascii", errors="replace")
    if text.startswith("-----BEGIN ") and "PRIVATE KEY-----" in text.partition("\n")[0]:
        return
    words = text.split(maxsplit=2)
    try:
        if len(words) < 2 or not TYPE.fullmatch(words[0]):
            raise ValueError("it is neither a private nor a public key of SSH")
        check_key(read_key(words[0], words[1]))
    except ValueError as error:
        raise ValueError(f"{path} is no key: {error}; {_ADVICE}") from error


def _run(words: Sequence[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run `ssh-keygen -Y WORDS` with these bytes as its input."""
    # A passphrase is asked of a program that fails at once, not of the terminal. Before
    # OpenSSH 8.4 that needs a session without a terminal.
    quiet = {"SSH_ASKPASS_REQUIRE": "force", "SSH_ASKPASS": "false", "LC_ALL": "C"}
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", *words, "-n", NAMESPACE],
            input=data,
            capture_output=True,
            env=os.environ | quiet,
            start_new_session=True,
            timeout=_PATIENCE,
            check=False,
        )
    except FileNotFoundError as error:
        raise ValueError(
            "signatures need ssh-keygen, which is not installed: install OpenSSH's "
            "client (package openssh-client on Debian and Ubuntu, openssh-clients on "
            "Fedora, RHEL and SUSE, openssh elsewhere)"
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
    shown = "".join(char if char.isprintable() else "?" for char in said)
    return f"ssh-keygen says: {shown[:400]}"
