"""Signs images, and checks who has signed them, by Apptainer and PEM keys."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from socket import gethostname
from typing import Any

from rankbench.launch.images.apptainer import find_program
from rankbench.record import first_line

# A key that is protected by a passphrase would make Apptainer wait for it.
_SECONDS = 600


def check_key(key: Path) -> None:
    """Check that a key file can be read, before an image is built for minutes.

    Raises:
        ValueError: it is missing, no key, or others may read it.
    """
    try:
        text = key.read_text(errors="replace")
        mode = key.stat().st_mode
    except OSError as error:
        said = f"site key image_key: {key} cannot be read: {error.strerror}"
        raise ValueError(said) from error
    if "PRIVATE KEY-----" not in text or "ENCRYPTED" in text:
        raise ValueError(
            f"site key image_key: {key} is no private key in PEM format without a "
            "passphrase: `openssl genpkey -algorithm ed25519 -out KEY.pem` makes one"
        )
    if mode & 0o077:
        raise ValueError(
            f"site key image_key: other users can read {key}: `chmod 600 {key}`"
        )


def sign(sif: Path, key: Path) -> None:
    """Add a signature to the file of an image; that changes its SHA-256.

    Raises:
        ValueError: Apptainer does not sign; says why.
    """
    done = _run(["sign", "--key", str(key), str(sif)])
    if done.returncode != 0:
        raise ValueError(f"{sif} cannot be signed with {key}: {_reason(done)}")


def check_signed(image: Mapping[str, Any], signers: Sequence[Path]) -> None:
    """Check that one of these people has signed an image, as it is now.

    Args:
        image: from `read_image`.
        signers: files of public keys; none: nothing is checked.

    Raises:
        ValueError: no key fits, or the image was changed since; says what to do.
    """
    if not signers:
        return
    reasons = []
    for key in signers:
        done = _run(["verify", "--key", str(key), image["file"]])
        if done.returncode == 0:
            return
        reasons.append(f"{key}: {_reason(done)}")
    raise ValueError(
        f"image {image['name']}: on the host {gethostname()} {image['file']} has no "
        f"valid signature of the site key image_signers ({'; '.join(reasons)}): "
        "restore the signed file, or make the image again"
    )


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_program(), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "NO_COLOR": "1"},
        timeout=_SECONDS,
        check=False,
    )


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of what Apptainer said, which has the error."""
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    found = lines[-1] if lines else f"exit status {done.returncode}"
    return first_line("".join(char for char in found if char.isprintable()))
